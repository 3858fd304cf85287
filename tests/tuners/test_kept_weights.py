"""When built matrices are kept, and that they are never used after a change."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from adapting import inputs_of, logits, scramble, train
from by_formula import SLOW, by_formula, compacted
from compacter import CompacterConfig
from compacter.tuners.bottleneck.layer import BottleneckLayer
from tiny_models import TINY


def test_decoding_builds_once_and_keeps(builds):
    model, ids = compacted(), inputs_of("t5")["input_ids"]
    model.generate(input_ids=ids, max_new_tokens=6, num_beams=2)
    assert builds == {"builds": 1, "projections": 16}
    model.generate(input_ids=ids, max_new_tokens=6)
    logits(model, **inputs_of("t5"))
    assert builds["builds"] == 1
    train(model, inputs_of("t5"), steps=1)
    builds.clear()
    model.generate(input_ids=ids, max_new_tokens=6)
    assert builds == {"builds": 1, "projections": 16}


def test_a_frozen_adapter_is_kept_with_gradients_enabled_too(builds):
    model, inputs = compacted(), inputs_of("t5")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model(**inputs)
    model(**inputs)
    assert builds["builds"] == 1


def test_of_many_adapters_one_is_kept():
    """Built matrices are larger than the adapter that they are made of."""
    model, inputs = compacted(), inputs_of("t5")
    model.add_adapter("second", CompacterConfig(bottleneck=8))
    for name in ("default", "second"):
        model.set_adapter(name)
        logits(model, **inputs)
    kept = [m.built for m in model.modules() if isinstance(m, BottleneckLayer)]
    assert [built.adapter for built in kept] == ["second"] * 8


def change_in_place(model):
    with torch.no_grad():
        model.get_parameter(FACTOR).mul_(2.0)


def change_slow_weights(model):
    with torch.no_grad():
        model.get_parameter(SLOW).add_(0.5)


def change_data(model):
    parameter = model.get_parameter(FACTOR)
    parameter.data = parameter.data * 2.0


def change_parameter(model):
    path, name = FACTOR.rsplit(".", 1)
    setattr(model.get_submodule(path), name, nn.Parameter(model.get_parameter(FACTOR) * 2.0))


def change_by_state_dict(model):
    state = {n: v * 2.0 for n, v in model.state_dict().items() if n == FACTOR}
    model.load_state_dict(state, strict=False)


def change_by_assigned_state_dict(model):
    state = {n: v * 2.0 for n, v in model.state_dict().items() if n == FACTOR}
    model.load_state_dict(state, strict=False, assign=True)


def change_behind_autograd(model):
    """As some optimisers and moving averages do; a training step or a change of mode follows."""
    model.get_parameter(FACTOR).data.mul_(2.0)
    model.eval()


def change_by_training(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.mul_(1.5)
    model(**inputs_of("t5")).loss.backward()


def change_precision(model):
    model.to(torch.bfloat16).double()


def replace_adapter(model):
    model.add_adapter("other", CompacterConfig(bottleneck=8))
    model.set_adapter("other")
    model.delete_adapter("default")
    model.add_adapter("default", CompacterConfig(bottleneck=8))
    model.set_adapter("default")
    scramble(model, std=0.2)


FACTOR = "base_model.model.encoder.block.1.layer.1.DenseReluDense.wo.compacter_down.default.s"
CHANGES = [
    change_in_place,
    change_slow_weights,
    change_data,
    change_parameter,
    change_by_state_dict,
    change_by_assigned_state_dict,
    change_behind_autograd,
    change_by_training,
    change_precision,
    replace_adapter,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_never_missed(change):
    model, inputs = compacted(), inputs_of("t5")
    before = logits(model, **inputs)
    change(model)
    after = logits(model, **inputs)
    assert not torch.equal(after, before)
    torch.testing.assert_close(after, logits(by_formula(model), **inputs), rtol=0, atol=1e-6)


def change_unseen(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.mul_(1.2)


def test_training_steps_that_autograd_does_not_see():
    """Some optimisers write to `parameter.data`, or past torch altogether."""
    model, inputs = compacted().train(), inputs_of("t5")
    for with_backward in (True, False, True):
        expected = by_formula(model)(**inputs).loss.item()
        loss = model(**inputs).loss
        assert loss.item() == pytest.approx(expected, rel=1e-9)
        if with_backward:
            loss.backward()
        change_unseen(model)


def test_what_an_encoder_was_trained_with_does_not_serve_a_later_decoder():
    model, inputs = compacted().train(), inputs_of("t5")
    bare = model.get_base_model()
    encoded = bare.encoder(input_ids=inputs["input_ids"])
    encoded.last_hidden_state.square().sum().backward()
    change_unseen(model)
    given = {"encoder_outputs": (encoded.last_hidden_state.detach(),), "labels": inputs["labels"]}
    expected = by_formula(model)(**given).loss.item()
    assert model(**given).loss.item() == pytest.approx(expected, rel=1e-9)


FUSED = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1.0, fused=True),
}
"""Optimisers whose steps do not raise the versions of parameters."""


def trained_parameters(model):
    return [p for p in model.parameters() if p.requires_grad]


@pytest.mark.parametrize("fused", FUSED)
@pytest.mark.parametrize(
    "order",
    ["LFBSZL", "FBLSZL", "FBLSL", "FBLSLZL", "FLBSZL", "FLBLSZL", "FFLBSZLBSZL", "LFBLLSLZLFBSZL"],
)
def test_fused_steps_in_any_order(order, fused):
    """F: a forward pass for training, B: the backward pass of the oldest, S: a step, Z: gradients
    are dropped, L: logits, which are those of the parameters as they are."""
    model, inputs = compacted(), inputs_of("t5")
    optimizer, losses, seen = FUSED[fused](trained_parameters(model)), [], []
    for what in order:
        if what == "F":
            losses.append(model(**inputs).loss)
        elif what == "B":
            losses.pop(0).backward()
        elif what == "S":
            optimizer.step()
        elif what == "Z":
            optimizer.zero_grad()
        else:
            seen.append(logits(model, **inputs))
            expected = logits(by_formula(model), **inputs)
            torch.testing.assert_close(seen[-1], expected, rtol=0, atol=1e-6)
    assert not torch.equal(seen[0], seen[-1])


def fused_step(model):
    optimizer = FUSED["sgd"](trained_parameters(model))
    optimizer.step()
    optimizer.zero_grad()


def encoded_by(model, **settings):
    ids = inputs_of("t5")["input_ids"]
    return model.get_base_model().encoder(input_ids=ids, **settings).last_hidden_state


def assert_decoder_as_by_formula(model, encoded):
    given = {"encoder_outputs": (encoded.detach(),), "labels": inputs_of("t5")["labels"]}
    expected = logits(by_formula(model), **given)
    torch.testing.assert_close(logits(model, **given), expected, rtol=0, atol=1e-6)


def test_a_fused_step_between_encoder_and_decoder():
    model = compacted()
    model(**inputs_of("t5")).loss.backward()
    with torch.no_grad():
        encoded = encoded_by(model)
    fused_step(model)
    assert_decoder_as_by_formula(model, encoded)


def test_a_fused_step_of_slow_weights_that_a_checkpointed_encoder_was_trained_with():
    """Its blocks are built without gradients first, and one by one in the backward pass."""
    model = compacted().train()
    model.enable_input_require_grads()
    model.get_base_model().gradient_checkpointing_enable({"use_reentrant": True})
    encoded = encoded_by(model, use_cache=False)
    encoded.square().mean().backward()
    for module in model.modules():
        module.training = False  # by `eval` what was built would be forgotten
    fused_step(model)
    assert_decoder_as_by_formula(model, encoded)


@pytest.mark.parametrize("whole", [True, False])
def test_a_fused_step_after_a_compiled_pass(whole):
    torch._dynamo.reset()
    model, inputs = compacted(), inputs_of("t5")
    before = logits(model, **inputs)
    compiled = torch.compile(model if whole else model.get_base_model(), backend="aot_eager")
    compiled(**inputs).loss.backward()
    fused_step(model)
    after = logits(model, **inputs)
    assert not torch.equal(after, before)
    torch.testing.assert_close(after, logits(by_formula(model), **inputs), rtol=0, atol=1e-6)


def test_a_fused_step_after_selective_checkpointing():
    """What was kept is not used in such a pass, so no backward pass tells of it."""
    model, inputs = compacted(), inputs_of("t5")
    before = logits(model, **inputs)
    loss = checkpoint(
        lambda: model(**inputs).loss,
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts([torch.ops.aten.mm.default]),
    )
    loss.backward()
    fused_step(model)
    after = logits(model, **inputs)
    assert not torch.equal(after, before)
    torch.testing.assert_close(after, logits(by_formula(model), **inputs), rtol=0, atol=1e-6)


def test_decoding_keeps_nothing_while_there_are_gradients(builds):
    model, inputs = compacted(), inputs_of("t5")
    model(**inputs).loss.backward()
    model.generate(input_ids=inputs["input_ids"], max_new_tokens=3)
    assert not any(m.built for m in BottleneckLayer.all_with("default", shared_by(model)))
    model.zero_grad()
    builds.clear()
    model.generate(input_ids=inputs["input_ids"], max_new_tokens=6)
    assert builds == {"builds": 1, "projections": 16}


def shared_by(model):
    return model.get_base_model().shared_parameters


def test_disabled_adapters_are_not_used():
    model, inputs = compacted(), inputs_of("t5")
    logits(model, **inputs)
    with model.disable_adapter():
        assert torch.equal(logits(model, **inputs), logits(TINY["t5"]().double(), **inputs))

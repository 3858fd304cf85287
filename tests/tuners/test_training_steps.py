"""Steps of training in any order: what is computed belongs to the weights as they are."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from peft import get_peft_model
from torch import nn

from adapting import inputs_of, logits, scramble
from by_formula import (
    WEIGHTS,
    assert_as_by_formula,
    assert_same,
    compacted,
    expected_of,
    gradients,
    gradients_of,
    install,
    run_by_formula,
    saved,
)
from compacter import CompacterConfig
from tiny_models import TINY

INPUTS = inputs_of("t5")
CHECKPOINTED = INPUTS | {"use_cache": False}
TWICE = 2.0


def base():
    return TINY["t5"]()


def expected(model):
    return expected_of(model, base(), INPUTS)


def times(gradients, factor):
    return {name: factor * gradient for name, gradient in gradients.items()}


# Backward passes


def test_accumulated_gradients():
    model = compacted()
    wanted = times(expected(model).gradients, 2)
    for _ in range(2):
        model(**INPUTS).loss.backward()
    assert_same(gradients_of(model), wanted)


def test_two_backward_passes_through_one_graph():
    model = compacted()
    wanted = times(expected(model).gradients, 2)
    loss = model(**INPUTS).loss
    loss.backward(retain_graph=True)
    loss.backward()
    assert_same(gradients_of(model), wanted)


def test_two_forward_passes_before_two_backward_passes():
    model = compacted()
    half = {name: value[:1] for name, value in INPUTS.items()}
    wanted = expected(model).gradients
    for name, gradient in expected_of(model, base(), half).gradients.items():
        wanted[name] = wanted[name] + gradient
    losses = [model(**INPUTS).loss, model(**half).loss]
    for loss in losses:
        loss.backward()
    assert_same(gradients_of(model), wanted)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(reentrant):
    """For several steps, and with accumulated gradients. (Reentrant checkpointing computes norms
    without gradients first, by transformers' own, which take means in float32.)"""
    model = compacted()
    wanted = expected(model).gradients
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.train()
    for steps in (1, 1, 2):
        model.zero_grad()
        for _ in range(steps):
            model(**CHECKPOINTED).loss.backward()
        assert_same(gradients_of(model), times(wanted, steps), 1e-6)


def test_checkpointing_a_direct_call_of_the_encoder():
    model, ids = compacted(), INPUTS["input_ids"]
    bare = base().double()
    with saved(model) as folder:
        tensors = install(bare, folder)
    bare.encoder(input_ids=ids).last_hidden_state.square().sum().backward()
    model.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    model(**CHECKPOINTED)  # whose graph is thrown away
    encoder = model.get_base_model().encoder
    encoder(input_ids=ids).last_hidden_state.square().sum().backward()
    wanted = {n: torch.zeros_like(t) if t.grad is None else t.grad for n, t in tensors.items()}
    assert_same(gradients_of(model), wanted)


# Changes of the weights


def change_in_place(model):
    with torch.no_grad():
        model.get_parameter(f"{WEIGHTS}.down_s").mul_(TWICE)


def change_slow_weights(model):
    with torch.no_grad():
        model.get_parameter(f"{WEIGHTS}.A").add_(0.5)


def change_data(model):
    parameter = model.get_parameter(f"{WEIGHTS}.down_s")
    parameter.data = TWICE * parameter.data


def change_parameter(model):
    weights = model.get_submodule(WEIGHTS)
    weights.down_s = nn.Parameter(TWICE * weights.down_s.detach())


def doubled(model):
    return {n: TWICE * v for n, v in model.state_dict().items() if n.endswith("down_s")}


def change_by_state_dict(model):
    model.load_state_dict(doubled(model), strict=False)


def change_by_assigned_state_dict(model):
    model.load_state_dict(doubled(model), strict=False, assign=True)


def change_behind_autograd(model):
    """As some moving averages do; a change of mode has to follow."""
    model.get_parameter(f"{WEIGHTS}.down_s").data.mul_(TWICE)
    model.eval()


def change_precision(model):
    model.float().double()


def replace_adapter(model):
    model.add_adapter("other", CompacterConfig(bottleneck=8))
    model.set_adapter("other")
    model.delete_adapter("default")
    model.add_adapter("default", CompacterConfig(bottleneck=8))
    model.set_adapter("default")
    scramble(model.double(), std=0.2)


CHANGES = [
    change_in_place,
    change_slow_weights,
    change_data,
    change_parameter,
    change_by_state_dict,
    change_by_assigned_state_dict,
    change_behind_autograd,
    change_precision,
    replace_adapter,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("training", [True, False])
def test_a_change_is_never_missed(change, training):
    model = compacted().train(training)
    before = logits(model, **INPUTS)
    model(**INPUTS)
    change(model)
    assert not torch.equal(logits(model, **INPUTS), before)
    assert_as_by_formula(model, INPUTS, base())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_have_weights_of_their_own(copied):
    model = compacted()
    before = logits(model, **INPUTS)
    model(**INPUTS)
    clone = copied(model)
    change_in_place(clone)
    assert_as_by_formula(clone, INPUTS, base())
    assert torch.equal(logits(model, **INPUTS), before)
    change_slow_weights(model)
    assert_as_by_formula(clone, INPUTS, base())


def test_a_copy_made_between_forward_and_backward():
    model = compacted()
    loss = model(**INPUTS).loss
    clone = copy.deepcopy(model)
    loss.backward()
    wanted = gradients_of(model)
    scramble(model)
    assert_same(gradients(clone, INPUTS), wanted)


@pytest.mark.parametrize(
    ("projection", "name"),
    [("lphm", "down_s"), ("lphm", "A"), ("dense", "down_W"), ("lphm", "layernorm_weight")],
)
def test_weights_changed_between_forward_and_backward_are_an_error(projection, name):
    """The gradients would be wrong."""
    model = compacted(projection=projection)
    loss = model(**INPUTS).loss
    with torch.no_grad():
        model.get_parameter(f"{WEIGHTS}.{name}").mul_(2)
    with pytest.raises(RuntimeError, match=r"changed between|inplace"):
        loss.backward()


# Optimisers

OPTIMISERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.05, foreach=False),
    "foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.05, foreach=True),
    "fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.05, fused=True),
    "fused sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.5, fused=True),
}
"""Steps of the fused ones do not raise the versions of parameters."""


def trained_parameters(model):
    return [p for p in model.parameters() if p.requires_grad]


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize(
    "order",
    [
        "FBSZFBSZF",
        "LFBSZL",
        "FBLSZL",
        "FBLSL",
        "FBLSLZL",
        "FLBSZL",
        "FLBLSZL",
        "FFBBSZF",
        "FBFBSZFL",
        "FBFSZF",
        "FBFSZL",
        "FFLBBSZL",
        "LFBLLSLZLFBSZL",
    ],
)
def test_steps_in_any_order(order, optimiser):
    """F: a forward pass for training, B: the backward pass of the oldest, S: a step, Z: gradients
    are dropped, L: logits. Every pass is that of the parameters as they are."""
    model = compacted()
    optimizer, losses = OPTIMISERS[optimiser](trained_parameters(model)), []
    for done, what in enumerate(order, 1):
        if what == "F":
            losses.append(model(**INPUTS).loss)
            assert losses[-1].item() == pytest.approx(expected(model).loss.item()), order[:done]
        elif what == "B":
            losses.pop(0).backward()
        elif what == "S":
            optimizer.step()
        elif what == "Z":
            optimizer.zero_grad()
        else:
            found = {order[:done]: logits(model, **INPUTS)}
            assert_same(found, {order[:done]: expected(model).logits}, 1e-5)


def fused_step(model):
    optimizer = OPTIMISERS["fused sgd"](trained_parameters(model))
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("whole", [True, False])
def test_a_fused_step_after_a_compiled_pass(whole):
    torch._dynamo.reset()
    model = compacted()
    before = logits(model, **INPUTS)
    compiled = torch.compile(model if whole else model.get_base_model(), backend="aot_eager")
    compiled(**INPUTS).loss.backward()
    fused_step(model)
    assert not torch.equal(logits(model, **INPUTS), before)
    assert_as_by_formula(model, INPUTS, base())


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_fused_step_between_encoder_and_decoder(reentrant):
    model, ids = compacted().train(), INPUTS["input_ids"]
    model.enable_input_require_grads()
    model.get_base_model().gradient_checkpointing_enable({"use_reentrant": reentrant})
    encoder = model.get_base_model().encoder
    encoded = encoder(input_ids=ids, use_cache=False).last_hidden_state
    encoded.square().mean().backward()
    fused_step(model)
    given = {"encoder_outputs": (encoded.detach(),), "labels": INPUTS["labels"]}
    found = model(**given, use_cache=False).loss.item()
    assert found == pytest.approx(expected_of(model, base(), given).loss.item(), rel=1e-6)


# Other ways to run


def test_autocast_leaves_no_rounded_weights_behind():
    model = compacted().float()
    before = logits(model, **INPUTS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**INPUTS).loss
        logits(model, **INPUTS)
    loss.backward()
    assert all(p.grad.dtype is torch.float32 for p in trained_parameters(model))
    model.zero_grad()
    torch.testing.assert_close(logits(model, **INPUTS), before, rtol=0, atol=1e-6)


def test_autocast_is_as_by_formula():
    """In bfloat16, up to its rounding."""
    model = compacted().float()
    found = {}
    for name in ("found", "expected"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            if name == "found":
                loss = model(**INPUTS).loss
            else:
                found[name] = expected(model).gradients
        if name == "found":
            loss.backward()
            found[name] = gradients_of(model)
    assert_same(found["found"], found["expected"], 0.05)


def test_inference_mode_and_training_again():
    model = compacted()
    with torch.inference_mode():
        model(**INPUTS)
    assert_as_by_formula(model, INPUTS, base())
    with torch.inference_mode():
        model(**INPUTS)
    fused_step_after_training(model)
    assert_as_by_formula(model, INPUTS, base())


def fused_step_after_training(model):
    model(**INPUTS).loss.backward()
    fused_step(model)


def test_a_frozen_adapter_used_in_inference_mode_and_outside_of_it():
    model = compacted().requires_grad_(False)
    with torch.inference_mode():
        model(**INPUTS)
    embedded = model.get_base_model().shared(INPUTS["input_ids"]).requires_grad_()
    model(inputs_embeds=embedded, labels=INPUTS["labels"]).loss.backward()
    assert embedded.grad.any()


def test_frozen_parameters_stay_without_gradients():
    model = compacted()
    wanted = expected(model).gradients
    for name in ("A", "up_t"):
        model.get_parameter(f"{WEIGHTS}.{name}").requires_grad_(False)
        wanted.pop(f"base_model.model.adapters.compacter_weights.{name}")
    assert_same(gradients(model, INPUTS), wanted)
    assert model.get_parameter(f"{WEIGHTS}.A").grad is None


def test_gradients_and_moments_only_of_what_is_trained():
    model = compacted()
    model(**INPUTS).loss.backward()
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert {n for n, p in model.named_parameters() if p.grad is not None} == trained
    optimizer = torch.optim.AdamW(trained_parameters(model))
    optimizer.step()
    assert len(optimizer.state) == len(trained)
    assert len(trained) <= 10


def test_a_block_that_runs_twice():
    model, bare = compacted(), base().double()
    for blocks in (model.get_base_model().encoder.block, bare.encoder.block):
        blocks.append(blocks[1])
    with saved(model) as folder:
        wanted = run_by_formula(bare, folder, INPUTS)
    assert_same(gradients(model, INPUTS), wanted.gradients)


def test_layers_that_are_skipped_at_random():
    """LayerDrop. The part of a skipped layer in the gradient is zero, as by formula."""

    def made():
        bart = TINY["bart"]()
        bart.model.encoder.layerdrop = 0.5
        return bart.train()

    inputs = inputs_of("bart")
    model = get_peft_model(made(), CompacterConfig(bottleneck=8)).double()
    scramble(model, std=0.1)
    skipped = set()
    for seed in range(4):
        bare = made()
        torch.manual_seed(seed)
        found = gradients(model, inputs)
        torch.manual_seed(seed)
        wanted = expected_of(model, bare, inputs).gradients
        assert_same(found, wanted)
        down = wanted["base_model.model.adapters.compacter_weights.down_s"]
        skipped.add(sum(not part.any() for part in down))
    assert len(skipped) > 1


@pytest.mark.parametrize("name", ["down_s", "layernorm_weight"])
def test_places_that_did_not_run_have_gradients_of_zero(name):
    """In an encoder that is called alone."""
    model = compacted()
    model.get_base_model().encoder(input_ids=INPUTS["input_ids"]).last_hidden_state.sum().backward()
    (paths,) = (
        stack["paths"] for stack in model.peft_config["default"].places if name in stack["tensors"]
    )
    gradient = model.get_parameter(f"{WEIGHTS}.{name}").grad
    for path, part in zip(paths, gradient, strict=True):
        assert bool(part.any()) == path.startswith("encoder."), path

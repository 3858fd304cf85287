"""When the matrices of all layers are built, how often, and what is kept."""

from __future__ import annotations

import copy
from collections import Counter
from functools import partial

import pytest
import torch
from peft import get_peft_model
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from transformers import T5Config, T5ForConditionalGeneration

import compacter
from adapting import attach_tiny, inputs_of, logits, scramble, train
from compacter import CompacterConfig
from compacter.nn import LPHM, bottleneck
from compacter.tuners.bottleneck.layer import BottleneckLayer
from tiny_models import TINY

BUILT_METHODS = ("adapter-lowrank", "phm-adapter", "compacter", "compacter++")


@pytest.fixture
def builds(monkeypatch):
    """Counts builds: one of all down- and one of all up-projections, whatever their number."""
    calls = Counter()
    formula = LPHM.matrices.__func__

    def counted(cls, factors, A=None):
        calls["down" if factors["s"].shape[2] > factors["t"].shape[3] else "up"] += 1
        calls["layers"] += len(factors["s"])
        return formula(cls, factors, A)

    monkeypatch.setattr(LPHM, "matrices", classmethod(counted))
    return calls


def compacted(**settings):
    """In float64, where the order of operations does not show."""
    model = attach_tiny("t5", "compacter", **{"bottleneck": 8, **settings}).double()
    scramble(model)
    return model


def by_formula(model):
    """A copy whose layers compute by the plain formula, each for itself."""
    clone = copy.deepcopy(model)
    for module in clone.modules():
        if isinstance(module, BottleneckLayer):
            module.forward = partial(plain, module)
    return clone


def plain(layer: BottleneckLayer, *args):
    adapter, y = layer.shared.active, layer.base_layer(*args)
    if adapter not in layer.activations:
        return y
    down, up = layer.compacter_down[adapter], layer.compacter_up[adapter]
    return bottleneck(y, down, layer.activations[adapter], up, layer.shared.get("A", adapter))


def gradients(model, inputs):
    model.zero_grad()
    model(**inputs).loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_same(found, expected, tolerance=1e-6):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = max(1.0, value.abs().max().item())
        torch.testing.assert_close(found[name] / scale, value / scale, rtol=0, atol=tolerance)


@pytest.mark.parametrize("family", ["t5", "llama", "bert"])
@pytest.mark.parametrize("method", BUILT_METHODS)
def test_same_logits_and_gradients_as_the_formula_of_each_layer(method, family):
    model, inputs = attach_tiny(family, method), inputs_of(family)
    scramble(model, std=0.1)  # in float32, as in use
    reference = by_formula(model)
    torch.testing.assert_close(
        logits(model, **inputs), logits(reference, **inputs), rtol=0, atol=1e-6
    )
    assert_same(gradients(model, inputs), gradients(reference, inputs))


def test_dropped_layers_and_several_adapters():
    model, inputs = compacted(), inputs_of("t5")
    model.add_adapter("top", CompacterConfig(bottleneck=8, drop_layers=1))
    model.add_adapter("wide", CompacterConfig(bottleneck=12, n=2, rank=2, share_A=False))
    for name in ("top", "wide", "default", "top"):
        model.set_adapter(name)
        scramble(model, std=0.1)
        expected = gradients(by_formula(model), inputs)
        assert_same(gradients(model, inputs), expected)


def test_one_build_for_a_forward_pass(builds):
    model, inputs = compacted().train(), inputs_of("t5")
    loss = model(**inputs).loss
    assert builds == {"down": 1, "up": 1, "layers": 16}
    builds.clear()
    loss.backward()
    assert not builds
    model(**inputs)
    assert builds == {"down": 1, "up": 1, "layers": 16}


def test_one_build_for_encoder_and_decoder_called_one_after_the_other(builds):
    model, inputs = compacted(), inputs_of("t5")
    expected = gradients(by_formula(model), inputs)
    builds.clear()
    bare = model.get_base_model()
    encoded = bare.encoder(input_ids=inputs["input_ids"])
    model.zero_grad()
    model(encoder_outputs=encoded, labels=inputs["labels"]).loss.backward()
    assert builds == {"down": 1, "up": 1, "layers": 16}
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert_same(found, expected)


def test_decoding_builds_once_and_keeps(builds):
    model, ids = compacted(), inputs_of("t5")["input_ids"]
    model.generate(input_ids=ids, max_new_tokens=6, num_beams=2)
    assert builds == {"down": 1, "up": 1, "layers": 16}
    model.generate(input_ids=ids, max_new_tokens=6)
    logits(model, **inputs_of("t5"))
    assert builds["down"] == 1
    train(model, inputs_of("t5"), steps=1)
    builds.clear()
    model.generate(input_ids=ids, max_new_tokens=6)
    assert builds == {"down": 1, "up": 1, "layers": 16}


def test_a_frozen_adapter_is_kept_with_gradients_enabled_too(builds):
    model, inputs = compacted(), inputs_of("t5")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model(**inputs)
    model(**inputs)
    assert builds["down"] == 1


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
SLOW = "base_model.model.shared_parameters.compacter_A.default"
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


def test_decoding_keeps_nothing_while_there_are_gradients(builds):
    model, inputs = compacted(), inputs_of("t5")
    model(**inputs).loss.backward()
    model.generate(input_ids=inputs["input_ids"], max_new_tokens=3)
    assert not any(m.built for m in BottleneckLayer.all_with("default", shared_by(model)))
    model.zero_grad()
    builds.clear()
    model.generate(input_ids=inputs["input_ids"], max_new_tokens=6)
    assert builds == {"down": 1, "up": 1, "layers": 16}


def shared_by(model):
    return model.get_base_model().shared_parameters


def test_disabled_adapters_are_not_used():
    model, inputs = compacted(), inputs_of("t5")
    logits(model, **inputs)
    with model.disable_adapter():
        assert torch.equal(logits(model, **inputs), logits(TINY["t5"]().double(), **inputs))


def test_two_forward_passes_before_two_backward_passes():
    model, inputs = compacted(), inputs_of("t5")
    half = {name: value[:1] for name, value in inputs.items()}
    expected = gradients(by_formula(model), inputs)
    for name, gradient in gradients(by_formula(model), half).items():
        expected[name] += gradient
    model.zero_grad()
    losses = [model(**inputs).loss, model(**half).loss]
    for loss in losses:
        loss.backward()
    assert_same({n: p.grad for n, p in model.named_parameters() if p.grad is not None}, expected)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing(reentrant, builds):
    model, inputs = compacted(), inputs_of("t5") | {"use_cache": False}
    expected = gradients(by_formula(model), inputs)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.train()
    for _ in range(2):
        model.zero_grad()
        builds.clear()
        loss = model(**inputs).loss
        assert builds == {"down": 1, "up": 1, "layers": 16}
        loss.backward()
        found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        assert_same(found, expected)


def test_checkpointing_a_direct_call_of_the_encoder():
    model, ids = compacted(), inputs_of("t5")["input_ids"]
    bare, reference = model.get_base_model(), by_formula(model).get_base_model()
    reference.encoder(input_ids=ids).last_hidden_state.square().sum().backward()
    bare.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    model(**inputs_of("t5"), use_cache=False)  # whose graph is thrown away
    bare.encoder(input_ids=ids).last_hidden_state.square().sum().backward()
    expected = {n: p.grad for n, p in reference.named_parameters() if p.grad is not None}
    found = {n: p.grad for n, p in bare.named_parameters() if p.grad is not None}
    assert_same(found, expected)


def test_a_copy_made_between_forward_and_backward():
    model, inputs = compacted(), inputs_of("t5")
    loss = model(**inputs).loss
    clone = copy.deepcopy(model)
    loss.backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    change_in_place(model)
    assert_same(gradients(clone, inputs), expected)


def test_built_in_inference_mode_and_used_outside_of_it():
    model, inputs = compacted(), inputs_of("t5")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with torch.inference_mode():
        model(**inputs)
    embedded = model.get_base_model().shared(inputs["input_ids"]).requires_grad_()
    model(inputs_embeds=embedded, labels=inputs["labels"]).loss.backward()
    assert embedded.grad.any()


def test_function_transforms_fall_back_to_the_formula():
    model, inputs = compacted(), inputs_of("t5")
    parameters = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}

    def loss(values):
        return functional_call(model, values, kwargs=inputs).loss

    expected = gradients(model, inputs)
    assert_same(torch.func.grad(loss)(parameters), expected)
    slow = {SLOW: parameters[SLOW].clone().requires_grad_()}  # A alone, without a transform
    loss(slow).backward()
    assert_same({SLOW: slow[SLOW].grad}, {SLOW: expected[SLOW]})


def test_a_layer_whose_parameters_are_elsewhere_is_left_out(builds):
    """As under a sharded data parallel: all but the running layer's parameters are empty."""
    model, ids = compacted(), inputs_of("t5")["input_ids"]
    bare = model.get_base_model()
    expected = bare.encoder(input_ids=ids).last_hidden_state
    for name, parameter in model.named_parameters():
        if ".decoder." in name and ".compacter_down." in name:
            parameter.data = torch.empty(0)
    builds.clear()
    torch.testing.assert_close(bare.encoder(input_ids=ids).last_hidden_state, expected)
    assert builds == {"down": 1, "up": 1, "layers": 8}


def test_autocast_builds_in_full_precision():
    model, inputs = compacted().float(), inputs_of("t5")
    expected = logits(model, **inputs)
    model.eval()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits(model, **inputs)
    torch.testing.assert_close(logits(model, **inputs), expected, rtol=0, atol=1e-6)


def saved_activations(method, **settings):
    """Bytes that autograd keeps for the backward pass, without those of parameters; and the same
    for the matrices that are built."""
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=64,
        d_model=48,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
    )
    base = T5ForConditionalGeneration(config)
    model = compacter.attach(base, method, bottleneck=12, **settings).train()
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    held, sizes = [], {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            held.append(tensor)  # so that no address is used twice
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.randint(3, 64, (4, 32))
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(input_ids=ids, labels=ids[:, :4].contiguous()).loss
    loss.backward()
    return sum(sizes.values())


@pytest.mark.parametrize("settings", [{"n": 4}, {"n": 2, "rank": 3}])
def test_saved_activations_are_those_of_the_dense_adapter_and_the_built_weights(settings):
    adapters, k, d = 8, 48, 12
    dense = saved_activations("adapter")
    assert saved_activations("compacter", **settings) == dense + adapters * 2 * k * d * 4


def test_gradients_and_moments_only_of_what_is_trained():
    model = compacted()
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert gradients(model, inputs_of("t5")).keys() == trained
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    optimizer.step()
    assert len(optimizer.state) == len(trained)


def test_layers_that_are_skipped_at_random():
    """LayerDrop: a block that does not run gives its adapters no gradient, by which a step would
    move them all the same."""
    base = TINY["bart"]()
    base.model.encoder.layerdrop = 0.5
    model = get_peft_model(base, CompacterConfig(bottleneck=8)).train()
    inputs = inputs_of("bart")
    for seed in range(4):
        torch.manual_seed(seed)
        expected = gradients(by_formula(model), inputs)
        torch.manual_seed(seed)
        assert_same(gradients(model, inputs), expected)


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_a_compiler_is_shown_one_build(family):
    """Beyond the dense adapter's, the graph has one product for down and one for up."""

    def products(method):
        torch._dynamo.reset()
        graphs = []

        def backend(graph, inputs):
            graphs.append(graph)
            return graph.forward

        model, inputs = attach_tiny(family, method), inputs_of(family)
        scramble(model, std=0.1)
        found = torch.compile(model, backend=backend, fullgraph=True)(**inputs)
        torch.testing.assert_close(found.logits, model(**inputs).logits)
        (graph,) = graphs
        return sum("matmul" in str(node.target) for node in graph.graph.nodes)

    assert products("compacter") == products("adapter") + 2

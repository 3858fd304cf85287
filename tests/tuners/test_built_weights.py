"""When the matrices of all layers are built, how often, and what is saved for the backward pass."""

from __future__ import annotations

import copy

import pytest
import torch
from peft import get_peft_model
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from transformers import T5Config, T5ForConditionalGeneration

import compacter
from adapting import attach_tiny, inputs_of, logits, scramble
from by_formula import SLOW, assert_same, by_formula, compacted, gradients
from compacter import CompacterConfig
from compacter.nn import Builder
from tiny_models import TINY

BUILT_METHODS = ("adapter-lowrank", "phm-adapter", "compacter", "compacter++")


@pytest.mark.parametrize("family", ["t5", "llama", "bert"])
@pytest.mark.parametrize("method", BUILT_METHODS)
def test_same_logits_and_gradients_as_the_formula_of_each_layer(method, family):
    """In float32, as in use, up to its rounding, which other CPUs do otherwise; in float64 there is
    next to none."""
    model, inputs = attach_tiny(family, method), inputs_of(family)
    scramble(model, std=0.1)
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
        model, reference = model.to(dtype), by_formula(model.to(dtype))
        found, expected = ({"logits": logits(m, **inputs)} for m in (model, reference))
        assert_same(found, expected, tolerance)
        assert_same(gradients(model, inputs), gradients(reference, inputs), tolerance)


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
    assert builds == {"builds": 1, "projections": 16}
    builds.clear()
    loss.backward()
    assert not builds
    model(**inputs)
    assert builds == {"builds": 1, "projections": 16}


def with_other_data(model):
    slow = model.get_parameter(SLOW)
    slow.data = 2 * slow.data
    return model


def moved(model):
    return model.float().double()


@pytest.mark.parametrize("change", [with_other_data, moved, copy.deepcopy])
def test_layers_are_sorted_by_shape_once_for_many_steps(change, monkeypatch):
    """And again when a parameter is elsewhere."""
    sort, sorted_ones = Builder.__init__, []

    def counted(builder, projections):
        sorted_ones.append(len(projections))
        sort(builder, projections)

    monkeypatch.setattr(Builder, "__init__", counted)
    model, inputs = compacted().train(), inputs_of("t5")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    for _ in range(3):
        model(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert sorted_ones == [16]
    model = change(model)
    assert_same(gradients(model, inputs), gradients(by_formula(model), inputs))
    assert sorted_ones == [16, 16]


def test_one_build_for_a_pass_in_which_a_block_runs_twice(builds):
    model, inputs = compacted(), inputs_of("t5")
    blocks = model.get_base_model().encoder.block
    blocks.append(blocks[1])
    expected = gradients(by_formula(model), inputs)
    builds.clear()
    assert_same(gradients(model, inputs), expected)
    assert builds == {"builds": 1, "projections": 16}


def test_switching_in_the_middle_of_a_training_pass():
    model, inputs = compacted(), inputs_of("t5")
    model.add_adapter("other", CompacterConfig(bottleneck=8))
    model.set_adapter("other")
    scramble(model)

    def found(model):
        model.set_adapter("default")
        switch = model.get_base_model().decoder.register_forward_pre_hook(
            lambda *_: model.set_adapter("other")
        )
        answer = gradients(model, inputs)
        switch.remove()
        return answer

    answer = found(model)
    assert_same(answer, found(by_formula(model)))
    assert any(".other" in name for name in answer)


def test_one_build_for_encoder_and_decoder_called_one_after_the_other(builds):
    model, inputs = compacted(), inputs_of("t5")
    expected = gradients(by_formula(model), inputs)
    builds.clear()
    bare = model.get_base_model()
    encoded = bare.encoder(input_ids=inputs["input_ids"])
    model.zero_grad()
    model(encoder_outputs=encoded, labels=inputs["labels"]).loss.backward()
    assert builds == {"builds": 1, "projections": 16}
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert_same(found, expected)


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
        assert builds == {"builds": 1, "projections": 16}
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
    scramble(model)
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
    assert builds == {"builds": 1, "projections": 8}


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
    """Beyond the dense adapter's, the graph has one product, for down and up."""

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

    assert products("compacter") == products("adapter") + 1

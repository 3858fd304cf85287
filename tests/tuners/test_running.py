"""However the model is run: decoding, checkpointing, half precision, compiled, called in part."""

from __future__ import annotations

import copy
from functools import partial

import accelerate
import pytest
import torch
from peft import PeftModel, get_peft_model
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

import compacter
from adapting import (
    ADAPTER_METHODS,
    CONFIGS,
    TUNER_METHODS,
    attach_tiny,
    changed,
    inputs_of,
    logits,
    parameters_of,
    save,
    scramble,
    scrambled,
    train,
)
from by_formula import assert_same, gradients, install, saved
from compacter import CompacterConfig
from tiny_models import TINY

WEIGHTS = "base_model.model.adapters.compacter_weights.default"
"""The module that has the parameters of the adapter."""


def test_generate_with_beams_and_several_sequences(config):
    model, inputs = scrambled(config), inputs_of("t5")
    ids = inputs["input_ids"]
    settings = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 5, "do_sample": False}
    tokens = model.generate(input_ids=ids, **settings)
    assert len(tokens) == 2 * len(ids)
    assert torch.equal(
        tokens[:2], model.generate(input_ids=ids[:1], **settings)[:, : tokens.shape[1]]
    )


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("family", ["t5", "llama"])
def test_gradient_checkpointing_gives_the_same_gradients(config, family, reentrant):
    def gradients(checkpointing: bool):
        model = get_peft_model(TINY[family](), config())
        scramble(model, std=0.1)
        if checkpointing:
            model.enable_input_require_grads()
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.train()
        model(**inputs_of(family), use_cache=False).loss.backward()
        return {n: p.grad for n, p in model.named_parameters() if p.requires_grad}

    plain, checkpointed = gradients(False), gradients(True)
    assert plain.keys() == checkpointed.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(checkpointed[name], gradient, msg=name)


def save_products(context, operation, *args, **kwargs):
    is_product = operation in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize("method", ["adapter", "adapter-lowrank", "compacter"])
def test_selective_checkpointing_gives_the_same_gradients(method):
    """It keeps some results of a block, by the order of operations, and wants them unchanged."""
    model, inputs = attach_tiny("llama", method), inputs_of("llama")
    scramble(model, std=0.1)
    model(**inputs, use_cache=False).loss.backward()
    expected = gradients_of(model)
    contexts = partial(create_selective_checkpoint_contexts, save_products)
    model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})
    model.train()
    for _ in range(2):
        model(**inputs, use_cache=False).loss.backward()
        for name, gradient in gradients_of(model).items():
            torch.testing.assert_close(gradient, expected[name], msg=name)


@pytest.mark.parametrize("family", ["t5", "llama", "bert"])
@pytest.mark.parametrize("method", TUNER_METHODS)
def test_half_precision_base_with_full_precision_adapter(family, method, tmp_path):
    """The norms' copies are float32 too: steps of 3e-3 vanish in a bfloat16 of value 1."""
    base = TINY[family]().to(torch.bfloat16)
    settings = {"drop_layers": 1} if method == "adapter-drop" else {}
    if method == "intrinsic-said":
        settings["intrinsic_dim"] = 400
    model = compacter.attach(base, method, **settings)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert {p.dtype for n, p in trained.items() if "modules_to_save" not in n} == {torch.float32}
    inputs = inputs_of(family)
    before = parameters_of(model)
    train(model, inputs, lr=3e-3)
    assert {n for n in changed(before, model) if "modules_to_save" not in n} == {
        n for n in trained if "modules_to_save" not in n
    }
    expected = logits(model, **inputs)
    assert expected.dtype == torch.bfloat16
    fresh = TINY[family]().to(torch.bfloat16)
    loaded = PeftModel.from_pretrained(fresh, save(model, tmp_path)).eval()
    assert torch.equal(logits(loaded, **inputs), expected)


def test_adapter_in_half_precision_too(config):
    model = get_peft_model(TINY["t5"]().to(torch.bfloat16), config(), autocast_adapter_dtype=False)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert torch.isfinite(logits(model, **inputs_of("t5"))).all()


def test_autocast(config):
    model, inputs = scrambled(config), inputs_of("t5")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**inputs).loss
    loss.backward()
    trained = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    assert all(g is not None and torch.isfinite(g).all() for g in trained.values())
    assert loss.item() == pytest.approx(model(**inputs).loss.item(), rel=0.05)


@pytest.mark.parametrize("name", ["compacter", "bitfit"])
def test_compiles_without_graph_breaks(name):
    torch._dynamo.reset()
    inputs = inputs_of("llama")
    model = get_peft_model(TINY["llama"](), CONFIGS[name]())
    scramble(model)
    expected = model(**inputs)
    expected.loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}
    model.zero_grad()
    found = torch.compile(model, backend="aot_eager", fullgraph=True)(**inputs)
    torch.testing.assert_close(found.logits, expected.logits)
    found.loss.backward()
    for parameter_name, parameter in model.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, gradients[parameter_name])


def test_intrinsic_said_runs_under_compile():
    """Its projections come from numpy's generator, outside of the graph."""
    torch._dynamo.reset()
    model, inputs = scrambled(CONFIGS["intrinsic-said"]), inputs_of("t5")
    found = torch.compile(model, backend="aot_eager")(**inputs)
    torch.testing.assert_close(found.logits, model(**inputs).logits)


def replica_of(model):
    """As `nn.DataParallel` makes them, which needs several devices: parameters become plain
    attributes, through which gradients flow back."""
    copies = {module: module._replicate_for_data_parallel() for module in model.modules()}
    for module, replica in copies.items():
        for name, child in module._modules.items():
            replica._modules[name] = None if child is None else copies[child]
        for name, parameter in module._parameters.items():
            if parameter is None:
                replica._parameters[name] = None
            else:
                setattr(replica, name, parameter.clone())
    return copies[model]


def gradients_of(model):
    found = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    model.zero_grad()
    return found


@pytest.mark.parametrize("family", ["t5", "bert"])
@pytest.mark.parametrize(
    ("method", "settings"),
    [(method, {}) for method in TUNER_METHODS]
    + [(method, {"train_layer_norms": False}) for method in ("adapter", "compacter")],
)
def test_replicas_of_data_parallel(method, settings, family):
    model = attach_tiny(family, method, **settings)
    scramble(model, std=0.1)
    inputs = inputs_of(family)
    expected = model(**inputs)
    expected.loss.backward()
    gradients = gradients_of(model)
    for _ in range(2):  # with matrices of the original built, and not
        found = replica_of(model)(**inputs)
        torch.testing.assert_close(found.logits, expected.logits)
        found.loss.backward()
        for name, gradient in gradients_of(model).items():
            torch.testing.assert_close(gradient, gradients[name], msg=name)
        logits(model, **inputs)


@pytest.mark.parametrize("method", ["compacter", "adapter"])
def test_a_parametrized_bias(method):
    class Twice(torch.nn.Module):
        def forward(self, bias):
            return 2.0 * bias

    model, inputs = attach_tiny("t5", method), inputs_of("t5")
    scramble(model)
    weights = model.get_submodule(WEIGHTS)
    with torch.no_grad():
        weights.down_bias.mul_(2.0)
        expected = logits(model, **inputs)
        weights.down_bias.mul_(0.5)
    parametrize.register_parametrization(weights, "down_bias", Twice())
    torch.testing.assert_close(logits(model, **inputs), expected)
    names = ["default"] * len(expected)
    torch.testing.assert_close(logits(model, **inputs, adapter_names=names), expected)
    parametrize.remove_parametrizations(weights, "down_bias")
    torch.testing.assert_close(logits(model, **inputs), expected)


def test_a_direct_call_of_the_encoder_uses_the_adapter():
    model, inputs = scrambled(CONFIGS["compacter"]), inputs_of("t5")
    base = TINY["t5"]()
    ids = inputs["input_ids"]
    adapted = model.get_base_model().encoder(input_ids=ids).last_hidden_state
    assert not torch.allclose(adapted, base.encoder(input_ids=ids).last_hidden_state, atol=1e-2)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("method", ["adapter", "compacter"])
def test_a_trace_can_be_saved(method, tmp_path):
    model, ids = attach_tiny("t5", method).double(), inputs_of("t5")["input_ids"]
    scramble(model)

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model.get_base_model()

        def forward(self, ids):
            return self.model.encoder(input_ids=ids).last_hidden_state

    encoder = Encoder()
    with torch.no_grad():
        encoder(ids)  # which keeps what it has built
        trace = torch.jit.trace(encoder, (ids,), check_trace=False)
    trace.save(tmp_path / "trace.pt")
    with torch.no_grad():
        torch.testing.assert_close(torch.jit.load(tmp_path / "trace.pt")(ids), encoder(ids))
        scramble(model)
        torch.testing.assert_close(trace(ids), encoder(ids))  # nothing became a constant


def test_intrinsic_said_keeps_no_projected_weight_for_the_backward_pass():
    """P theta is as large as the model; only what a plain layer keeps may be kept."""
    model, inputs = scrambled(CONFIGS["intrinsic-said"]), inputs_of("t5")
    weights = {p.data_ptr() for p in model.parameters()}
    shapes = {tuple(p.shape) for p in model.get_base_model().parameters() if p.dim() == 2}
    kept = []

    def pack(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(**inputs).loss
    projected = [
        t
        for t in kept
        if tuple(t.shape) in shapes | {s[::-1] for s in shapes} and t.data_ptr() not in weights
    ]
    assert kept
    assert not projected
    loss.backward()


@pytest.mark.parametrize("method", [*ADAPTER_METHODS, "bitfit"])
def test_offloaded_by_accelerate(method):
    """Parameters are then elsewhere unless the module that has them is called."""
    model, inputs = attach_tiny("t5", method), inputs_of("t5")
    scramble(model)
    ids, expected = inputs["input_ids"], logits(model, **inputs)
    written = model.generate(input_ids=ids, max_new_tokens=6)
    accelerate.cpu_offload(model, execution_device="cpu")
    assert all(parameter.is_meta for parameter in model.parameters())
    torch.testing.assert_close(logits(model, **inputs), expected, rtol=0, atol=1e-5)
    assert torch.equal(model.generate(input_ids=ids, max_new_tokens=6), written)


@pytest.mark.parametrize(
    ("method", "factor"), [("adapter", "down_W"), ("phm-adapter", "up_B"), ("compacter", "down_s")]
)
def test_a_pruned_factor(method, factor):
    """Pruning makes a parameter anew whenever the module that has it is called."""
    model, inputs = attach_tiny("t5", method, bottleneck=8).double(), inputs_of("t5")
    scramble(model)
    pruned, weights = copy.deepcopy(model), model.get_submodule(WEIGHTS)
    prune.l1_unstructured(pruned.get_submodule(WEIGHTS), factor, amount=0.5)
    mask = dict(pruned.get_submodule(WEIGHTS).named_buffers())[f"{factor}_mask"]
    with torch.no_grad():
        weights.get_parameter(factor).mul_(mask)
    expected = gradients(model, inputs)
    name = f"base_model.model.adapters.compacter_weights.{factor}"
    expected[f"{name}_orig"] = mask * expected.pop(name)
    for _ in range(2):
        torch.testing.assert_close(logits(pruned, **inputs), logits(model, **inputs))
        assert_same(gradients(pruned, inputs), expected)


def test_in_a_model_that_calls_all_its_children():
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8))
    bare = copy.deepcopy(base)
    model = get_peft_model(base, CompacterConfig(bottleneck=4, target_modules=["0"]))
    scramble(model)
    x = torch.randn(3, 6)
    with saved(model) as folder:
        install(bare, folder)
    torch.testing.assert_close(model(x), bare(x))

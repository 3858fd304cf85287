"""Under whatever looks at operations: functions of torch.func, compilers, modes, checkpoints."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from adapting import attach_tiny, inputs_of, logits, scramble
from by_formula import (
    WEIGHTS,
    assert_as_by_formula,
    assert_same,
    compacted,
    expected_of,
    gradients,
    gradients_of,
    install,
    name_in_file,
    saved,
)
from tiny_models import TINY

INPUTS = inputs_of("t5")
CLOSE = 1e-6
"""Where norms are transformers' own, which take means in float32."""


def expected(model):
    return expected_of(model, TINY["t5"](), INPUTS)


def values_of(model):
    return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}


def as_in_file(named):
    return {name_in_file(name): value for name, value in named.items()}


@pytest.fixture(params=["fresh", "used"])
def model(request):
    """Transforms come first, or after ordinary passes."""
    made = compacted()
    if request.param == "used":
        logits(made, **INPUTS)
        made(**INPUTS)
    return made


def test_gradients_of_a_functional_call(model):
    wanted = expected(model).gradients

    def loss(values):
        return functional_call(model, values, kwargs=INPUTS).loss

    assert_same(as_in_file(torch.func.grad(loss)(values_of(model))), wanted, CLOSE)
    given = {name: value.requires_grad_() for name, value in values_of(model).items()}
    found = torch.autograd.grad(loss(given), [*given.values()])
    assert_same(as_in_file(dict(zip(given, found, strict=True))), wanted, CLOSE)
    assert_as_by_formula(model, INPUTS, TINY["t5"]())


def test_one_tensor_replaced(model):
    """A alone, by a tensor that is no parameter."""
    name = f"{WEIGHTS}.A"
    slow = (2 * model.get_parameter(name).detach()).requires_grad_()
    loss = functional_call(model, {name: slow}, kwargs=INPUTS).loss
    (found,) = torch.autograd.grad(loss, slow)
    with torch.no_grad():
        model.get_parameter(name).mul_(2)
    wanted = expected(model)
    assert loss.item() == pytest.approx(wanted.loss.item())
    assert_same({"A": found}, {"A": wanted.gradients[name_in_file(name)]}, CLOSE)


def test_vmap_over_parameters(model):
    values = values_of(model)
    several = {n: torch.stack([v, 1.1 * v, 0.5 * v]) for n, v in values.items()}

    def run(values):
        return functional_call(model, values, kwargs=INPUTS).logits

    def loss(values):
        return functional_call(model, values, kwargs=INPUTS).loss

    found, gradients = (
        torch.func.vmap(run)(several),
        torch.func.vmap(torch.func.grad(loss))(several),
    )
    for index in range(3):
        with torch.no_grad():
            for name, value in several.items():
                model.get_parameter(name).copy_(value[index])
        wanted = expected(model)
        assert_same({"logits": found[index]}, {"logits": wanted.logits}, CLOSE)
        own = {name: gradient[index] for name, gradient in gradients.items()}
        assert_same(as_in_file(own), wanted.gradients, CLOSE)


@pytest.mark.parametrize("train_layer_norms", [True, False])
def test_gradients_of_gradients(train_layer_norms):
    """Of the squared length of the gradient, as penalties have them."""
    model = compacted(train_layer_norms=train_layer_norms)
    bare = TINY["t5"]().double()
    with saved(model) as folder:
        tensors = install(bare, folder)
    for each in (model.get_base_model(), bare):
        each.set_attn_implementation("eager")  # the other has no gradients of gradients
    found = []
    for module, parameters in (
        (model, [p for p in model.parameters() if p.requires_grad]),
        (bare, [*tensors.values()]),
    ):
        first = torch.autograd.grad(module(**INPUTS).loss, parameters, create_graph=True)
        penalty = sum(gradient.square().sum() for gradient in first)
        found.append(torch.autograd.grad(penalty, parameters))
    names = [name_in_file(n) for n, p in model.named_parameters() if p.requires_grad]
    mine, theirs = (
        dict(zip(names, found[0], strict=True)),
        dict(zip(tensors, found[1], strict=True)),
    )
    assert_same(mine, theirs, CLOSE)


@pytest.mark.parametrize("name", ["A", "down_s", "up_bias", "layernorm_weight"])
def test_forward_mode(model, name):
    model.get_base_model().set_attn_implementation("eager")  # the other has no forward mode
    path = f"{WEIGHTS}.{name}"
    value = model.get_parameter(path).detach()
    tangent = torch.randn_like(value)
    with forward_ad.dual_level():
        dual = {path: forward_ad.make_dual(value, tangent)}
        loss = functional_call(model, dual, kwargs=INPUTS).loss
        found = forward_ad.unpack_dual(loss).tangent
    wanted = (expected(model).gradients[name_in_file(path)] * tangent).sum()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["A", "down_s"])
def test_a_product_with_the_jacobian(model, name):
    model.get_base_model().set_attn_implementation("eager")
    path = f"{WEIGHTS}.{name}"
    value = model.get_parameter(path).detach()
    tangent = torch.randn_like(value)
    _, found = torch.func.jvp(
        lambda value: functional_call(model, {path: value}, kwargs=INPUTS).loss,
        (value,),
        (tangent,),
    )
    wanted = (expected(model).gradients[name_in_file(path)] * tangent).sum()
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_many_gradients_at_once():
    model = compacted()
    parameters = [p for p in model.parameters() if p.requires_grad]
    output = model(**INPUTS).logits
    arriving = torch.randn(3, *output.shape, dtype=output.dtype)
    many = torch.autograd.grad(
        output, parameters, arriving, is_grads_batched=True, retain_graph=True
    )
    for index, one in enumerate(arriving):
        each = torch.autograd.grad(output, parameters, one, retain_graph=True)
        for found, wanted in zip(many, each, strict=True):
            torch.testing.assert_close(found[index], wanted, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("whole", [True, False], ids=["PeftModel", "base model"])
def test_compiled_training(model, whole):
    """The weights are not constants of the graph, and nothing is compiled anew after a step."""
    torch._dynamo.reset()
    compiled = torch.compile(
        model if whole else model.get_base_model(), backend="aot_eager", fullgraph=True
    )
    counts = []
    for _ in range(3):
        model.zero_grad()
        wanted = expected(model)
        output = compiled(**INPUTS)
        output.loss.backward()
        assert_same({"logits": output.logits.detach()}, {"logits": wanted.logits}, CLOSE)
        assert_same(gradients_of(model), wanted.gradients, CLOSE)
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
        torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1).step()
    assert counts[0] == counts[2]


def test_one_compiled_layer():
    """As `compile_repeated_blocks` does it: the same graph for all blocks, if it can be."""
    torch._dynamo.reset()
    model, inputs = attach_tiny("llama", "compacter").double(), inputs_of("llama")
    scramble(model, std=0.1)
    wanted = expected_of(model, TINY["llama"](), inputs)
    for layer in model.get_base_model().model.layers:
        layer.compile(backend="aot_eager")
    for _ in range(2):
        assert_same(gradients(model, inputs), wanted.gradients, CLOSE)


@pytest.mark.parametrize("method", ["adapter", "compacter", "phm-adapter", "bitfit"])
@pytest.mark.parametrize("strict", [True, False])
def test_an_exported_model_follows_nothing_else(method, strict):
    model, inputs = attach_tiny("bert", method), inputs_of("bert")
    scramble(model, std=0.1)
    inputs.pop("labels")
    wanted = logits(model, **inputs)
    program = torch.export.export(model.get_base_model(), (), kwargs=inputs, strict=strict)
    torch.testing.assert_close(program.module()(**inputs).logits, wanted, rtol=1e-4, atol=1e-5)
    names = {name for name, _ in program.named_parameters()}
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert {n.removeprefix("base_model.model.") for n in trained} <= names


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def test_under_a_dispatch_mode(model):
    wanted = expected(model)
    with Watching():
        loss = model(**INPUTS).loss
        found = logits(model, **INPUTS)
    loss.backward()
    assert_same({"logits": found}, {"logits": wanted.logits}, CLOSE)
    assert_same(gradients_of(model), wanted.gradients, CLOSE)
    model.zero_grad()
    assert_as_by_formula(model, INPUTS, TINY["t5"]())


def save_products(context, operation, *args, **kwargs):
    aten = torch.ops.aten
    is_product = operation in (aten.mm.default, aten.addmm.default, aten.bmm.default)
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


def save_norms(context, operation, *args, **kwargs):
    aten = torch.ops.aten
    is_some = operation in (aten.mul.Tensor, aten.rsqrt.default, aten.mean.dim)
    return CheckpointPolicy.MUST_SAVE if is_some else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize("policy", [save_products, save_norms, [torch.ops.aten.mm.default]])
def test_selective_checkpointing_of_the_whole_model(model, policy):
    wanted = expected(model).gradients
    for _ in range(2):
        model.zero_grad()
        loss = checkpoint(
            lambda: model(**INPUTS).loss,
            use_reentrant=False,
            context_fn=partial(create_selective_checkpoint_contexts, policy),
        )
        loss.backward()
        assert_same(gradients_of(model), wanted, CLOSE)
    model.zero_grad()
    assert_as_by_formula(model, INPUTS, TINY["t5"]())

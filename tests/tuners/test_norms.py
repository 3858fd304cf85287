"""Trained layer norms: they compute what the model's own do, and keep less of it."""

from __future__ import annotations

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook

from adapting import attach_tiny, inputs_of, places_of, scramble
from compacter.bench import SavedTensors
from compacter.models import layer_norms
from tiny_models import TINY

RMS_FAMILIES = ["t5", "longt5-global", "llama", "qwen3", "olmo2"]


def with_trained_norms(family, stored_as):
    """A model whose bottlenecks do nothing, and a bare one that has the same norms: in float32, as
    adapters are kept, also where the model itself is stored in half precision."""
    model = attach_tiny(family, "compacter").to(stored_as)
    bare = TINY[family]().to(stored_as)
    trained = {}
    for name, parameter in model.named_parameters():
        if ".compacter_weights." in name:
            parameter.data = parameter.data.float()
            trained[name.rpartition(".")[2]] = parameter
    with torch.no_grad():
        for name, parameter in trained.items():
            if name.startswith("up_"):
                parameter.zero_()
            elif name.startswith("layernorm_"):
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    copies = []
    for name, paths in places_of(model).items():
        if name.startswith("layernorm_"):
            for index, path in enumerate(paths):
                norm = bare.get_submodule(path).float()
                attribute = name.removeprefix("layernorm_").partition("_")[0]
                with torch.no_grad():
                    norm.get_parameter(attribute).copy_(trained[name][index])
                norm.register_forward_pre_hook(lambda m, x: tuple(t.float() for t in x))
                norm.register_forward_hook(lambda m, x, y: y.to(stored_as))
                copies.append((trained[name], index, norm.get_parameter(attribute)))
    return model, bare, copies


@pytest.mark.parametrize("family", [*RMS_FAMILIES, "gemma", "bert", "gpt2"])
@pytest.mark.parametrize(
    ("stored_as", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 5e-2)]
)
def test_a_trained_norm_computes_what_the_models_own_does(family, stored_as, tolerance):
    model, bare, copies = with_trained_norms(family, stored_as)
    inputs = inputs_of(family)
    found, expected = model(**inputs), bare(**inputs)
    assert found.logits.dtype is stored_as
    for mine, theirs in ((found.logits, expected.logits), (found.loss, expected.loss)):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)
    found.loss.backward()
    expected.loss.backward()
    assert copies
    for parameter, index, norm in copies:
        if norm.grad is None:
            assert not parameter.grad[index].any()
        else:
            torch.testing.assert_close(
                parameter.grad[index], norm.grad, rtol=tolerance, atol=tolerance
            )


@pytest.mark.parametrize("family", RMS_FAMILIES)
def test_rms_norms_that_are_trained_save_less_than_the_models_own(family):
    """Written out as the models have them, each keeps two tensors of the size of its input."""

    def saved_bytes(ours):
        model = attach_tiny(family, "compacter", train_layer_norms=ours).train()
        if not ours:
            for norm in layer_norms(model.get_base_model()).values():
                norm.requires_grad_(True)
        with SavedTensors(model) as saved:
            loss = model(**inputs_of(family, length=32)).loss
        assert loss.requires_grad
        return saved.bytes()

    assert saved_bytes(ours=True) < 0.9 * saved_bytes(ours=False)


@pytest.mark.parametrize("with_gradients", [True, False])
@pytest.mark.parametrize("family", ["t5", "bert"])
def test_hooks_on_norms_run(family, with_gradients):
    """On the module in the model, and on the model's own norm inside of it."""
    model, inputs, seen = attach_tiny(family, "compacter"), inputs_of(family), []
    scramble(model)
    expected = model(**inputs).logits
    name = "encoder.final_layer_norm" if family == "t5" else "bert.embeddings.LayerNorm"
    norm = model.get_base_model().get_submodule(name)
    handles = [
        module.register_forward_hook(lambda module, args, output: seen.append(output.detach()))
        for module in (norm, norm.base_layer)
    ]
    with torch.set_grad_enabled(with_gradients):
        found = model(**inputs).logits
    assert len(seen) == 2
    torch.testing.assert_close(seen[0], seen[1])
    torch.testing.assert_close(found, expected)
    for handle in handles:
        handle.remove()
    model(**inputs)
    assert len(seen) == 2


def test_a_hook_can_change_what_a_norm_gives():
    model, inputs = attach_tiny("t5", "compacter"), inputs_of("t5")
    norm = model.get_base_model().encoder.final_layer_norm
    before = model(**inputs).logits
    for module in (norm, norm.base_layer):
        handle = module.register_forward_hook(lambda module, args, output: 0 * output)
        assert not torch.allclose(model(**inputs).logits, before)
        handle.remove()
    assert torch.equal(model(**inputs).logits, before)


def test_what_is_hooked_to_all_modules_happens_at_norms():
    model, inputs, seen = attach_tiny("t5", "compacter"), inputs_of("t5"), []
    handle = register_module_forward_hook(lambda module, args, output: seen.append(type(module)))
    model(**inputs)
    handle.remove()
    kind = type(TINY["t5"]().encoder.final_layer_norm)
    assert seen.count(kind) == 12
    seen.clear()
    model(**inputs)
    assert not seen


def test_the_adapter_itself_can_be_hooked():
    """It is called as any module is, with the path of the place that asks."""
    model, inputs, seen = attach_tiny("t5", "compacter"), inputs_of("t5"), []
    adapter = model.get_submodule("base_model.model.adapters.compacter_weights.default")
    handle = adapter.register_forward_hook(lambda module, args, output: seen.append(args[0]))
    model(**inputs)
    handle.remove()
    places = {path for paths in places_of(model).values() for path in paths}
    assert places <= set(seen)
    seen.clear()
    model(**inputs)
    assert not seen

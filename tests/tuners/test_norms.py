"""Trained layer norms: what their modules compute, where possible by one operation."""

from __future__ import annotations

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.profiler import ProfilerActivity, profile

from adapting import attach_tiny, inputs_of, scramble
from compacter.tuners.bottleneck.norm import NormLayer

RMS_FAMILIES = ["t5", "longt5-global", "llama", "qwen3", "olmo2"]


def norms_written_out(run):
    """How often an operation is called that only norms which are written out have."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        run()
    return sum(event.count for event in found.key_averages() if event.key == "aten::rsqrt")


def norms_of(model):
    return [module for module in model.modules() if isinstance(module, NormLayer)]


@pytest.mark.parametrize("family", RMS_FAMILIES)
@pytest.mark.parametrize("method", ["compacter", "intrinsic-said"])
def test_rms_norms_are_one_operation(family, method):
    model, inputs = attach_tiny(family, method), inputs_of(family)
    assert norms_written_out(lambda: model(**inputs).loss.backward()) == 0
    with model.disable_adapter():
        assert norms_written_out(lambda: model(**inputs)) > 0


@pytest.mark.parametrize("family", [*RMS_FAMILIES, "gemma", "bert"])
@pytest.mark.parametrize(
    ("stored_as", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)]
)
def test_a_norm_computes_what_its_module_does(family, stored_as, tolerance):
    model = attach_tiny(family, "compacter")
    scramble(model)
    for layer in norms_of(model):
        layer.base_layer.to(stored_as)
        module = layer.active_norm()
        shape = (3, 5, module.weight.shape[-1])
        x = torch.randn(shape, requires_grad=True)
        arriving = torch.randn(shape).to(stored_as)
        trained = [x, *module.parameters()]
        found, expected = layer(x.to(stored_as)), module(x.to(stored_as).float()).to(stored_as)
        assert found.dtype is stored_as
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(
            torch.autograd.grad(found, trained, arriving),
            torch.autograd.grad(expected, trained, arriving),
            rtol=tolerance,
            atol=tolerance,
        )


def test_what_is_hooked_to_a_norm_happens():
    """Of the copies that are trained, too, where the norm is otherwise not called as a module."""
    model, inputs, seen = attach_tiny("t5", "compacter"), inputs_of("t5"), []
    norm = norms_of(model)[0].active_norm()
    handle = norm.register_forward_hook(lambda module, args, output: seen.append(output))
    model(**inputs)
    handle.remove()
    model(**inputs)
    assert len(seen) == 1
    norm.forward = lambda x: seen.append(x) or x
    model(**inputs)
    assert len(seen) == 2


def test_what_is_hooked_to_all_modules_happens_at_norms():
    model, inputs, seen = attach_tiny("t5", "compacter"), inputs_of("t5"), []
    handle = register_module_forward_hook(lambda module, args, output: seen.append(module))
    model(**inputs)
    handle.remove()
    assert {layer.active_norm() for layer in norms_of(model)} <= set(seen)
    seen.clear()
    model(**inputs)
    assert not seen

"""Intrinsic-SAID, which moves every weight: several adapters, other dtypes, graphs."""

from __future__ import annotations

import copy

import pytest
import torch
from peft import get_peft_model

from adapting import attach_tiny, inputs_of, logits, scramble
from by_formula import install, saved
from compacter import IntrinsicSAIDConfig
from compacter.errors import AdapterError
from tiny_models import TINY

DIM = 400
FAMILIES = ("t5", "bert", "vit", "deberta", "gemma3")


def attached(family):
    torch.manual_seed(1)
    return get_peft_model(TINY[family](), IntrinsicSAIDConfig(intrinsic_dim=DIM)).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_second_adapter(family):
    model, inputs = attached(family), inputs_of(family)
    model.add_adapter("second", IntrinsicSAIDConfig(intrinsic_dim=DIM + 50, projection_seed=1))
    found = {}
    for name, std in (("default", 0.05), ("second", 0.1)):
        model.set_adapter(name)
        scramble(model, std)
    for name in ("default", "second"):
        model.set_adapter(name)
        found[name] = logits(model, **inputs)
        bare = TINY[family]()
        with saved(model, name) as folder:
            install(bare, folder)
        torch.testing.assert_close(found[name], logits(bare, **inputs), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found["default"], found["second"], atol=1e-3)
    model.delete_adapter("default")
    assert torch.equal(logits(model, **inputs), found["second"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("family", ["vit", "t5"])
def test_another_dtype(family, dtype):
    """ViT asks its first layer's weight for the dtype that pixels are cast to."""
    model, inputs = attached(family), inputs_of(family)
    scramble(model, std=0.02)
    expected = logits(model, **inputs)
    found = logits(model.to(dtype), **inputs)
    assert found.dtype == dtype
    tolerance = 1e-4 if dtype == torch.float64 else 0.1
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=tolerance)
    train_step = model(**inputs).loss
    train_step.backward()
    assert torch.isfinite(train_step)


def test_a_half_precision_vit_with_a_full_precision_adapter():
    torch.manual_seed(1)
    base = TINY["vit"]().to(torch.bfloat16)
    model = get_peft_model(base, IntrinsicSAIDConfig(intrinsic_dim=DIM)).eval()
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    assert logits(model, **inputs_of("vit")).dtype == torch.bfloat16


def trace(model, inputs):
    torch.jit.trace(model, (inputs["input_ids"],), strict=False, check_trace=False)


def export(model, inputs):
    torch.export.export(model, (inputs["input_ids"],))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("record", [trace, export])
def test_graphs_need_a_merged_adapter(record):
    model, inputs = attach_tiny("bert", "intrinsic-said"), inputs_of("bert")
    inner = model.get_base_model()
    inner.config.return_dict = False
    with pytest.raises(AdapterError, match=r"cannot be traced .*call merge_adapter\(\) first"):
        record(inner, inputs)
    model.merge_adapter()
    record(copy.deepcopy(inner), inputs)

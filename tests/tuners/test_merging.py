"""Merging: once, one adapter, taken back by disabling, refused where it would go wrong."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel

import compacter
from adapting import TUNER_METHODS, attach_tiny, inputs_of, logits, scramble, scrambled, unchanged
from compacter import BitFitConfig, CompacterConfig, IntrinsicSAIDConfig
from compacter.errors import AdapterError
from tiny_models import TINY

CASES = {
    "bitfit": ("gpt2", BitFitConfig),
    "intrinsic-said": ("t5", lambda: IntrinsicSAIDConfig(intrinsic_dim=300)),
}


@pytest.fixture(params=CASES)
def case(request):
    family, config = CASES[request.param]
    settings = {"intrinsic_dim": 300} if request.param == "intrinsic-said" else {}
    model = attach_tiny(family, request.param, **settings)
    scramble(model, std=0.1)
    return model, config, inputs_of(family), logits(TINY[family](), **inputs_of(family))


def assert_close(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_merging_twice_is_merging_once(case):
    model, _, inputs, _ = case
    expected = logits(model, **inputs)
    model.merge_adapter()
    with pytest.warns(UserWarning, match="already merged, nothing to do"):
        model.merge_adapter()
    assert_close(logits(model, **inputs), expected)
    model.unmerge_adapter()
    assert_close(logits(model, **inputs), expected)
    model.merge_adapter()
    assert_close(logits(model.merge_and_unload(), **inputs), expected)


def test_unloading_a_merged_adapter_gives_the_base_model(case):
    model, _, inputs, base = case
    model.merge_adapter()
    assert_close(logits(model.unload(), **inputs), base)


def test_disabling_a_merged_adapter_gives_the_base_model(case):
    model, _, inputs, base = case
    expected = logits(model, **inputs)
    model.merge_adapter()
    with model.disable_adapter():
        assert_close(logits(model, **inputs), base)
    assert_close(logits(model, **inputs), expected)


def test_what_cannot_be_merged_is_refused(case):
    model, config, _, _ = case
    model.add_adapter("second", config())
    with unchanged(model):
        with pytest.raises(AdapterError, match=r"found \['nope'\], expected one of \['default'"):
            model.merge_adapter(["nope"])
        with pytest.raises(AdapterError, match=r"found \['default', 'second'\], expected one"):
            model.merge_adapter(["default", "second"])
    model.merge_adapter(["default"])
    with pytest.raises(AdapterError, match="'default' is merged already"):
        model.merge_adapter(["second"])
    with pytest.raises(AdapterError, match="'default' is merged into the base model; call unmerge"):
        model.add_adapter("third", config())
    assert "third" not in model.peft_config


def test_safe_merge_looks_before_it_merges(case):
    model, _, _, _ = case
    parameter = next(p for p in model.parameters() if p.requires_grad)
    with torch.no_grad():
        parameter[0] = torch.nan
    before = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    with pytest.raises(AdapterError, match="is not finite everywhere; nothing was merged"):
        model.merge_adapter(safe_merge=True)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters() if n in before)


@pytest.mark.parametrize("family", TINY)
def test_every_weight_moves_in_intrinsic_said(family):
    """Merged and unmerged agree, and no lambda is without effect where its tensor has one: a model
    that reads a weight instead of calling its module would show here."""
    inputs = inputs_of(family, length=16)
    model = attach_tiny(family, "intrinsic-said")
    scramble(model, std=0.1)
    loss = model(**inputs).loss
    loss.backward()
    (lambdas,) = (p for n, p in model.named_parameters() if n.endswith(".lambda"))
    unmoved = set((lambdas.grad == 0).nonzero().flatten().tolist())
    whole = model.peft_config["default"].modules_to_save or ()
    names = sorted(
        name
        for name, _ in TINY[family]().named_parameters()
        if not set(name.split(".")) & set(whole)
    )
    assert len(names) == len(lambdas)
    expected = logits(model, **inputs)
    merged = model.merge_and_unload()
    torch.testing.assert_close(logits(merged, **inputs), expected, rtol=1e-3, atol=1e-3)
    merged.requires_grad_(True)
    merged(**inputs).loss.backward()
    used = {n for n, p in merged.named_parameters() if p.grad is not None and p.grad.any()}
    assert not {names[index] for index in unmoved} & used


@pytest.mark.parametrize("method", TUNER_METHODS)
def test_unload_gives_the_base_model_back(method):
    model, inputs = attach_tiny("t5", method), inputs_of("t5")
    scramble(model)
    bare = model.unload()
    assert [n for n, _ in bare.named_modules()] == [n for n, _ in TINY["t5"]().named_modules()]
    assert torch.equal(logits(bare, **inputs), logits(TINY["t5"](), **inputs))
    again = compacter.attach(bare, "compacter")
    assert isinstance(again, PeftModel)


@pytest.mark.parametrize("merge", ["merge_and_unload", "merge_adapter"])
def test_adapters_are_not_linear_and_cannot_be_merged(merge):
    model = scrambled(lambda: CompacterConfig(bottleneck=8))
    with unchanged(model), pytest.raises(AdapterError, match=r"cannot be merged: .* is not linear"):
        getattr(model, merge)()


def test_bitfit_merges_where_there_are_biases():
    model, inputs = attach_tiny("gpt2", "bitfit"), inputs_of("gpt2")
    scramble(model)
    expected = logits(model, **inputs)
    model.merge_adapter()
    torch.testing.assert_close(logits(model, **inputs), expected)
    model.unmerge_adapter()
    torch.testing.assert_close(logits(model, **inputs), expected)
    merged = model.merge_and_unload()
    assert type(merged) is type(TINY["gpt2"]())
    torch.testing.assert_close(logits(merged, **inputs), expected)


def test_bitfit_does_not_merge_where_there_are_none():
    model = attach_tiny("t5", "bitfit")
    with (
        unchanged(model),
        pytest.raises(AdapterError, match=r"have none to take them, encoder.*q for"),
    ):
        model.merge_and_unload()


@pytest.mark.parametrize("family", ["t5", "bert", "vit"])
def test_intrinsic_said_merges(family):
    model, inputs = attach_tiny(family, "intrinsic-said"), inputs_of(family)
    scramble(model, std=0.05)
    expected = logits(model, **inputs)
    model.merge_adapter()
    torch.testing.assert_close(logits(model, **inputs), expected, rtol=1e-4, atol=1e-4)
    model.unmerge_adapter()
    torch.testing.assert_close(logits(model, **inputs), expected, rtol=1e-4, atol=1e-4)
    merged = model.merge_and_unload()
    torch.testing.assert_close(logits(merged, **inputs), expected, rtol=1e-4, atol=1e-4)
    assert not hasattr(merged, "adapters")

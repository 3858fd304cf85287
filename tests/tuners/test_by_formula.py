"""Logits and gradients of every method against the formulas, from the tensors of the saved file."""

from __future__ import annotations

import pytest
import torch

from adapting import TUNER_METHODS, attach_tiny, inputs_of, logits, scramble
from by_formula import assert_same, expected_of, gradients
from tiny_models import TINY


def check(model, family, inputs, tolerance):
    """Without gradients, norms take means in float32, as transformers' own do."""
    expected = expected_of(model, TINY[family](), inputs)
    assert_same({"logits": model(**inputs).logits.detach()}, {"logits": expected.logits}, tolerance)
    assert_same({"logits": logits(model, **inputs)}, {"logits": expected.logits}, 2e-6)
    assert_same(gradients(model, inputs), expected.gradients, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-5)])
@pytest.mark.parametrize("family", ["t5", "bert", "llama"])
@pytest.mark.parametrize("method", TUNER_METHODS)
def test_logits_and_gradients_of_every_method(method, family, dtype, tolerance):
    model, inputs = attach_tiny(family, method), inputs_of(family)
    scramble(model, std=0.1)
    check(model.to(dtype), family, inputs, tolerance)


SETTINGS = [
    ("compacter", {"n": 2, "rank": 3, "bottleneck": 6}),
    ("compacter", {"n": 8, "bottleneck": 16}),
    ("compacter", {"n": 1, "bottleneck": 3}),
    ("compacter", {"share_A": False, "rank": 2, "bottleneck": 8}),
    ("compacter", {"use_bias": False}),
    ("compacter++", {"tune_output_layer": True}),
    ("phm-adapter", {"n": 8, "bottleneck": 8, "use_bias": False}),
    ("phm-adapter", {"share_A": True, "n": 2, "bottleneck": 4}),
    ("adapter", {"bottleneck": 5, "use_bias": False, "tune_output_layer": True}),
    ("adapter-lowrank", {"rank": 3, "bottleneck": 7}),
    ("adapter-lowrank", {"use_bias": False, "train_layer_norms": False}),
    ("bitfit", {"tune_output_layer": True}),
    ("intrinsic-said", {"intrinsic_dim": 129, "projection_seed": 7}),
]


@pytest.mark.parametrize(("method", "settings"), SETTINGS)
@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_settings(method, settings, family):
    model, inputs = attach_tiny(family, method, **settings), inputs_of(family)
    scramble(model, std=0.1)
    check(model.double(), family, inputs, 1e-10)


@pytest.mark.parametrize("family", ["gpt2", "modernbert", "gemma3_text", "qwen3", "bart", "opt"])
@pytest.mark.parametrize("method", ["compacter", "phm-adapter", "adapter", "bitfit"])
def test_families(method, family):
    model, inputs = attach_tiny(family, method), inputs_of(family)
    scramble(model, std=0.1)
    check(model.double(), family, inputs, 1e-10)


@pytest.mark.parametrize("settings", [{}, {"biases": "added"}])
@pytest.mark.parametrize("family", ["t5", "bert", "llama", "bart"])
def test_biases_of_bitfit(family, settings):
    model, inputs = attach_tiny(family, "bitfit", **settings), inputs_of(family)
    scramble(model, std=0.1)
    check(model.double(), family, inputs, 1e-10)

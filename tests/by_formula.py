"""Compacter by the plain formula of each layer, to compare with weights that are built together."""

from __future__ import annotations

import copy
from functools import partial

import torch

from adapting import attach_tiny, scramble
from compacter.nn import bottleneck
from compacter.tuners.bottleneck.layer import BottleneckLayer

SLOW = "base_model.model.shared_parameters.compacter_A.default"
"""The name of the slow weights."""


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

"""Models to measure that are not methods of the paper: what the methods are compared with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from compacter.bench.work import adapted_copy
from compacter.models import layer_norms
from compacter.nn import bottleneck
from compacter.tuners.bottleneck.layer import BottleneckLayer

LORA_RANK = 8


def make(bare: nn.Module, name: str, **settings: Any) -> nn.Module:
    """A method of the paper or one of the models below, by name, ready to train. All of them
    share the frozen weights of the bare model."""
    if name == "layer norms":
        return norms_only(bare)
    if name == "lora":
        config = LoraConfig(r=LORA_RANK, task_type="SEQ_2_SEQ_LM")
        return get_peft_model(frozen_copy(bare), config).train()
    if name in FORMULAS:
        return layer_by_layer(adapted_copy(bare, "compacter", settings), FORMULAS[name])
    return adapted_copy(bare, name, settings)


def frozen_copy(bare: nn.Module) -> nn.Module:
    shared = {id(p): p for p in bare.parameters()}
    return copy.deepcopy(bare, shared).requires_grad_(False)


def norms_only(bare: nn.Module) -> nn.Module:
    """The least that can be trained in every layer, as transformers computes it: what a step costs
    without this package."""
    model = frozen_copy(bare)
    for path in layer_norms(model):
        norm = model.get_submodule(path)
        for name, parameter in list(norm.named_parameters()):
            norm.register_parameter(name, nn.Parameter(parameter.detach().clone()))
    return model.train()


Formula = Callable[[BottleneckLayer, str, Tensor], Tensor]


def layer_by_layer(model: nn.Module, formula: Formula) -> nn.Module:
    """The same adapters by a plain formula: each layer builds its matrices in every pass."""
    for layer in model.modules():
        if isinstance(layer, BottleneckLayer):
            layer.adapt = partial(formula, layer)  # type: ignore[method-assign]
    return model


def _one_product(layer: BottleneckLayer, adapter: str, output: Tensor) -> Tensor:
    """This package's formula for one layer, which makes the sum without its n terms."""
    down, up = layer.projections(adapter)
    A = layer.shared.get("A", adapter)
    return bottleneck(output, down, layer.activations[adapter], up, A)


def _n_products(layer: BottleneckLayer, adapter: str, output: Tensor) -> Tensor:
    """The paper's equation as it stands: n Kronecker products, then their sum."""
    A = layer.shared.get("A", adapter)
    assert A is not None

    def linear(x: Tensor, projection: Any) -> Tensor:
        B = projection.s @ projection.t
        products = torch.einsum("iab,ipq->iapbq", A, B)
        W = products.reshape(len(A), projection.in_features, projection.out_features).sum(0)
        return nn.functional.linear(x, W.t(), projection.bias)

    down, up = layer.projections(adapter)
    return output + linear(layer.activations[adapter](linear(output, down)), up)


FORMULAS: dict[str, Formula] = {
    "compacter, one product a layer": _one_product,
    "compacter, n products a layer": _n_products,
}

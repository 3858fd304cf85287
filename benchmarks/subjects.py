"""Models to measure that are not methods of the paper: what the methods are compared with."""

from __future__ import annotations

import copy
from typing import Any

from peft import LoraConfig, get_peft_model
from torch import nn

from compacter.bench.work import adapted_copy
from compacter.models import layer_norms

LORA_RANK = 8


def make(bare: nn.Module, name: str, **settings: Any) -> nn.Module:
    """A method of the paper or one of the models below, by name, ready to train. All of them
    share the frozen weights of the bare model."""
    if name == "layer norms":
        return norms_only(bare)
    if name == "lora":
        config = LoraConfig(r=LORA_RANK, task_type="SEQ_2_SEQ_LM")
        return get_peft_model(frozen_copy(bare), config).train()
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

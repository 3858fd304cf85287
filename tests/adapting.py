"""What the tests of the tuners do again and again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, get_peft_model
from torch import Tensor, nn

import compacter
from compacter import BitFitConfig, CompacterConfig, IntrinsicSAIDConfig
from compacter.methods import METHODS
from tiny_models import TINY, tiny_inputs

SMALL_ENOUGH: dict[str, dict[str, Any]] = {
    "adapter-drop": {"drop_layers": 1},
    "intrinsic-said": {"intrinsic_dim": 400},
    "prompt-tuning-r": {"num_tokens": 5},
    "prompt-tuning-t": {"num_tokens": 5},
}
"""Settings for methods whose own do not fit models of two layers and 64 positions."""

ADAPTED_METHODS = tuple(name for name in METHODS if name != "full")
ADAPTER_METHODS = tuple(name for name, m in METHODS.items() if m.family == "adapter")
TUNER_METHODS = (*ADAPTER_METHODS, "bitfit", "intrinsic-said")
"""Methods that are tuners of this package, so all but full fine-tuning and the prompts."""

CONFIGS = {
    "compacter": lambda: CompacterConfig(bottleneck=8),
    "bitfit": BitFitConfig,
    "intrinsic-said": lambda: IntrinsicSAIDConfig(intrinsic_dim=300),
}
"""One configuration of each kind of tuner; the fixture `config` is each of them in turn."""


def attach_tiny(family: str, method: str, **settings: Any) -> PeftModel:
    """A method on a new tiny model; the same parameters every time."""
    base = TINY[family]()
    torch.manual_seed(1)
    model = compacter.attach(base, method, **{**SMALL_ENOUGH.get(method, {}), **settings})
    assert isinstance(model, PeftModel)
    return model.eval()


def logits(model: nn.Module, **inputs: Any) -> Tensor:
    with torch.no_grad():
        output: Tensor = model(**inputs).logits
    return output


def inputs_of(family: str, **settings: int) -> dict[str, Any]:
    return tiny_inputs(TINY[family](), **settings)


def train(model: nn.Module, inputs: dict[str, Any], steps: int = 3, lr: float = 1e-2) -> float:
    """A few optimiser steps on one batch; returns the last loss. Leaves the model in eval mode."""
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)
    for _ in range(steps):
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    return loss.item()


def scramble(model: nn.Module, std: float = 0.3) -> None:
    """Make every trainable parameter different from what it started as."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter += (std * noise).to(parameter.dtype)


def places_of(model: PeftModel, adapter: str = "default") -> dict[str, list[str]]:
    """Name of a tensor -> the paths that its first dimension stands for, as the configuration has
    them."""
    places = model.peft_config[adapter].places
    return {name: stack["paths"] for stack in places for name in stack["tensors"]}


def adapted_paths(model: PeftModel) -> list[str]:
    """Of the modules that have bottlenecks, in their order."""
    stacks = model.peft_config["default"].places
    return [
        path
        for stack in stacks
        if any(name.startswith("down_") for name in stack["tensors"])
        for path in stack["paths"]
    ]


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all parameters, by name."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def changed(before: dict[str, Tensor], model: nn.Module) -> set[str]:
    """Names of parameters that are not what they were, bit for bit."""
    return {n for n, p in model.named_parameters() if not torch.equal(before[n], p.detach())}


def save(model: PeftModel, folder: Path) -> str:
    model.save_pretrained(str(folder))
    return str(folder)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """What happens inside leaves a model exactly as it was: modules, parameters, flags."""
    modules = {name: id(module) for name, module in model.named_modules()}
    parameters = parameters_of(model)
    flags = {name: p.requires_grad for name, p in model.named_parameters()}
    yield
    assert {name: id(module) for name, module in model.named_modules()} == modules
    assert not changed(parameters, model)
    assert {name: p.requires_grad for name, p in model.named_parameters()} == flags


def scrambled(config, seed: int = 0):
    torch.manual_seed(seed)
    model = get_peft_model(TINY["t5"](), config()).eval()
    scramble(model)
    return model


def trainable_names(model):
    return {name for name, p in model.named_parameters() if p.requires_grad}

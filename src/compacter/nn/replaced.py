"""Calling a module with other tensors in place of its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


def call_with(
    module: nn.Module, tensors: Mapping[str, Tensor | None], *args: Any, **kwargs: Any
) -> Any:
    """module(*args, **kwargs) computed with these tensors; a name can be a path.

    `torch.func.functional_call` gives the tensors to the module itself for as long as it runs.
    Other threads would see them there, and FSDP, which holds parameters as plain attributes, would
    hide them. So a shallow copy is called. Only a compiler needs torch's function."""
    if torch.compiler.is_compiling():
        given: Any = dict(tensors)
        return functional_call(module, given, args, kwargs, tie_weights=False)
    return with_tensors(module, tensors)(*args, **kwargs)


def with_tensors(module: nn.Module, tensors: Mapping[str, Tensor | None]) -> nn.Module:
    """A shallow copy of the module that has these tensors and shares everything else.

    It runs the forward of its class. One that accelerate put in its place would use the module's
    own weights."""
    made: nn.Module = object.__new__(type(module))
    state = {**module.__dict__}
    state.pop("forward", None)
    own = {name: tensor for name, tensor in tensors.items() if "." not in name}
    for name in own:
        state.pop(name, None)
    state["_parameters"] = {**module._parameters, **own}
    inside: dict[str, dict[str, Tensor | None]] = {}
    for path, tensor in tensors.items():
        child, dot, rest = path.partition(".")
        if dot:
            inside.setdefault(child, {})[rest] = tensor
    children = {c: with_tensors(module.get_submodule(c), rest) for c, rest in inside.items()}
    state["_modules"] = {**module._modules, **children}
    made.__dict__ = state
    return made

"""Adapter names that PEFT would mishandle."""

from __future__ import annotations

import re

from torch import nn

from compacter.errors import AdapterError
from compacter.models import base_modules


def parts_of_paths(model: nn.Module) -> dict[str, str]:
    """The parts of the paths of all modules and parameters of the bare model, each with one path
    that it is part of."""
    parts: dict[str, str] = {}
    for path, module in base_modules(model).items():
        for place in (path, *(f"{path}.{name}" for name in module._parameters)):
            for part in place.split("."):
                parts.setdefault(part, place)
    return parts


def check_adapter_name(name: str, parts: dict[str, str], prefix: str) -> None:
    """PEFT finds an adapter's tensors by looking for its name among the parts of their paths. An
    adapter called like a part of the model's own paths ("layer", "o", "0") makes the files of
    OTHER adapters incomplete without a word, so such names are refused."""

    def refuse(reason: str) -> AdapterError:
        return AdapterError(f"an adapter cannot be called {name!r}: {reason}; choose another name")

    if not re.fullmatch(r"[A-Za-z0-9_\-]+", name):
        raise refuse("a name is made of letters, digits, '_' and '-'")
    if name.startswith(("__", prefix)):
        raise refuse(f"names that begin with '__' or {prefix!r} are reserved")
    if hasattr(nn.ModuleDict(), name) or hasattr(nn.ParameterDict(), name):
        raise refuse("torch's module dictionaries have an attribute of that name")
    if name in parts:
        raise refuse(f"it is part of the path of {parts[name]!r} in this model")
    if name in RESERVED_PARTS:
        raise refuse("it is part of the paths of an adapter's own tensors")


RESERVED_PARTS = frozenset(
    {"A", "bias", "theta", "lambda", "weight", "base_layer", "base_model", "model", "adapters"}
    | {"modules_to_save", "original_module", "__base__"}
    | {f"{way}_{name}" for way in ("down", "up") for name in ("A", "B", "W", "s", "t", "bias")}
)

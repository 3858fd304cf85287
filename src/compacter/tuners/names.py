"""Adapter names that PEFT would mishandle."""

from __future__ import annotations

import re

from torch import nn

from compacter.errors import AdapterError


def check_adapter_name(name: str, model: nn.Module, prefix: str) -> None:
    """PEFT finds an adapter's tensors by looking for its name among the parts of their paths. An
    adapter called like a part of the model's own paths ("layer", "o", "0") makes the files of
    OTHER adapters incomplete without a word, so such names are refused."""

    def refuse(reason: str) -> AdapterError:
        return AdapterError(f"an adapter cannot be called {name!r}: {reason}; choose another name")

    if not re.fullmatch(r"[A-Za-z0-9_\-]+", name):
        raise refuse("a name is made of letters, digits, '_' and '-'")
    if name.startswith("__") or prefix.rstrip("_") in name:
        raise refuse(
            f"names with '__' in front or with {prefix.rstrip('_')!r} in them are reserved"
        )
    if hasattr(nn.ModuleDict(), name) or hasattr(nn.ParameterDict(), name):
        raise refuse("torch's module dictionaries have an attribute of that name")
    for path in (*dict(model.named_modules()), *dict(model.named_parameters())):
        if prefix not in path and name in path.split("."):
            raise refuse(f"it is part of the path of {path!r} in this model")
    if name in RESERVED_PARTS:
        raise refuse("it is part of the paths of an adapter's own tensors")


RESERVED_PARTS = frozenset(
    {"A", "B", "W", "s", "t", "weight", "bias", "base_layer", "base_model", "model"}
    | {"shared_parameters", "modules_to_save", "original_module", "__base__"}
)

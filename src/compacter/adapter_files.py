"""The files of an adapter as they lie on a disk. Importing this imports neither torch nor PEFT.

Only safetensors are read. Their header alone tells whether a file is whole and which tensors it
holds."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from compacter.errors import AdapterError

FORMAT_VERSION = 1
"""Version of the tensor names and of their meaning; docs/file-format.md."""

MODEL_PREFIX = "base_model.model."

# As PEFT calls them
CONFIG_NAME = "adapter_config.json"
WEIGHTS_NAME = "adapter_model.safetensors"
PICKLE_NAME = "adapter_model.bin"


def check_places(places: object, source: object) -> None:
    """Refuse what development versions wrote before file format 1."""
    if places is None:
        raise AdapterError(
            f"{source} was saved by a development version of compacter, before file format 1: its "
            f"{CONFIG_NAME} lists no places; train it again"
        )


@dataclass(frozen=True)
class StoredTensor:
    """What the header of a safetensors file says of a tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    numbers: int


def read_header(path: Path | str) -> list[StoredTensor]:
    """The tensors of a safetensors file, which must be whole."""
    try:
        with safe_open(path, framework="np") as file:
            names = file.keys()  # not iterable itself
            slices = [(name, file.get_slice(name)) for name in names]
            shapes = [(name, tuple(part.get_shape()), part.get_dtype()) for name, part in slices]
    except (SafetensorError, OSError) as error:
        raise AdapterError(
            f"{path} is damaged or not complete ({error}); expected a whole safetensors file: "
            "save or download the adapter again"
        ) from None
    return [StoredTensor(name, shape, dtype, prod(shape)) for name, shape, dtype in sorted(shapes)]


def header_bytes(path: Path) -> int:
    """How much of a safetensors file is no numbers."""
    with path.open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")


def read_config(folder: Path, types: Collection[str]) -> dict[str, Any]:
    """The configuration of an adapter, which must be of one of these types of PEFT."""
    path = folder / CONFIG_NAME
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        peft_type, version = str(config["peft_type"]), int(config.get("format_version") or 0)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise AdapterError(
            f"{path} is damaged ({type(error).__name__}: {error}); expected the settings of an "
            "adapter: save or download the adapter again"
        ) from None
    if peft_type not in types:
        raise AdapterError(
            f"{str(folder)!r} is not an adapter of this package: it is of type {peft_type}, "
            f"expected {' or '.join(types)}"
        )
    check_version(version)
    return config


def check_no_pickle(folder: Path | str) -> None:
    """Refuse a folder whose weights are a pickle."""
    if (Path(folder) / PICKLE_NAME).is_file():
        raise AdapterError(
            f"{folder} holds {PICKLE_NAME}, a pickle, which can run code when it is opened "
            f"and is never read; expected {WEIGHTS_NAME}"
        )


def check_version(version: int) -> None:
    """Refuse a format that this release does not know yet."""
    if version > FORMAT_VERSION:
        raise AdapterError(
            f"this adapter has format version {version}; this release of compacter "
            f"reads versions up to {FORMAT_VERSION}: pip install -U compacter-peft"
        )

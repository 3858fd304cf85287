"""Reading an adapter's files before anything is done to a model.

Only safetensors are read. Their header alone tells whether a file is whole and which tensors it
holds, so that a damaged or foreign adapter is refused while the model is still untouched."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from peft.utils import SAFETENSORS_WEIGHTS_NAME, WEIGHTS_NAME
from safetensors import SafetensorError, safe_open

from compacter.errors import AdapterError

FORMAT_VERSION = 1
"""Version of the tensor names and of their meaning; docs/file-format.md."""

MODEL_PREFIX = "base_model.model."

Shapes = Mapping[str, tuple[int, ...]]


def read_shapes(
    source: str, subfolder: str | None, download: dict[str, Any]
) -> dict[str, tuple[int, ...]] | None:
    """Tensor name -> shape of the adapter at a folder or hub repository; None if it has none."""
    folder = os.path.join(source, subfolder) if subfolder else source
    path = os.path.join(folder, SAFETENSORS_WEIGHTS_NAME)
    if not os.path.isfile(path):
        if os.path.isfile(os.path.join(folder, WEIGHTS_NAME)):
            raise AdapterError(
                f"{folder} holds {WEIGHTS_NAME}, a pickle, which can run code when it is opened "
                f"and is never read; expected {SAFETENSORS_WEIGHTS_NAME}"
            )
        if os.path.isdir(folder):
            return None
        try:
            path = hf_hub_download(
                source, SAFETENSORS_WEIGHTS_NAME, subfolder=subfolder, **download
            )
        except (EntryNotFoundError, LocalEntryNotFoundError):
            return None
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()  # not iterable itself
            return {name: tuple(file.get_slice(name).get_shape()) for name in names}
    except (SafetensorError, OSError) as error:
        raise AdapterError(
            f"{path} is damaged or not complete ({error}); expected a whole safetensors file: "
            "save or download the adapter again"
        ) from None


def shapes_digest(shapes: Shapes) -> str:
    """A short name for a set of tensors: equal if and only if names and shapes are."""
    text = json.dumps(sorted((name, list(shape)) for name, shape in shapes.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_shapes(expected: Shapes, found: Shapes, origin: str) -> None:
    """The tensors found must be the tensors expected, no more, no fewer, each in its shape."""
    problems = [
        f"{name} has shape {list(found[name])}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in found and tuple(found[name]) != tuple(shape)
    ]
    problems += [f"{name} is missing" for name in expected if name not in found]
    problems += [f"{name} has no place in this model" for name in found if name not in expected]
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise AdapterError(
            f"the adapter from {origin} does not fit this model and its own settings: "
            f"{'; '.join(problems[:3])}{more}. Load it into the model it was trained on, or, for a "
            "new adapter with the same settings, make a new config"
        )

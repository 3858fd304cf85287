"""Reading an adapter's files before anything is done to a model, so that a damaged or foreign
adapter is refused while the model is still untouched."""

from __future__ import annotations

import os
from typing import Any

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

from compacter.adapter_files import (
    FORMAT_VERSION,
    MODEL_PREFIX,
    WEIGHTS_NAME,
    check_no_pickle,
    check_version,
    read_header,
)

__all__ = ["FORMAT_VERSION", "MODEL_PREFIX", "check_version", "read_shapes"]


def read_shapes(
    source: str, subfolder: str | None, download: dict[str, Any]
) -> dict[str, tuple[int, ...]] | None:
    """Tensor name -> shape of the adapter at a folder or hub repository; None if it has none."""
    folder = os.path.join(source, subfolder) if subfolder else source
    path = os.path.join(folder, WEIGHTS_NAME)
    if not os.path.isfile(path):
        check_no_pickle(folder)
        if os.path.isdir(folder):
            return None
        try:
            path = hf_hub_download(source, WEIGHTS_NAME, subfolder=subfolder, **download)
        except (EntryNotFoundError, LocalEntryNotFoundError):
            return None
    return {tensor.name: tensor.shape for tensor in read_header(path)}

"""Weights that are not plain floating-point numbers, so that nothing can be added to them and they
cannot be trained."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from compacter.errors import ArchitectureError
from compacter.models.modules import base_modules, output_width

_PLAIN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

LEAVE_OUT = (
    "quantise the model without it (BitsAndBytesConfig has llm_int8_skip_modules, TorchAoConfig "
    "has modules_to_not_convert)"
)


def quantised_as(module: nn.Module) -> str | None:
    """How a module keeps its own weights if they are quantised: a dtype, or a class that unpacks
    them. None if they are plain numbers.

    Buffers count in linear layers only, where GPTQ and AWQ have their weights; elsewhere they are
    positions, masks and counts."""
    is_linear = output_width(module) is not None
    tensors = [*module.parameters(recurse=False), *(module.buffers(False) if is_linear else ())]
    if is_linear and not tensors and next(module.parameters(), None) is None:
        return type(module).__name__  # packed where torch does not look
    return next(filter(None, map(_packed_as, tensors)), None)


def _packed_as(tensor: Tensor) -> str | None:
    if tensor.dtype not in _PLAIN:
        return str(tensor.dtype)
    is_sharded = hasattr(tensor, "device_mesh")  # a DTensor is a class of its own, too
    unpacks = hasattr(tensor, "__tensor_flatten__") and not is_sharded
    return type(tensor).__name__ if unpacks else None


def check_not_quantised(model: nn.Module, reason: str) -> None:
    """Raise if anything in the model is quantised, or if it says so itself."""
    modules = base_modules(model)
    for path, module in modules.items():
        found = quantised_as(module)
        if found is not None:
            raise ArchitectureError(f"{path} keeps its weights as {found}; {reason}")
    if any(getattr(module, "is_quantized", False) is True for module in modules.values()):
        raise ArchitectureError(f"the model is marked as quantised; {reason}")


def check_trained_whole(model: nn.Module, paths: Iterable[str]) -> None:
    """Raise if one of these modules, of which a copy is to be trained, is quantised."""
    modules = base_modules(model)
    for path in sorted(paths):
        found = quantised_as(modules[path])
        if found is not None:
            raise ArchitectureError(
                f"{path} keeps its weights as {found}, so it cannot be trained whole, as "
                f"modules_to_save asks; {LEAVE_OUT}"
            )

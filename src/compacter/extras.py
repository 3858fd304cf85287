"""Optional packages: imported where they are needed, and named with their extra where missing."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

from compacter.errors import ExtraError

_TALKATIVE = ("bitsandbytes", "torchao", "torch.utils._pytree")


def silence_extras() -> None:
    """PEFT imports torchao and bitsandbytes where they are installed, and they tell of kernels for
    other machines; bitsandbytes also warns at every layer of every step."""
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)


def require(module: str, extra: str, purpose: str) -> Any:
    """Import `module`, or say which extra brings it.

    Only the absence of the package itself is told this way; a package that is there and fails to
    import something of its own is another matter and is not hidden."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if (error.name or "").partition(".")[0] != package:
            raise
        raise ExtraError(
            f"{purpose} needs {package}, part of the extra {extra!r}: "
            f"pip install 'compacter-peft[{extra}]'"
        ) from None

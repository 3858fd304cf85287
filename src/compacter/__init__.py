"""Compacter: fine-tune any Hugging Face transformer by training a few hundredths of a percent of
its parameters, with PEFT.

    import compacter                                    # registers the tuners with PEFT
    model = compacter.attach(t5, "compacter++", bottleneck=24)

Training, experiments and reports need extras and are imported when they are used."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from compacter.compatibility import check_versions

if TYPE_CHECKING:
    from compacter.experiments.compare import compare
    from compacter.experiments.sweep import sweep
    from compacter.methods.attach import attach
    from compacter.training.api import train
    from compacter.training.inference import evaluate, predict
    from compacter.training.inspection import inspect
    from compacter.tuners import BitFitConfig, CompacterConfig, IntrinsicSAIDConfig
    from compacter.tuners.loading import load_adapters
    from compacter.tuners.pool import AdapterPool

try:
    __version__ = version("compacter-peft")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "AdapterPool",
    "BitFitConfig",
    "CompacterConfig",
    "IntrinsicSAIDConfig",
    "__version__",
    "attach",
    "compare",
    "evaluate",
    "inspect",
    "load_adapters",
    "predict",
    "sweep",
    "train",
]

_HOMES = {
    "AdapterPool": "compacter.tuners.pool",
    "attach": "compacter.methods.attach",
    "compare": "compacter.experiments.compare",
    "evaluate": "compacter.training.inference",
    "inspect": "compacter.training.inspection",
    "load_adapters": "compacter.tuners.loading",
    "predict": "compacter.training.inference",
    "sweep": "compacter.experiments.sweep",
    "train": "compacter.training.api",
    "BitFitConfig": "compacter.tuners",
    "CompacterConfig": "compacter.tuners",
    "IntrinsicSAIDConfig": "compacter.tuners",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'compacter' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


check_versions()
if "compacter_cli" not in sys.modules:  # the command line imports what each command needs, later
    import_module("compacter.tuners")

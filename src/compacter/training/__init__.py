"""Training: a recipe becomes a run, a run becomes a result. Importing this imports no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compacter.training.inference import evaluate, load_run, predict
    from compacter.training.recipe import Recipe
    from compacter.training.result import Result, read_result
    from compacter.training.run import train

__all__ = ["Recipe", "Result", "evaluate", "load_run", "predict", "read_result", "train"]

_HOMES = {
    "Recipe": "recipe",
    "Result": "result",
    "evaluate": "inference",
    "load_run": "inference",
    "predict": "inference",
    "read_result": "result",
    "train": "run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'compacter.training' has no attribute {name!r}")
    return getattr(import_module(f"compacter.training.{_HOMES[name]}"), name)

"""The commands as functions, for notebooks: `compacter.train(...)` returns the result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from compacter.methods import find_method
from compacter.training.recipe import Recipe
from compacter.training.result import Result
from compacter.training.run import HEAD_ONLY, for_method
from compacter.training.run import train as run


def train(
    *,
    output: str | Path,
    recipe: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    report_to: str | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    **settings: Any,
) -> Result:
    """Train one method on one task: `train(model="t5-base", task="rte", method="compacter++",
    output="runs/rte")`. Settings are the keys of a recipe; they win over a recipe's file."""
    return run(
        _recipe(recipe, settings),
        output,
        resume=resume,
        overwrite=overwrite,
        report_to=report_to,
        callbacks=callbacks,
    )


def compare(
    *,
    methods: Sequence[str],
    output: str | Path,
    recipe: str | Path | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> list[Result]:
    """The same run for several methods, each in a folder of its own inside `output`."""
    shared = _recipe(recipe, settings)
    for name in methods:
        if name != HEAD_ONLY:
            find_method(name)
    return [
        run(for_method(shared, name), Path(output) / name, overwrite=overwrite) for name in methods
    ]


def _recipe(file: str | Path | None, settings: dict[str, Any]) -> Recipe:
    return Recipe.make(settings) if file is None else Recipe.read(file, settings)

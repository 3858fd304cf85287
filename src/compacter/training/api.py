"""The commands as functions, for notebooks: `compacter.train(...)` returns the result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from compacter.training.recipe import Recipe
from compacter.training.result import Result
from compacter.training.run import for_method
from compacter.training.run import train as run
from compacter.training.several import train_all


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
        Recipe.read(recipe, settings),
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
    jobs: int = 1,
    overwrite: bool = False,
    watched: bool = False,
    **settings: Any,
) -> list[Result]:
    """The same run for several methods, each in a folder of its own inside `output`, `jobs` at a
    time. Watched runs tell their progress on standard error."""
    shared = Recipe.read(recipe, settings)
    return train_all(
        [for_method(shared, name) for name in methods],
        [Path(output) / name for name in methods],
        jobs=jobs,
        overwrite=overwrite,
        watched=watched,
    )

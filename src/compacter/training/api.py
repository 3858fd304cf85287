"""The command as a function, for notebooks: `compacter.train(...)` returns the result."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from compacter.training.folder import recipe_file
from compacter.training.progress import Progress, announce, silence_transformers
from compacter.training.recipe import Recipe
from compacter.training.result import Result
from compacter.training.run import train as run


def train(
    *,
    output: str | Path,
    recipe: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    report_to: str | None = None,
    watched: bool = False,
    callbacks: Sequence[TrainerCallback] = (),
    **settings: Any,
) -> Result:
    """Train one method on one task: `train(model="t5-base", task="rte", method="compacter++",
    output="runs/rte")`. Settings are the keys of a recipe; they win over a recipe's file. Without
    either, a run that is resumed has its own recipe. A watched run tells its progress on standard
    error."""
    if watched:
        silence_transformers()
    return run(
        Recipe.read(recipe_file(recipe, Path(output), resume=resume), settings),
        output,
        resume=resume,
        overwrite=overwrite,
        report_to=report_to,
        on_start=announce if watched else None,
        callbacks=[*([Progress()] if watched else []), *callbacks],
    )

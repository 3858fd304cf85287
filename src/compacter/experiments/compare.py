"""The same run for several methods, one after the other or at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from compacter.errors import TrainingError
from compacter.experiments.engines.local import call_all
from compacter.training.progress import Progress, announce, silence_transformers
from compacter.training.recipe import Recipe
from compacter.training.result import Result
from compacter.training.run import check_folder, for_method, train


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
    runs = [(for_method(shared, name), Path(output) / name) for name in methods]
    if jobs < 1:
        raise TrainingError(f"jobs={jobs} does not fit; expected 1 or more")
    for _, folder in runs:
        check_folder(folder, overwrite=overwrite)
    if jobs == 1 or len(runs) < 2:
        return [_train(made, folder, overwrite, watched, "") for made, folder in runs]
    calls = {
        folder.name: partial(_train, made, folder, overwrite, watched, f"{folder.name}: ")
        for made, folder in runs
    }
    found = call_all(calls, min(jobs, len(runs)))
    return [found[folder.name] for _, folder in runs]


def _train(recipe: Recipe, folder: Path, overwrite: bool, watched: bool, label: str) -> Result:
    if watched:
        silence_transformers()
    return train(
        recipe,
        folder,
        overwrite=overwrite,
        on_start=announce if watched else None,
        callbacks=[Progress(label)] if watched else [],
    )

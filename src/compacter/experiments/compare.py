"""The same run for several methods, one after the other or at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from compacter.errors import TrainingError
from compacter.experiments.engines.local import call_all
from compacter.training.folder import check_folder, finish_overwrite, is_finished
from compacter.training.prepare import for_method
from compacter.training.progress import Progress, announce, silence_transformers
from compacter.training.recipe import DATA_PLACES, Recipe
from compacter.training.result import Result, read_result
from compacter.training.run import train


def compare(
    *,
    methods: Sequence[str],
    output: str | Path,
    recipe: str | Path | None = None,
    jobs: int = 1,
    resume: bool = False,
    overwrite: bool = False,
    watched: bool = False,
    **settings: Any,
) -> list[Result]:
    """The same run for several methods, each in a folder of its own inside `output`, `jobs` at a
    time. With `resume`, finished runs are taken as they are and interrupted ones go on. Watched
    runs tell their progress on standard error."""
    shared = Recipe.read(recipe, settings)
    runs = [(for_method(shared, name), Path(output) / name) for name in methods]
    twice = next((name for name in methods if methods.count(name) > 1), None)
    if twice is not None:
        raise TrainingError(f"method {twice!r} is named twice; expected each once")
    if jobs < 1:
        raise TrainingError(f"jobs={jobs} does not fit; expected 1 or more")
    for _, folder in runs:
        finish_overwrite(folder)
        if not (resume and is_finished(folder)):
            check_folder(folder, resume=resume, overwrite=overwrite)
    train_one = partial(_train, resume=resume, overwrite=overwrite, watched=watched)
    if jobs == 1 or len(runs) < 2:
        return [train_one(made, folder, label="") for made, folder in runs]
    calls = {
        folder.name: partial(train_one, made, folder, label=f"{folder.name}: ")
        for made, folder in runs
    }
    found = call_all(calls, min(jobs, len(runs)))
    return [found[folder.name] for _, folder in runs]


def _train(
    recipe: Recipe, folder: Path, *, resume: bool, overwrite: bool, watched: bool, label: str
) -> Result:
    if resume and is_finished(folder):
        return _finished(recipe, folder)
    if watched:
        silence_transformers()
    return train(
        recipe,
        folder,
        resume=resume,
        overwrite=overwrite,
        on_start=announce if watched else None,
        callbacks=[Progress(label)] if watched else [],
    )


def _finished(recipe: Recipe, folder: Path) -> Result:
    result = read_result(folder)
    for key, value in recipe.model_dump(mode="json", exclude_unset=True).items():
        found = result.recipe.get(key)
        if value is not None and value != found and key not in DATA_PLACES:
            raise TrainingError(
                f"{str(folder)!r} holds a finished run with {key}={found!r}, and {value!r} is "
                "asked for; choose another folder, or say overwrite"
            )
    return result

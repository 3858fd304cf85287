"""The folder of a run: what may be written into it, and with what an interrupted run goes on."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from compacter.errors import TrainingError
from compacter.training.recipe import DATA_PLACES, Recipe
from compacter.training.result import (
    ADAPTER_NAME,
    CHECKPOINTS,
    MODEL_NAME,
    PREDICTIONS_NAME,
    RESULT_NAME,
)

RECIPE_NAME = "recipe.yaml"
LOG_NAME = "train.log"
TENSORBOARD_NAME = "tensorboard"

OF_A_RUN = (
    *(ADAPTER_NAME, MODEL_NAME, CHECKPOINTS, RESULT_NAME, PREDICTIONS_NAME),
    *(RECIPE_NAME, LOG_NAME, TENSORBOARD_NAME),
)
"""What a run writes; nothing else in its folder is ever taken away."""


def check_folder(folder: Path, *, resume: bool = False, overwrite: bool = False) -> None:
    """Refuse a folder in which something would be lost, or nothing can be written."""
    if resume and overwrite:
        raise TrainingError(
            "resume and overwrite are both given; say resume to go on with an interrupted run, or "
            "overwrite to start anew"
        )
    check_writable(folder)
    found = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if overwrite:
        if found and not found & {RESULT_NAME, RECIPE_NAME, CHECKPOINTS}:
            raise TrainingError(
                f"{str(folder)!r} is not empty and holds no run that could be overwritten; choose "
                "another folder"
            )
        return
    if RESULT_NAME in found:
        raise TrainingError(
            f"{str(folder)!r} holds a finished run; choose another folder, or say overwrite"
        )
    if resume:
        return
    if CHECKPOINTS in found:
        raise TrainingError(
            f"{str(folder)!r} holds a run that was interrupted; say resume to go on with it, or "
            "overwrite to start anew"
        )
    if found:
        raise TrainingError(f"{str(folder)!r} is not empty and holds no run; choose another folder")


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be made, or written to."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise TrainingError(f"{str(there)!r} is a file; expected a folder to write to")
    if not os.access(there, os.W_OK | os.X_OK):
        raise TrainingError(
            f"nothing can be written into {str(there)!r}; expected a folder that you may write to"
        )


def clear(folder: Path) -> None:
    """Take a run away."""
    for name in OF_A_RUN:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def recipe_file(given: str | Path | None, folder: Path, *, resume: bool) -> str | Path | None:
    """The recipe that was named; where none was and a run is resumed, that run's own."""
    own = folder / RECIPE_NAME
    return own if given is None and resume and own.exists() else given


def check_same_recipe(folder: Path, recipe: Recipe) -> None:
    """Refuse to go on with checkpoints of another recipe. The data may have moved."""
    path = folder / RECIPE_NAME
    if not path.exists():
        return
    begun = Recipe.read(path)
    for key in Recipe.model_fields:
        before, now = getattr(begun, key), getattr(recipe, key)
        if before != now and key not in DATA_PLACES:
            raise TrainingError(
                f"{str(folder)!r} was begun with {key}={before!r} and {key}={now!r} is asked for; "
                "go on with the recipe of its beginning, or say overwrite to start anew"
            )


def without_places(recipe: Recipe) -> Recipe:
    """A recipe for others: names of own files are kept, where they are on this machine is not."""
    own = {key: getattr(recipe, key) for key in DATA_PLACES if key != "data_dir"}
    names = {key: Path(value).name for key, value in own.items() if value is not None}
    return recipe.model_copy(update={"data_dir": None, **names})

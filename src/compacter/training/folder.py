"""The folder of a run: what may be written into it, and with what an interrupted run goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
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
    *(RECIPE_NAME, ADAPTER_NAME, MODEL_NAME, CHECKPOINTS),
    *(PREDICTIONS_NAME, LOG_NAME, TENSORBOARD_NAME, RESULT_NAME),
)
"""What a run writes; nothing else in its folder is ever taken away. A run that replaces another one
is put in its place in this order, after the other one was taken away in the reverse order."""

NEW_NAME, OLD_NAME = ".compacter-new", ".compacter-old"
"""In a run's folder: the run that is to replace it, and what is left of the replaced one. They are
inside of the folder because it may be a mount point, or the current folder, which cannot be
renamed, and may hold other things, which are not moved."""


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
        if found and not found & {RESULT_NAME, RECIPE_NAME, CHECKPOINTS, NEW_NAME}:
            raise TrainingError(
                f"{str(folder)!r} is not empty and holds no run that could be overwritten; choose "
                "another folder"
            )
        return
    if RESULT_NAME in found and NEW_NAME not in found:
        raise TrainingError(
            f"{str(folder)!r} holds a finished run; choose another folder, or say overwrite"
        )
    if resume:
        return
    if RESULT_NAME in found:
        raise TrainingError(
            f"{str(folder)!r} holds a finished run, and one that was to replace it and was "
            "interrupted; say resume to go on with the new one, or overwrite to start it anew"
        )
    if CHECKPOINTS in found or NEW_NAME in found:
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


def is_finished(folder: Path) -> bool:
    """Whether a finished run is there, and no other one has begun to replace it."""
    return (folder / RESULT_NAME).exists() and not (folder / NEW_NAME).exists()


def work_folder(folder: Path, *, resume: bool, overwrite: bool = False) -> Path:
    """Where a run writes until it is complete. One that replaces another run leaves that as it is
    until then."""
    new = folder / NEW_NAME
    return new if overwrite or (resume and new.exists()) else folder


def finish_overwrite(folder: Path) -> None:
    """Put a new run that is complete in the place of the old one.

    A process may be killed at any point of this; the next call then goes on. The new run's result
    is the last thing to be moved, so while it waits there is something to do. Its recipe is the
    first, so while it waits all that is in the folder is of the old run."""
    new, old = folder / NEW_NAME, folder / OLD_NAME
    try:
        if (new / RESULT_NAME).exists():
            if (new / RECIPE_NAME).exists():
                shutil.rmtree(old, ignore_errors=True)
                _move(_replaced(folder), folder, old)
            _move([name for name in OF_A_RUN if name != CHECKPOINTS], new, folder)
            shutil.rmtree(new)
    except OSError as error:
        raise TrainingError(
            f"the new run is complete in {str(new)!r} and cannot be moved to {str(folder)!r}: "
            f"{error.strerror or error}; mend this and say resume, or move it yourself"
        ) from None
    shutil.rmtree(old, ignore_errors=True)


def _replaced(folder: Path) -> list[str]:
    """What of the old run goes: all but a model that the new run's adapter belongs to."""
    new = folder / NEW_NAME
    base = Path(Recipe.read(new / RECIPE_NAME).model).resolve()
    is_base = base == (folder / MODEL_NAME).resolve() and not (new / MODEL_NAME).exists()
    return [name for name in reversed(OF_A_RUN) if not (is_base and name == MODEL_NAME)]


def _move(names: Iterable[str], source: Path, target: Path) -> None:
    target.mkdir(exist_ok=True)
    for name in names:
        if (source / name).exists():
            shutil.move(source / name, target / name)  # copies where it cannot rename


def recipe_file(given: str | Path | None, folder: Path, *, resume: bool) -> str | Path | None:
    """The recipe that was named; where none was and a run is resumed, that run's own."""
    own = work_folder(folder, resume=resume) / RECIPE_NAME
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

"""How long runs will take, from those that are finished."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from compacter.experiments.store import Run

ALIKE = (
    ("model", "task", "train_file", "max_train_samples", "epochs", "method"),
    ("model", "task", "train_file", "max_train_samples", "epochs"),
    ("model", "task", "train_file"),
    ("model",),
    (),
)
"""What runs must share for one to tell about the other: the first that some share is taken."""


class Pace:
    """The mean seconds of the finished runs that are most alike."""

    def __init__(self, finished: Iterable[Run] = ()) -> None:
        self._seconds: dict[str, list[float]] = {}
        for run in finished:
            self.add(run)

    def add(self, run: Run) -> None:
        if run.seconds is not None:
            for keys in ALIKE:
                self._seconds.setdefault(_shared(keys, run.recipe), []).append(run.seconds)

    def seconds(self, recipe: Mapping[str, Any]) -> float | None:
        """None as long as no run is finished."""
        for keys in ALIKE:
            known = self._seconds.get(_shared(keys, recipe))
            if known:
                return fmean(known)
        return None

    def knows(self, recipe: Mapping[str, Any]) -> bool:
        """Whether a run of the same kind is finished."""
        return kind(recipe) in self._seconds


def kind(recipe: Mapping[str, Any]) -> str:
    """The same for runs that are most alike."""
    return _shared(ALIKE[0], recipe)


def _shared(keys: tuple[str, ...], recipe: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={recipe.get(key)}" for key in keys)


def clock(seconds: float) -> str:
    """Hours, minutes and seconds, as 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

"""A grid's recipes, resolved: what each run is, on what data, and so what it is called."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from compacter.errors import CompacterError, ExperimentError
from compacter.experiments.grid import NO_ROWS, Grid
from compacter.experiments.store import Planned, run_id
from compacter.tasks import SPLIT_SEED, Source, Splits, Task, fingerprint, load, take
from compacter.training.recipe import Recipe


def make_plan(grid: Grid) -> list[Planned]:
    """The runs of a grid, less those on more training rows than there are where that is an axis. A
    run whose data or model cannot be read is planned too, with the reason, so that it fails
    alone."""
    recipes = grid.recipes()
    data, by_size = _Data(), "max_train_samples" in grid.varied
    found = {}
    for recipe in sorted(recipes, key=lambda recipe: str((recipe.task, recipe.train_file))):
        planned, rows = _planned(recipe, label(grid, recipe), data)
        if not by_size or rows is None or rows >= (recipe.max_train_samples or 0):
            found[recipe] = planned
    if not found:
        raise ExperimentError(NO_ROWS)
    return list({found[r].id: found[r] for r in recipes if r in found}.values())


def given(recipe: Recipe) -> dict[str, Any]:
    """What a recipe says, without what it leaves open."""
    return recipe.model_dump(mode="json", exclude_defaults=True) | {"method": recipe.method}


def label(grid: Grid, recipe: Recipe) -> str:
    """What tells a run from the others of its grid."""
    varied = [name for name in grid.varied if name not in ("method", "task")]
    parts = [recipe.method, recipe.task_name() or "custom"]
    parts += [f"{name}={getattr(recipe, name)}" for name in varied]
    return " ".join(part for part in parts if not part.endswith("=None"))


def _planned(recipe: Recipe, name: str, data: _Data) -> tuple[Planned, int | None]:
    """The run, and how many rows it trains on, if they could be read."""
    from compacter.training.prepare import resolve

    said, open_ = given(recipe), recipe.model_dump(mode="json")
    unread = run_id(open_, None)
    try:
        resolved, _, splits, _ = resolve(recipe, data.load)
    except (CompacterError, OSError) as error:
        kind = type(error).__name__
        return Planned(unread, name, said, open_, None, unread, str(error), kind), None
    plain = resolved.model_dump(mode="json")
    digest = data.fingerprint(recipe, splits)
    return Planned(run_id(plain, digest), name, said, plain, digest, unread), len(splits.train)


class _Data:
    """Rows are read once for all runs of a task, and hashed once for all runs on the same rows.
    Only the last task's rows are kept, so runs come sorted by task."""

    def __init__(self) -> None:
        self._load = lru_cache(maxsize=1)(load)
        self._fingerprints: dict[Any, str] = {}

    def load(
        self,
        task: str | None,
        source: Source | None,
        *,
        max_train_samples: int | None = None,
        seed: int = SPLIT_SEED,
    ) -> tuple[Task, Splits]:
        declared, splits = self._load(task, source)  # type: ignore[arg-type]  # sources are frozen
        return declared, replace(splits, train=take(splits.train, max_train_samples, seed))

    def fingerprint(self, recipe: Recipe, splits: Splits) -> str:
        drawn = recipe.max_train_samples
        seed = None if drawn is None else recipe.seed
        key = (recipe.task_name(), recipe.source(), drawn, seed)
        if key not in self._fingerprints:
            self._fingerprints[key] = fingerprint(splits)
        return self._fingerprints[key]

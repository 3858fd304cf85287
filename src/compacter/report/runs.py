"""The runs of a folder: finished, failed and unfinished ones."""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NoReturn

from pydantic import TypeAdapter, ValidationError

from compacter.errors import ExperimentError, ReportError
from compacter.experiments.store import FAILED_NAME, PLAN_NAME, SWEEP_NAME, Store
from compacter.methods import METHODS
from compacter.tasks import BUILTIN_TASKS, TASKS, Task
from compacter.training.folder import LOG_NAME, RECIPE_NAME
from compacter.training.result import CHECKPOINTS, PREDICTIONS_NAME, RESULT_NAME, Result

SHORT = 6
"""Digits of a fingerprint that are shown."""
OWN = "own"
"""The benchmark of tasks that are none of the package's."""


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run. Its id is its folder, seen from the folder that is reported."""

    id: str
    folder: Path
    result: Result
    data: str | None = None
    """A name of its data, where runs like this one were trained on other data."""

    @property
    def method(self) -> str:
        return self.result.method

    @property
    def task(self) -> str:
        return self.result.task

    @property
    def scores(self) -> dict[str, float]:
        """The test metrics; those of validation where there is no test set."""
        return self.result.test or self.result.validation

    @cached_property
    def validation_score(self) -> float:
        """The mean of the validation metrics, by which everything is chosen; no number is the
        worst."""
        values = self.result.validation.values()
        mean = math.fsum(values) / len(values) if values else math.nan
        return mean if math.isfinite(mean) else -math.inf

    @property
    def memory_per_row(self) -> float:
        """Peak memory for each row of a batch, in MB: batches may be of different sizes."""
        rows: int = self.result.recipe["batch_size"]
        return self.result.peak_memory_bytes / rows / 1e6

    def setting(self, key: str) -> Any:
        """A key of the recipe, or what the method took where the recipe left it open; or `data`.
        Lists are tuples, so that settings can be compared and hashed."""
        value = self.data if key == "data" else self.result.recipe.get(key)
        if value is None:
            value = self.result.settings.get(key)
        return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True)
class FailedRun:
    """A run that ended with an error."""

    id: str
    recipe: Mapping[str, Any]
    error: str
    kind: str
    when: str
    attempts: int


@dataclass(frozen=True)
class Found:
    """What a folder holds."""

    folder: Path
    runs: tuple[Run, ...]
    failed: tuple[FailedRun, ...]
    unfinished: int
    sweep: str | None
    """The text of the sweep's file."""
    planned: int
    """Runs in the plans of sweeps."""
    missing: int
    """Those of them that have no result."""

    @property
    def diverged(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if run.result.status == "diverged")


def read_folder(folder: Path) -> Found:
    """All runs in the folder, at any depth and behind links. A run or folder that cannot be read is
    an error: a table that silently lacks a run would be wrong."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise ReportError(f"{str(folder)!r} {what}; expected a folder with runs")
    runs: list[Run] = []
    failed: list[FailedRun] = []
    unfinished = 0
    planned: set[Path] = set()
    seen: set[Path] = set()
    for path, folders, names in os.walk(folder, onerror=_unreadable, followlinks=True):
        folders.sort()
        where = Path(path)
        if where.resolve() in seen:  # by another way, or by a link to a folder above
            folders.clear()
            continue
        seen.add(where.resolve())
        if SWEEP_NAME in names and PLAN_NAME in names:
            planned |= _planned(Store(where))
        if RESULT_NAME in names:
            runs.append(Run(_id(where, folder), where, _read_result(where / RESULT_NAME)))
        elif FAILED_NAME in names:
            failed.append(_read_failed(where / FAILED_NAME, _id(where, folder)))
        elif RECIPE_NAME in names and (LOG_NAME in names or CHECKPOINTS in folders):
            unfinished += 1
        else:
            continue
        folders.clear()  # what is inside a run is no run
    if not runs and not failed:
        raise ReportError(
            f"{str(folder)!r} holds no finished run; expected folders with a {RESULT_NAME}, as "
            "'compacter train --output' leaves them"
        )
    return Found(
        folder,
        _with_data(runs),
        tuple(failed),
        unfinished,
        _text(folder / SWEEP_NAME),
        len(planned),
        len(planned - {run.folder.absolute() for run in runs}),
    )


def _unreadable(error: OSError) -> NoReturn:
    raise ReportError(f"{error.filename!r} cannot be read: {error.strerror}")


def _planned(store: Store) -> set[Path]:
    try:
        return {store.run_folder(run.id) for run in store.plan()}
    except ExperimentError as error:
        raise ReportError(f"{error}; mend or remove it") from None


def _with_data(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs of a task with names for their data, if two of them would have the same data if they
    were alike, and do not."""
    alike: dict[Any, list[Run]] = defaultdict(list)
    for run in runs:
        place = (run.result.model, run.task, run.setting("tune_output_layer"))
        alike[place].append(run)
    named: dict[Run, str] = {}
    for part in alike.values():
        if not _tell_apart(part, lambda _: ""):
            by_name = _tell_apart(part, _data_name)
            for run in part:
                digest = "" if by_name else f" {run.result.data_fingerprint[:SHORT]}"
                named[run] = _data_name(run) + digest
    return tuple(replace(run, data=named.get(run)) for run in runs)


def _tell_apart(runs: Sequence[Run], name: Callable[[Run], str]) -> bool:
    """Whether runs with the same name and rows have the same data. Which rows are drawn, where not
    all are, depends on the seed."""
    found: dict[Any, str] = {}
    for run in runs:
        size, digest = run.setting("max_train_samples"), run.result.data_fingerprint
        drawn = None if size is None else (size, run.result.seed)
        if found.setdefault((name(run), drawn), digest) != digest:
            return False
    return True


def _data_name(run: Run) -> str:
    place = run.setting("train_file") or run.setting("data_dir")
    return Path(place).name if place else "usual"


def _id(where: Path, folder: Path) -> str:
    inside = where.relative_to(folder).as_posix()
    return (where.resolve().name if inside == "." else inside).removeprefix("runs/")


@lru_cache(maxsize=1)
def _result_type() -> TypeAdapter[Result]:
    return TypeAdapter(Result)


def _read_result(path: Path) -> Result:
    try:
        return _result_type().validate_json(path.read_bytes())
    except OSError as error:
        raise ReportError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ReportError(
            f"{str(path)!r} is not the result of a run: {where + ': ' if where else ''}"
            f"{first['msg']}; mend or remove it"
        ) from None


def _read_failed(path: Path, run: str) -> FailedRun:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        recipe = values.get("recipe") or {}
        return FailedRun(
            id=run,
            recipe={str(key): value for key, value in recipe.items()},
            error=str(values["error"]),
            kind=str(values.get("kind", "")),
            when=str(values.get("when", "")),
            attempts=int(values.get("attempts", 1)),
        )
    except OSError as error:
        raise ReportError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReportError(
            f"{str(path)!r} is not the record of a failed run: {error}; mend or remove it"
        ) from None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def read_predictions(run: Run) -> list[dict[str, Any]] | None:
    """A run's predictions in the order of the rows, or None where there are none."""
    path = run.folder / PREDICTIONS_NAME
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{str(path)!r} cannot be read: {error}") from None
    try:
        rows: list[dict[str, Any]] = json.loads(f"[{','.join(line for line in lines if line)}]")
        return sorted(rows, key=lambda row: int(row["index"])) if rows else None
    except (ValueError, KeyError, TypeError) as error:
        raise ReportError(f"{str(path)!r} is not a list of predictions: {error}") from None


# What tasks and methods are called, and in which order


TITLES = {
    "cola": "CoLA",
    "sst2": "SST-2",
    "mrpc": "MRPC",
    "qqp": "QQP",
    "stsb": "STS-B",
    "mnli": "MNLI",
    "qnli": "QNLI",
    "rte": "RTE",
    "boolq": "BoolQ",
    "cb": "CB",
    "copa": "COPA",
    "multirc": "MultiRC",
    "record": "ReCoRD",
    "wic": "WiC",
}
BENCHMARKS = {
    "glue": "GLUE",
    "superglue": "SuperGLUE",
    "builtin": "Tasks of the package",
    OWN: "Other tasks",
}
METRICS = {
    "accuracy": "acc.",
    "matthews": "Matthews",
    "f1": "F1",
    "f1a": "F1a",
    "em": "EM",
    "pearson": "Pearson",
    "spearman": "Spearman",
}


def known_task(name: str) -> Task | None:
    return TASKS.get(name) or BUILTIN_TASKS.get(name)


def benchmark_of(task: str) -> str:
    known = known_task(task)
    return OWN if known is None else known.benchmark


def task_order(task: str) -> tuple[int, str]:
    names = (*TITLES, *BUILTIN_TASKS)
    return (names.index(task) if task in names else len(names), task)


def method_order(method: str) -> tuple[int, str]:
    names = list(METHODS)
    return (names.index(method) if method in names else len(names), method)


def task_title(task: str) -> str:
    return TITLES.get(task, task.removeprefix("builtin/"))


def method_title(method: str) -> str:
    return METHODS[method].title if method in METHODS else method

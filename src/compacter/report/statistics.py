"""Averages, deviations over seeds, and a paired bootstrap against full fine-tuning."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compacter.errors import ReportError
from compacter.report.runs import Run, known_task, read_predictions
from compacter.tasks import Row, Task, score

Array = NDArray[Any]

RESAMPLES = 1000
SEED = 42
LEVEL = 0.05
CHUNK = 4_000_000
"""Numbers of one array of weights."""


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and the sample standard deviation where there are two values or more."""
    middle = mean(values)
    if len(values) < 2:
        return middle, None
    return middle, math.sqrt(math.fsum((v - middle) ** 2 for v in values) / (len(values) - 1))


def average(columns: Mapping[str, Sequence[float]]) -> float:
    """A table's average: the mean over all metrics of all tasks, so that a task with two metrics
    counts twice."""
    return mean([value for metrics in columns.values() for value in metrics])


@dataclass(frozen=True)
class Comparison:
    """The difference between two methods' scores."""

    difference: float
    low: float
    high: float
    """The ends of the interval that holds 95% of the resampled differences."""
    p: float

    @property
    def significant(self) -> bool:
        return self.p < LEVEL


@dataclass(frozen=True)
class Resampled:
    """A task's difference, and the differences of its resampled test sets."""

    difference: float
    resampled: Array
    metrics: int


def compare(parts: Sequence[Resampled]) -> Comparison:
    """One task, or the average over several: each weighs as much as it has metrics."""
    weights = np.array([part.metrics for part in parts], dtype=float)
    weights /= weights.sum()
    point = float(sum(w * part.difference for w, part in zip(weights, parts, strict=True)))
    drawn = sum(w * part.resampled for w, part in zip(weights, parts, strict=True))
    low, high = np.quantile(drawn, (LEVEL / 2, 1 - LEVEL / 2))
    tail = min((drawn <= 0).sum(), (drawn >= 0).sum())
    p = min(1.0, 2 * (1 + float(tail)) / (1 + len(drawn)))
    return Comparison(point, float(low), float(high), p)


class Bootstrap:
    """Compares runs on resampled test rows. Predictions are read once."""

    def __init__(self, resamples: int = RESAMPLES, seed: int = SEED) -> None:
        self.resamples, self.seed = resamples, seed
        self._known: dict[Run, _Answers | None] = {}

    def __call__(self, ours: Sequence[Run], theirs: Sequence[Run]) -> Resampled | None:
        """Draw the test rows anew, the same ones for both sides, and score both sides each time.
        With several seeds a side's score is the mean over them. Rows that are scored together are
        drawn together. None where there are no predictions, or not of the same rows."""
        answers = [self._answers(run) for run in (*ours, *theirs)]
        first = answers[0]
        systems = [a for a in answers if a is not None and first is not None and a.same_rows(first)]
        if first is None or len(systems) < len(answers):
            return None
        task = _task(ours[0])
        metrics = [name for name in task.metrics if name in ours[0].scores]
        in_groups = task.kind == "classes" and "em" in metrics
        if not metrics or (in_groups and first.units is None):
            return None
        scorer = _Scorer(task, metrics, first, [system.given for system in systems])
        generator = np.random.default_rng([self.seed, zlib.crc32(task.name.encode())])

        def difference(weights: Array) -> Array:
            scores = scorer(weights)
            sides = scores[:, : len(ours)], scores[:, len(ours) :]
            return np.asarray(sides[0].mean(axis=1) - sides[1].mean(axis=1))

        point = difference(scorer.times[None, :])
        drawn = [difference(weights) for weights in scorer.draws(self.resamples, generator)]
        return Resampled(float(point[0]), np.concatenate(drawn), len(metrics))

    def _answers(self, run: Run) -> _Answers | None:
        if run not in self._known:
            self._known[run] = _read(run)
        return self._known[run]


@dataclass(frozen=True)
class _Answers:
    gold: Array
    given: Array
    index: Array
    units: Array | None
    """The number of the group that a row belongs to, or None: each row is its own."""

    def same_rows(self, other: _Answers) -> bool:
        return np.array_equal(self.index, other.index) and np.array_equal(self.gold, other.gold)


def _read(run: Run) -> _Answers | None:
    rows = read_predictions(run)
    try:
        return None if rows is None else _as_arrays(run, rows)
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(
            f"the predictions in {str(run.folder)!r} do not fit the task {run.task!r}: {error}"
        ) from None


def _as_arrays(run: Run, rows: Sequence[Mapping[str, Any]]) -> _Answers:
    index = np.array([row["index"] for row in rows])
    task = _task(run)
    if task.kind == "entity":
        given = np.array([_entity_scores(task, row) for row in rows])
        return _Answers(np.zeros(len(rows)), given, index, None)
    gold = np.array([row["label"] for row in rows], dtype=float)
    given = np.array([-1 if row["answer"] is None else row["answer"] for row in rows], dtype=float)
    given[~np.isfinite(given)] = -1
    groups = [tuple(row["group"]) if "group" in row else None for row in rows]
    if None in groups:
        return _Answers(gold, given, index, None)
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return _Answers(gold, given, index, np.array([numbers[group] for group in groups]))


def _entity_scores(task: Task, row: Mapping[str, Any]) -> list[float]:
    found = score(task, [row["answer"]], [Row({}, answers=tuple(row["label"]))])
    return [found[name] for name in task.metrics]


def _task(run: Run) -> Task:
    """The task of a run; own data is described by the recipe."""
    known = known_task(run.task)
    if known is not None:
        return known
    number = bool(run.setting("regression"))
    return Task(
        name=run.task,
        benchmark="custom",
        kind="number" if number else "classes",
        fields=(),
        pair=((), ()),
        labels=tuple(map(str, run.setting("labels") or ())),
        metrics=tuple(run.scores),
        size="given",
    )


class _Scorer:
    """A task's score of each system for many weightings of the rows at once.

    Rows that look alike to every system are one row that is drawn more often: drawing N rows is
    then one multinomial draw over the different rows."""

    def __init__(
        self, task: Task, metrics: Sequence[str], rows: _Answers, systems: Sequence[Array]
    ) -> None:
        self.task, self.metrics = task, metrics
        self.units = rows.units
        answers = [given.reshape(len(rows.gold), -1) for given in systems]
        table = np.column_stack([rows.gold, *answers])
        if self.units is None:
            table, times = np.unique(table, axis=0, return_counts=True)
            self.times = times.astype(float)
        else:
            self.times = np.ones(int(self.units.max()) + 1)
        self.gold = table[:, 0]
        width = answers[0].shape[1]
        self.systems = [table[:, 1 + i * width : 1 + (i + 1) * width] for i in range(len(systems))]

    def draws(self, count: int, generator: np.random.Generator) -> Iterator[Array]:
        total = int(self.times.sum())
        step = max(1, CHUNK // len(self.gold))
        for start in range(0, count, step):
            size = min(step, count - start)
            yield generator.multinomial(total, self.times / total, size=size).astype(float)

    def __call__(self, weights: Array) -> Array:
        """The mean of the metrics in percent, one row per weighting and one column per system."""
        rows = weights if self.units is None else weights[:, self.units]
        return np.column_stack([self._score(weights, rows, answers) for answers in self.systems])

    def _score(self, weights: Array, rows: Array, answers: Array) -> Array:
        if self.task.kind == "entity":
            return np.asarray((rows @ answers).mean(axis=1) / rows.sum(axis=1))
        given = answers[:, 0]
        if self.task.kind == "number":
            found = [_correlation(name, rows, self.gold, given) for name in self.metrics]
        else:
            found = [self._class_metric(name, weights, rows, given) for name in self.metrics]
        return np.asarray(100.0 * np.mean(found, axis=0))

    def _class_metric(self, name: str, weights: Array, rows: Array, given: Array) -> Array:
        if name == "em":
            assert self.units is not None  # without groups there is no such metric
            right = np.ones(len(self.times), dtype=bool)
            np.logical_and.at(right, self.units, given == self.gold)
            return np.asarray(weights @ right / weights.sum(axis=1))
        if name == "accuracy":
            return np.asarray(rows @ (given == self.gold) / rows.sum(axis=1))
        macro = name != "matthews" and self.task.positive is None
        if not macro:  # what is no label counts as the opposite class
            given = np.where(given < 0, 1 - self.gold, given)
        classes = np.arange(max(len(self.task.labels), 2))
        is_gold, is_given = self.gold[:, None] == classes, given[:, None] == classes
        both, gold, found = (
            rows @ part.astype(float) for part in (is_gold & is_given, is_gold, is_given)
        )
        if name == "matthews":
            return _matthews(both, gold, found)
        f1 = _divide(2 * both, gold + found)
        return np.asarray(f1.mean(axis=1) if macro else f1[:, self.task.positive])


def _matthews(both: Array, gold: Array, found: Array) -> Array:
    total = gold.sum(axis=1)
    joint = both.sum(axis=1) * total - (gold * found).sum(axis=1)
    spread = (total**2 - (gold**2).sum(axis=1)) * (total**2 - (found**2).sum(axis=1))
    return _divide(joint, np.sqrt(np.maximum(spread, 0)))


def _correlation(name: str, weights: Array, x: Array, y: Array) -> Array:
    if name == "spearman":
        return _pearson(weights, _ranks(weights, x), _ranks(weights, y))
    return _pearson(weights, x[None, :], y[None, :])


def _pearson(weights: Array, x: Array, y: Array) -> Array:
    """0 where one side is constant."""
    total = weights.sum(axis=1, keepdims=True)
    x = x - (weights * x).sum(axis=1, keepdims=True) / total
    y = y - (weights * y).sum(axis=1, keepdims=True) / total
    xx, yy, xy = ((weights * a * b).sum(axis=1) for a, b in ((x, x), (y, y), (x, y)))
    return _divide(xy, np.sqrt(xx * yy))


def _ranks(weights: Array, values: Array) -> Array:
    """Mean ranks of values of which each occurs as often as its weight says."""
    _, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(place.max() + 1))
    times = np.add.reduceat(weights[:, order], starts, axis=1)
    return np.asarray((np.cumsum(times, axis=1) - times / 2 + 0.5)[:, place])


def _divide(above: Array, below: Array) -> Array:
    """0 where nothing is to be divided by."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 1e-12)

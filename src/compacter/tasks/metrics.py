"""Scores in percent, by the rules of the benchmarks.

From scikit-learn and SciPy, except for MultiRC and ReCoRD, which no library has. An answer that
is no label is wrong: for accuracy it equals no label, for the F1 of one class and for Matthews'
correlation it counts as the opposite class, for the mean F1 over classes it is a miss of its class
and no class of its own, for the correlations it counts as -1."""

from __future__ import annotations

import math
import re
import string
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

from compacter.errors import TaskError
from compacter.extras import require
from compacter.tasks.formats import Answer
from compacter.tasks.rows import Row
from compacter.tasks.table import Task

INVALID = -1

Predictions = Sequence[Answer | None]


def score(task: Task, predictions: Predictions, rows: Sequence[Row]) -> dict[str, float]:
    """The task's metrics in percent. `predictions` are answers as `parse` gives them: a class, a
    number, a text for ReCoRD, None for what is none of these; one for each row."""
    if len(predictions) != len(rows):
        raise TaskError(
            f"{task.name}: {len(predictions)} predictions for {len(rows)} rows; expected one each"
        )
    if not rows:
        raise TaskError(f"{task.name}: there are no rows to score")
    for row in rows:
        if row.label is None and not row.answers:
            raise TaskError(
                f"{task.name}: row {row.index} has no label; only labelled rows can be scored"
            )
    _check_types(task, predictions)
    found = {}
    for name in task.metrics:
        value = _METRICS[name](task, predictions, rows)
        found[name] = 100.0 * value if math.isfinite(value) else 0.0
    return found


def mean_score(metrics: Mapping[str, float]) -> float:
    """The mean of a task's metrics: the one number that picks its checkpoint."""
    if not metrics:
        raise TaskError("there are no metrics to take the mean of")
    return sum(metrics.values()) / len(metrics)


def _check_types(task: Task, predictions: Predictions) -> None:
    wanted: dict[str, tuple[type, str]] = {
        "entity": (str, "a text"),
        "number": (Real, "a number"),
    }
    kind, words = wanted.get(task.kind, (Integral, "the index of a class"))
    for prediction in predictions:
        if prediction is not None and not isinstance(prediction, kind):
            raise TaskError(
                f"{task.name}: found the prediction {prediction!r}; expected {words} or None "
                "(parse() turns texts into answers)"
            )


# Classes


def _classes(
    task: Task, predictions: Predictions, rows: Sequence[Row]
) -> tuple[list[int], list[int]]:
    """Right and predicted classes; what is no class is INVALID."""
    known = range(len(task.labels))
    gold = [int(row.label) for row in rows if row.label is not None]
    return gold, [int(p) if p in known else INVALID for p in predictions]  # type: ignore[arg-type]


def _opposed(gold: list[int], predicted: list[int]) -> list[int]:
    """With two classes: an invalid prediction becomes the class that is wrong."""
    return [1 - g if p == INVALID else p for g, p in zip(gold, predicted, strict=True)]


def _accuracy(task: Task, predictions: Predictions, rows: Sequence[Row]) -> float:
    return float(_sklearn().accuracy_score(*_classes(task, predictions, rows)))


def _matthews(task: Task, predictions: Predictions, rows: Sequence[Row]) -> float:
    gold, predicted = _classes(task, predictions, rows)
    return float(_quietly(_sklearn().matthews_corrcoef, gold, _opposed(gold, predicted)))


def _f1(task: Task, predictions: Predictions, rows: Sequence[Row]) -> float:
    if task.kind == "entity":
        return _mean_over_answers(_token_f1, predictions, rows)
    gold, predicted = _classes(task, predictions, rows)
    f1 = _sklearn().f1_score
    if task.positive is None:
        classes = list(range(len(task.labels)))
        return float(f1(gold, predicted, labels=classes, average="macro", zero_division=0.0))
    predicted = _opposed(gold, predicted)
    return float(f1(gold, predicted, pos_label=task.positive, zero_division=0.0))


# Numbers


def _numbers(predictions: Predictions, rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    gold = [float(row.label) for row in rows if row.label is not None]
    values = (float(INVALID if p is None else p) for p in predictions)
    return gold, [value if math.isfinite(value) else float(INVALID) for value in values]


def _correlation(name: str, predictions: Predictions, rows: Sequence[Row]) -> float:
    """0 where one side is constant: it says nothing about the other."""
    gold, predicted = _numbers(predictions, rows)
    if len(set(gold)) < 2 or len(set(predicted)) < 2:
        return 0.0
    stats = require("scipy.stats", "train", "scoring")
    return float(_quietly(getattr(stats, name), gold, predicted).statistic)


def _pearson(task: Task, predictions: Predictions, rows: Sequence[Row]) -> float:
    return _correlation("pearsonr", predictions, rows)


def _spearman(task: Task, predictions: Predictions, rows: Sequence[Row]) -> float:
    return _correlation("spearmanr", predictions, rows)


# MultiRC and ReCoRD


def _em(task: Task, predictions: Predictions, rows: Sequence[Row]) -> float:
    """MultiRC: the share of questions with every answer judged rightly. ReCoRD: the share of
    queries whose answer is one of the right ones."""
    if task.kind == "entity":
        return _mean_over_answers(_exact, predictions, rows)
    gold, predicted = _classes(task, predictions, rows)
    right: dict[tuple[int, int] | None, bool] = {}
    for row, g, p in zip(rows, gold, predicted, strict=True):
        right[row.group] = right.get(row.group, True) and g == p
    return sum(right.values()) / len(right)


def _mean_over_answers(
    compare: Callable[[str, str], float], predictions: Predictions, rows: Sequence[Row]
) -> float:
    """The best over a row's right answers, and the mean of that over the rows."""
    best = [
        max(compare(str("" if prediction is None else prediction), a) for a in row.answers)
        for prediction, row in zip(predictions, rows, strict=True)
    ]
    return sum(best) / len(best)


def normalised(text: str) -> str:
    """Lower case, without punctuation and the words a, an, the, with single spaces."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def _exact(prediction: str, answer: str) -> float:
    return float(normalised(prediction) == normalised(answer))


def _token_f1(prediction: str, answer: str) -> float:
    """F1 of the words of the prediction against those of the answer."""
    found, wanted = normalised(prediction).split(), normalised(answer).split()
    common = sum((Counter(found) & Counter(wanted)).values())
    return 2 * common / (len(found) + len(wanted)) if common else 0.0


# Libraries


def _sklearn() -> Any:
    return require("sklearn.metrics", "train", "scoring")


def _quietly(function: Callable[..., Any], *arguments: Any) -> Any:
    """Without warnings about degenerate input, which scores 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments)


_METRICS: Mapping[str, Callable[[Task, Predictions, Sequence[Row]], float]] = {
    "accuracy": _accuracy,
    "matthews": _matthews,
    "f1": _f1,
    "f1a": _f1,
    "em": _em,
    "pearson": _pearson,
    "spearman": _spearman,
}

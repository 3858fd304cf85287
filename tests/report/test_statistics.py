"""Averages, deviations and the bootstrap against independent formulas."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compacter.paper import SCORES, score_columns, tables
from compacter.report.runs import Run, read_folder
from compacter.report.statistics import (
    Bootstrap,
    Resampled,
    average,
    compare,
    mean_and_deviation,
)
from compacter.tasks import TASKS, Row, score
from made_runs import make_run

SCORE_TABLES = sorted({name for names in SCORES.values() for name in names})


@pytest.mark.parametrize("name", SCORE_TABLES)
def test_averages_are_those_of_the_paper(name: str) -> None:
    """All of them: in none of the six tables does the paper's average deviate from its columns."""
    assert len(SCORE_TABLES) == 6
    rows = tables()[name]
    columns = 9 if name.startswith("superglue") else 11
    for row in rows:
        scores = score_columns(row["scores"])
        assert sum(map(len, scores.values())) == columns
        assert average(scores) == pytest.approx(row["scores"]["avg"], abs=0.01), row["method"]


def test_mean_and_deviation() -> None:
    values = [81.2, 79.9, 80.3, 84.0]
    mean, deviation = mean_and_deviation(values)
    assert mean == pytest.approx(statistics.mean(values))
    assert deviation == pytest.approx(statistics.stdev(values))
    assert mean_and_deviation([5.0]) == (5.0, None)


# The bootstrap


def draw(task: str, rows: int, seed: int) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """Labels, two systems' answers (some are none) and groups."""
    rng = random.Random(seed)
    kind = TASKS[task].kind
    if kind == "entity":
        names = ["Ada Lovelace", "the Ada", "Alan Turing", "Turing", "Grace"]
        gold: list[Any] = [rng.sample(names, 2) for _ in range(rows)]
        sides = [[rng.choice(names) for _ in range(rows)] for _ in range(2)]
    elif kind == "number":
        gold = [round(rng.uniform(0, 5), 1) for _ in range(rows)]
        sides = [
            [None if rng.random() < 0.05 else round(y + rng.gauss(0, s), 1) for y in gold]
            for s in (0.5, 1.0)
        ]
    else:
        classes = max(2, len(TASKS[task].labels))
        gold = [rng.randrange(classes) for _ in range(rows)]
        sides = [
            [y if rng.random() < s else rng.choice([*range(classes), None]) for y in gold]
            for s in (0.8, 0.6)
        ]
    return gold, sides[0], sides[1], [[i // 4, i // 2 % 2] for i in range(rows)]


def package_score(task: str, gold: list[Any], answers: list[Any], groups: list[Any]) -> float:
    entity = TASKS[task].kind == "entity"
    rows = [
        Row({}, answers=tuple(y), group=tuple(g)) if entity else Row({}, y, group=tuple(g))
        for y, g in zip(gold, groups, strict=True)
    ]
    return statistics.mean(score(TASKS[task], answers, rows).values())


def two_runs(
    folder: Path, task: str, gold: Any, ours: Any, theirs: Any, groups: Any = None
) -> list[Run]:
    for name, answers in (("a", ours), ("b", theirs)):
        make_run(folder / name, task=task, predictions=answers, labels=gold, groups=groups)
    return list(read_folder(folder).runs)


@pytest.mark.parametrize("task", TASKS)
def test_the_difference_is_that_of_the_scores(task: str, tmp_path: Path) -> None:
    gold, ours, theirs, groups = draw(task, 60, seed=1)
    a, b = two_runs(tmp_path, task, gold, ours, theirs, groups if task == "multirc" else None)
    found = Bootstrap(resamples=10)([a], [b])
    assert found is not None
    expected = package_score(task, gold, ours, groups) - package_score(task, gold, theirs, groups)
    assert found.difference == pytest.approx(expected, abs=1e-6)
    assert found.metrics == len(TASKS[task].metrics)


@pytest.mark.parametrize("task", ["cola", "mrpc", "cb", "stsb", "multirc", "record"])
def test_resampling_is_that_of_a_plain_loop(task: str, tmp_path: Path) -> None:
    """Mean, spread and quantiles of the differences, within what so few draws allow."""
    gold, ours, theirs, groups = draw(task, 80, seed=2)
    a, b = two_runs(tmp_path, task, gold, ours, theirs, groups if task == "multirc" else None)
    found = Bootstrap(resamples=2000)([a], [b])
    assert found is not None
    units: list[list[int]] = [[i] for i in range(80)]
    if task == "multirc":
        units = [[i, i + 1] for i in range(0, 80, 2)]
    rng = random.Random(3)
    drawn = []
    for _ in range(400):
        chosen = [rng.choice(units) for _ in units]
        rows = [i for unit in chosen for i in unit]
        again = [[place, 0] for place, unit in enumerate(chosen) for _ in unit]
        sides = [[side[i] for i in rows] for side in (gold, ours, theirs)]
        drawn.append(
            package_score(task, sides[0], sides[1], again)
            - package_score(task, sides[0], sides[2], again)
        )
    spread = statistics.stdev(drawn)
    assert found.resampled.mean() == pytest.approx(statistics.mean(drawn), abs=0.25 * spread)
    assert found.resampled.std() == pytest.approx(spread, rel=0.15)
    low, high = np.quantile(found.resampled, (0.1, 0.9))
    assert np.quantile(drawn, (0.1, 0.9)) == pytest.approx([low, high], abs=0.3 * spread)


def test_several_seeds_are_averaged(tmp_path: Path) -> None:
    gold, ours, theirs, _ = draw("rte", 50, seed=4)
    a, b = two_runs(tmp_path, "rte", gold, ours, theirs)
    found = Bootstrap(resamples=50)([a, b], [b])
    alone = Bootstrap(resamples=50)([a], [b])
    assert found is not None
    assert alone is not None
    assert found.difference == pytest.approx(alone.difference / 2)


def test_equal_runs_do_not_differ_and_far_ones_do(tmp_path: Path) -> None:
    gold = [0, 1] * 200
    a, b = two_runs(
        tmp_path, "rte", gold, gold, [1 - y if i < 100 else y for i, y in enumerate(gold)]
    )
    far, same = Bootstrap()([a], [b]), Bootstrap()([a], [a])
    assert far is not None
    assert same is not None
    result = compare([far])
    assert result.difference == pytest.approx(25.0)
    assert result.significant
    assert result.p == pytest.approx(2 / 1001)
    assert result.low < 25 < result.high
    assert compare([same]).p == 1.0
    assert compare([same]).difference == 0.0


def test_drawing_is_by_a_seed(tmp_path: Path) -> None:
    gold, ours, theirs, _ = draw("rte", 50, seed=5)
    a, b = two_runs(tmp_path, "rte", gold, ours, theirs)
    first, second, other = (Bootstrap(100, seed)([a], [b]) for seed in (1, 1, 2))
    assert first is not None
    assert second is not None
    assert other is not None
    assert (first.resampled == second.resampled).all()
    assert (first.resampled != other.resampled).any()


def test_an_average_weighs_tasks_by_their_metrics() -> None:
    one = Resampled(1.0, np.full(10, 1.0), 1)
    two = Resampled(4.0, np.full(10, 4.0), 2)
    assert compare([one, two]).difference == pytest.approx((1 + 4 + 4) / 3)


def test_other_rows_or_none_are_not_compared(tmp_path: Path) -> None:
    make_run(tmp_path / "a", predictions=[0, 1, 0], labels=[0, 1, 1])
    make_run(tmp_path / "b", predictions=[0, 1, 0], labels=[0, 1, 0])
    make_run(tmp_path / "c")
    a, b, c = read_folder(tmp_path).runs
    bootstrap = Bootstrap(resamples=10)
    assert bootstrap([a], [b]) is None
    assert bootstrap([a], [c]) is None
    assert bootstrap([c], [a]) is None


def test_multirc_needs_to_know_which_answers_belong_together(tmp_path: Path) -> None:
    gold, ours, theirs, _ = draw("multirc", 40, seed=6)
    a, b = two_runs(tmp_path, "multirc", gold, ours, theirs)
    assert Bootstrap(resamples=10)([a], [b]) is None

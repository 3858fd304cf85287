"""Runs on fewer training rows: in the main table, and in tables and figures of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from reading import contents, table_of

from compacter.tasks import TASKS
from made_runs import make_run


def test_a_task_with_one_number_of_rows_is_in_the_main_table(tmp_path: Path) -> None:
    for method in ("full", "compacter++"):
        make_run(tmp_path / f"{method}1", method=method, model="t5-base", task="rte")
        make_run(
            tmp_path / f"{method}2",
            method=method,
            model="t5-base",
            task="sst2",
            max_train_samples=4000,
            test={"accuracy": 90.0},
        )
    content = contents(tmp_path)
    table = table_of(content, "glue-t5-base-scores")
    assert [(column.title, column.below) for column in table.columns[2:]] == [
        ("SST-2", "acc., 4,000 rows"),
        ("RTE", "acc."),
        ("Average", ""),
    ]
    for row in table.rows:
        assert [cell.value for cell in row[2:]] == [90.0, 80.0, 85.0]
        assert [cell.paper is None for cell in row[2:]] == [True, False, True]
    assert not any(table.name.endswith("by-rows") for table in content.tables)
    (section,) = content.sections
    assert section.summary.startswith("Best average")


def test_a_task_with_several_numbers_of_rows_has_the_most_in_the_main_table(tmp_path: Path) -> None:
    for task, sizes in (("rte", (100, None)), ("cola", (100, 500)), ("sst2", (200,))):
        for size in sizes:
            make_run(tmp_path / f"{task}{size}", task=task, max_train_samples=size)
    content = contents(tmp_path)
    main = table_of(content, "glue-builtin-minilm-scores")
    assert [column.below for column in main.columns[2:5]] == [
        "Matthews, 500 rows",
        "acc., 200 rows",
        "acc.",
    ]
    by_rows = table_of(content, "glue-builtin-minilm-by-rows")
    assert [column.title for column in by_rows.columns[2:]] == ["100", "500"]
    assert [row[1].text for row in by_rows.rows] == ["CoLA", "RTE"]


def test_the_average_by_rows_is_over_the_tasks_that_every_size_has(tmp_path: Path) -> None:
    scores = {"cola": 10.0, "sst2": 90.0, "rte": 70.0}
    for task, sizes in (("cola", (100, 500)), ("sst2", (100, 500)), ("rte", (100, None))):
        for size in sizes:
            test = {TASKS[task].metrics[0]: scores[task] + (size or 0) / 100}
            make_run(tmp_path / f"{task}{size}", task=task, max_train_samples=size, test=test)
    content = contents(tmp_path)
    table = table_of(content, "glue-builtin-minilm-by-rows")
    average = next(row for row in table.rows if row[1].text == "Average")
    assert [cell.value for cell in average[2:]] == pytest.approx([51.0, 55.0])
    assert "the tasks that every size has, CoLA, SST-2." in table.caption
    figure = next(f for f in content.figures if f.name == "glue-builtin-minilm-rows-0")
    assert figure.caption.endswith("every size has: CoLA, SST-2.")
    assert "100 rows: 51.00" in figure.svg


def test_a_size_without_a_run_of_the_chosen_rate_is_left_out(tmp_path: Path) -> None:
    for rows, rate, seed in ((100, 3e-3, 1), (100, 3e-3, 2), (500, 1e-3, 1)):
        settings = {"max_train_samples": rows, "learning_rate": rate, "seed": seed}
        make_run(tmp_path / f"{rows}-{seed}", task="rte", **settings)  # type: ignore[arg-type]
    content = contents(tmp_path)
    assert table_of(content, "glue-builtin-minilm-scores").rows
    by_rows = table_of(content, "glue-builtin-minilm-by-rows")
    assert [column.title for column in by_rows.columns[2:]] == ["100"]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({100: 40, 500: 20, 1000: 10}, "Epochs: 40, 20, 10; the paper's are 1,000, 200, 100."),
        ({100: 1000, 4000: 25}, "Epochs: 1,000, 25."),
        ({100: 40, 300: 20}, "Epochs: 40, 20."),
    ],
)
def test_the_epochs_of_each_number_of_rows_are_told(
    sizes: dict[int, int], expected: str, tmp_path: Path
) -> None:
    for size, epochs in sizes.items():
        make_run(tmp_path / str(size), task="cola", max_train_samples=size, epochs=epochs)
    content = contents(tmp_path)
    table = table_of(content, "glue-builtin-minilm-by-rows")
    (figure,) = (figure for figure in content.figures if "-rows-" in figure.name)
    assert table.caption.endswith(expected)
    assert figure.caption.endswith(expected)

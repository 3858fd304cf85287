"""Time and memory against full fine-tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reading import contents, rows_of, table_of

from compacter.report.cells import DIVERGED, Table
from made_runs import make_run


def make_mnli(folder: Path, **settings: Any) -> Table:
    for method, batch, seconds, memory in (
        ("full", 100, 200.0, 16e9),
        ("compacter++", 150, 150.0, 18e9),
    ):
        changed = {"seconds": seconds, "peak_memory_bytes": int(memory)}
        given = {"method": method, "batch_size": batch, "changed": changed} | settings
        make_run(folder / method, task="mnli", model="t5-base", **given)
    return table_of(contents(folder), "glue-t5-base-efficiency")


def test_efficiency_is_against_full_fine_tuning_and_memory_for_each_row(tmp_path: Path) -> None:
    """The larger batch has the higher peak, and less memory for each row."""
    table = make_mnli(tmp_path, epochs=1)
    assert "Table 3" in table.title
    assert table.columns[7].below == "MB per row"
    row = rows_of(table)["Compacter++"]
    assert [cell.value for cell in row[4:]] == [150.0, -25.0, 12.0, 120.0, -25.0]
    assert row[5].paper == -26.51
    assert row[8].paper == pytest.approx(-29.5, abs=0.05)  # against full, as the time is


@pytest.mark.parametrize("settings", [{"epochs": 3}, {"epochs": 1, "max_train_samples": 100}])
def test_table_3_is_for_one_epoch_of_all_rows(settings: dict[str, int], tmp_path: Path) -> None:
    table = make_mnli(tmp_path, **settings)
    assert "Table 3" not in table.title
    assert all(cell.paper is None for row in table.rows for cell in row)


def make_timed(folder: Path, method: str, task: str, seconds: float, **changed: Any) -> None:
    changed |= {"seconds": seconds, "samples_per_second": 1000 / seconds}
    make_run(folder / f"{method}-{task}", method=method, task=task, changed=changed)


def test_time_is_compared_with_full_fine_tuning_in_the_same_way(tmp_path: Path) -> None:
    for method, epochs, seconds in (
        ("full", 3, 100.0),
        ("full", 20, 700.0),
        ("compacter++", 3, 80.0),
        ("compacter++", 20, 560.0),
        ("adapter", 20, 600.0),
    ):
        folder = tmp_path / f"{method}{epochs}"
        make_run(folder, method=method, task="rte", epochs=epochs, changed={"seconds": seconds})
    table = table_of(contents(tmp_path), "glue-builtin-minilm-efficiency")
    found = {label: cells[5].value for label, cells in rows_of(table).items()}
    assert found == {
        "Full fine-tuning (epochs=3)": None,
        "Full fine-tuning (epochs=20)": None,
        "Adapter": None,  # trained in one way, which may be either
        "Compacter++ (epochs=3)": pytest.approx(-20.0),
        "Compacter++ (epochs=20)": pytest.approx(-20.0),
    }
    assert "left out where it was trained in several ways" in table.caption


def test_time_is_compared_on_the_tasks_that_all_rows_share(tmp_path: Path) -> None:
    """Compacter++ lacks the long task; that makes it no faster."""
    for method, task, seconds in (
        ("full", "rte", 100.0),
        ("full", "mnli", 900.0),
        ("adapter", "rte", 80.0),
        ("adapter", "mnli", 800.0),
        ("compacter++", "rte", 90.0),
    ):
        make_timed(tmp_path, method, task, seconds)
    table = table_of(contents(tmp_path), "glue-builtin-minilm-efficiency")
    rows = rows_of(table)
    assert [row[4].value for row in rows.values()] == [100.0, 80.0, 90.0]
    assert [row[5].value for row in rows.values()] == pytest.approx([None, -20.0, -10.0])
    assert [row[4].best for row in rows.values()] == [False, True, False]
    assert "that all rows share, RTE." in table.caption


def test_nothing_is_best_where_no_task_is_shared(tmp_path: Path) -> None:
    make_timed(tmp_path, "full", "rte", 100.0)
    make_timed(tmp_path, "adapter", "mnli", 800.0)
    table = table_of(contents(tmp_path), "glue-builtin-minilm-efficiency")
    assert not any(cell.best for row in table.rows for cell in row)
    assert "No task has runs of every row" in table.caption


def test_a_run_that_diverged_is_never_the_best(tmp_path: Path) -> None:
    make_timed(tmp_path, "full", "rte", 100.0)
    make_timed(tmp_path, "adapter", "rte", 90.0)
    make_timed(tmp_path, "compacter++", "rte", 10.0, status="diverged")
    rows = rows_of(table_of(contents(tmp_path), "glue-builtin-minilm-efficiency"))
    assert [row[4].best for row in rows.values()] == [False, True, False]
    assert [row[0].marks for row in rows.values()] == ["", "", DIVERGED]

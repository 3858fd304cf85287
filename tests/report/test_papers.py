"""Where the paper's figures stand beside ours, and where they must not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from reading import contents, table_of

from compacter.paper import tables
from compacter.report.cells import Cell
from made_runs import make_run


def row_of(folder: Path, task: str = "rte", **settings: Any) -> list[Cell]:
    make_run(folder / "a", model="t5-base", task=task, **settings)
    (row,) = table_of(contents(folder), "glue-t5-base-scores").rows
    return list(row)


def printed(method: str, **settings: int) -> dict[str, Any]:
    rows: list[dict[str, Any]] = tables()["glue_t5_base"] + tables()["glue_t5_base_ablations"]
    wanted = {"method": method, **settings}
    return next(row for row in rows if wanted.items() <= row.items())


@pytest.mark.parametrize(
    ("method", "given", "papers"),
    [
        ("intrinsic-said", {"intrinsic_dim": 1400}, {"intrinsic_dim": 1400}),
        ("intrinsic-said", {}, {"intrinsic_dim": 20_000}),
        ("compacter", {"n": 12}, {"n": 12}),
        ("compacter", {}, {"n": 4}),
        ("phm-adapter", {}, {"n": 12}),
    ],
)
def test_the_papers_row_is_that_of_the_settings(
    method: str, given: dict[str, int], papers: dict[str, int], tmp_path: Path
) -> None:
    row = row_of(tmp_path, method=method, **given)
    expected = printed(method, **papers)
    share, score = expected["trained_percent"], expected["scores"]["rte"]
    assert [cell.paper for cell in row[1:]] == [share, score]
    assert row[1].second == f"paper {share:g}"


UNLIKE: dict[str, dict[str, Any]] = {
    "n": {"n": 6},
    "intrinsic_dim": {"method": "intrinsic-said", "intrinsic_dim": 300},
    "epochs": {"epochs": 3},
    "rank": {"rank": 2},
    "quantize": {"quantize": "8bit"},
    "num_tokens": {"method": "prompt-tuning-r", "num_tokens": 20},
    "drop_layers": {"method": "adapter-drop", "drop_layers": 3},
    "rows": {"max_train_samples": 100},
}


@pytest.mark.parametrize("settings", UNLIKE.values(), ids=UNLIKE)
def test_other_settings_have_no_figure_of_the_paper(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    assert [cell.paper for cell in row_of(tmp_path, **settings)] == [None] * 3


def test_a_task_trained_in_another_way_takes_the_average_with_it(tmp_path: Path) -> None:
    make_run(tmp_path / "cola", model="t5-base", task="cola", epochs=3)
    row = row_of(tmp_path)
    expected = printed("compacter++", n=4)["scores"]["rte"]
    assert [cell.paper for cell in row[2:]] == [None, expected, None]


def test_a_small_share_is_not_written_as_zero(tmp_path: Path) -> None:
    changed = {"percent": 0.00018}
    row = row_of(tmp_path, method="intrinsic-said", intrinsic_dim=400, changed=changed)
    assert (row[1].text, row[1].second) == ("0.00018", "paper 0.0002")

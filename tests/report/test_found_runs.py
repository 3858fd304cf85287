"""Which runs a report finds, and what is said of those that it cannot read."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from reading import contents

from compacter.errors import ReportError
from compacter.experiments.store import Planned, Store
from compacter.report import write_report
from made_runs import make_failed, make_run


def test_only_failed_runs_are_a_report_too(tmp_path: Path) -> None:
    make_failed(tmp_path / "a", "out of memory", method="full", task="rte")
    page, content = write_report(tmp_path)
    assert not content.sections
    assert "out of memory" in page.read_text(encoding="utf-8")


def test_a_run_that_succeeded_after_a_failure_is_finished(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a")
    (folder / "failed.json").write_text('{"error": "before"}', encoding="utf-8")
    (tmp_path / "b").mkdir()
    for name in ("recipe.yaml", "train.log"):
        (tmp_path / "b" / name).write_text("method: full\n", encoding="utf-8")
    content = contents(tmp_path)
    assert content.facts[:2] == ("1 finished run", "1 not finished")


def test_a_recipe_beside_runs_hides_none(tmp_path: Path) -> None:
    make_run(tmp_path / "all" / "a")
    (tmp_path / "all" / "recipe.yaml").write_text("method: full\n", encoding="utf-8")
    assert contents(tmp_path).facts[:2] == ("1 finished run", "1 method")


def test_runs_behind_links_count_once(tmp_path: Path) -> None:
    make_run(tmp_path / "elsewhere" / "a")
    runs = tmp_path / "runs"
    make_run(runs / "b")
    (runs / "linked").symlink_to(tmp_path / "elsewhere")
    (runs / "again").symlink_to(tmp_path / "elsewhere" / "a")
    (runs / "above").symlink_to(tmp_path / "runs")
    assert contents(runs).facts[0] == "2 finished runs"


def test_a_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    scandir = os.scandir

    def refusing(path: str) -> Any:
        if str(path).endswith("b"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(ReportError, match="b' cannot be read: Permission denied"):
        contents(tmp_path)


def make_plan(folder: Path, *runs: str) -> None:
    plan = [Planned(run, run, {}, {}, "0", run) for run in runs]
    Store.create(folder).write({"axes": {}}, plan)


def test_a_sweep_that_is_not_finished_says_so(tmp_path: Path) -> None:
    make_plan(tmp_path / "sweep", "a", "b", "c")
    make_run(tmp_path / "sweep" / "runs" / "a")
    for folder in (tmp_path, tmp_path / "sweep"):  # one sweep, or a folder with sweeps
        page, content = write_report(folder, tmp_path / "report")
        assert content.facts[0] == "1 of 3 planned runs are finished"
        assert "finished run" not in content.facts[1]
        for name in ("report.html", "report.md"):
            text = page.with_name(name).read_text(encoding="utf-8")
            assert "of 3 planned runs 2 are not finished" in text
    make_run(tmp_path / "other")
    assert "2 finished runs" in contents(tmp_path).facts
    for run in ("b", "c"):
        make_run(tmp_path / "sweep" / "runs" / run)
    content = contents(tmp_path / "sweep")
    assert (content.facts[0], content.warning) == ("3 finished runs", "")


def test_a_damaged_plan_is_named(tmp_path: Path) -> None:
    make_plan(tmp_path, "a")
    make_run(tmp_path / "runs" / "a")
    (tmp_path / "plan.json").write_text("{", encoding="utf-8")
    with pytest.raises(ReportError, match=r"plan\.json' is not the plan of a sweep: .+; mend"):
        write_report(tmp_path)


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    code = """
import sys
from compacter_cli import main
try:
    main()
finally:
    assert "torch" not in sys.modules
"""
    return subprocess.run(
        [sys.executable, "-c", code, "report", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_command_writes_beside_the_runs_without_torch(tmp_path: Path) -> None:
    make_run(tmp_path / "deep" / "er" / "a", task="rte", test={"accuracy": 77.0})
    result = command(tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Compacter++ with 77.00" in result.stdout
    assert (tmp_path / "report" / "report.html").exists()
    result = command(tmp_path, "--output", tmp_path / "other", "--title", "My runs")
    assert "<title>My runs</title>" in (tmp_path / "other" / "report.html").read_text("utf-8")


DAMAGED = {
    "not JSON": "{",
    "a list": "[]",
    "a key is missing": '{"method": "full"}',
    "a wrong type": json.dumps({"method": 3}),
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_result_is_named(text: str, tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    (make_run(tmp_path / "b") / "result.json").write_text(text, encoding="utf-8")
    with pytest.raises(ReportError, match=r"b/result\.json' is not the result of a run: .+"):
        write_report(tmp_path)


def test_damaged_predictions_and_failures_are_named(tmp_path: Path) -> None:
    for method in ("full", "adapter"):
        folder = make_run(tmp_path / method, method=method)
        (folder / "predictions.jsonl").write_text("{]\n", encoding="utf-8")
    with pytest.raises(ReportError, match=r"predictions\.jsonl' is not a list of predictions"):
        write_report(tmp_path)
    for method in ("full", "adapter"):
        line = '{"index": 0, "answer": "a", "label": []}\n'
        (tmp_path / method / "predictions.jsonl").write_text(line, encoding="utf-8")
    with pytest.raises(ReportError, match=r"predictions in .* do not fit the task 'builtin/roles'"):
        write_report(tmp_path)
    (make_failed(tmp_path / "x", "?") / "failed.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ReportError, match=r"failed\.json' is not the record of a failed run"):
        write_report(tmp_path)


def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("none", "does not exist; expected a folder with runs"),
        ("file", "is a file; expected a folder with runs"),
        ("empty", "holds no finished run; expected folders with a result.json"),
    ):
        result = command(tmp_path / name)
        assert result.returncode == 2
        (line,) = result.stderr.splitlines()
        assert line.startswith("compacter: ")
        assert message in line


def test_an_output_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ReportError, match="cannot be written"):
        write_report(tmp_path, tmp_path / "file")

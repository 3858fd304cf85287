"""docs/tasks.md says what the table says, and its code runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compacter.tasks import BUILTIN_TASKS, TASKS
from official_files import write_official

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")


def test_the_table_is_the_tables() -> None:
    rows = re.findall(
        r"^\| `([\w/]+)` \| (\w+) \| (.+?) \| (.+?) \| ([\d,]+) \| ([\d,]+) \| (\w+) \|$",
        PAGE,
        re.MULTILINE,
    )
    words = {"number": "a number from 0 to 5", "entity": "an entity of the passage"}
    every = {**TASKS, **BUILTIN_TASKS}
    assert [row[0] for row in rows] == list(every)
    for name, benchmark, labels, metrics, train, validation, size in rows:
        task = every[name]
        assert (benchmark, size) == (task.benchmark, task.size)
        assert labels == words.get(task.kind, ", ".join(task.labels))
        assert metrics == ", ".join(task.metrics)
        assert (train, validation) == tuple(f"{count:,}" for count in task.sizes or ())


def test_the_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_official("rte", tmp_path / "DATA_DIR")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(code, {})
    assert "{'accuracy': " in capsys.readouterr().out

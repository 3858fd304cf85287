"""No test reaches a network: set before any library reads it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from commands import Answer, Command

for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
    os.environ[name] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run `compacter` with these arguments in this process, as importing torch takes seconds."""
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str) -> Answer:
        from compacter_cli import main

        monkeypatch.setattr(sys, "argv", ["compacter", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capfd.readouterr()
        return Answer(int(stop.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def in_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The current folder is the test's own."""
    monkeypatch.chdir(tmp_path)

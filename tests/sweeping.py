"""A small grid on a tiny model, and a sweep in a process that can be killed."""

from __future__ import annotations

import json
import multiprocessing
from functools import partial
from pathlib import Path
from typing import Any

from compacter.experiments.engines import Call, Ended
from compacter.experiments.grid import Grid
from tiny_tasks import recipe_values

COMPARED = ("method", "seed", "test", "validation", "score", "best_checkpoint", "data_fingerprint")


def small_grid(folder: Path, **axes: Any) -> Grid:
    """Four runs of eight checkpoints."""
    values = recipe_values("bert", folder, epochs=4, batch_size=16, save_steps=5)
    values |= {"text_columns": ["text"], "bottleneck": 8, "max_train_samples": 160}
    axes = axes or {"method": ["compacter", "full"], "seed": [1, 2]}
    return Grid.make({**{k: v for k, v in values.items() if k not in axes}, "axes": axes})


def results(output: Path) -> dict[str, dict[str, Any]]:
    """What each run of a sweep has found, without how long it took."""
    found = {}
    for folder in (output / "runs").iterdir():
        result = json.loads((folder / "result.json").read_text())
        assert sorted(path.name for path in folder.iterdir()) == [
            "model" if result["method"] == "full" else "adapter",
            "predictions.jsonl",
            "recipe.yaml",
            "result.json",
            "train.log",
        ]
        found[folder.name] = {key: result[key] for key in COMPARED}
        found[folder.name]["predictions"] = (folder / "predictions.jsonl").read_text()
    return found


def start_sweep(grid: Grid, output: Path, jobs: int = 2) -> Any:
    """A sweep in a process of its own, which is warm, so that killing many is quick."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["compacter.experiments.worker"])
    process = context.Process(target=_sweep, args=(grid.plain(), output, jobs))
    process.start()
    return process


def _sweep(grid: dict[str, Any], output: Path, jobs: int) -> None:
    from compacter.experiments.engines import local
    from compacter.experiments.sweep import sweep

    local.START = "fork"  # as warm as this process, which has only imported
    sweep(Grid.make(grid), output, jobs=jobs)


class Inline:
    """An engine that makes its calls in this process, so that what they use can be replaced."""

    slots = 1

    def __init__(self, *, lost: bool = False) -> None:
        self.lost = lost
        self.calls: list[tuple[str, Call]] = []
        self.made: list[str] = []

    def submit(self, key: str, call: Call) -> None:
        assert isinstance(call, partial)
        self.calls.append((key, call))

    def ended(self, timeout: float) -> list[Ended]:
        found = []
        for key, call in [self.calls.pop(0) for _ in self.calls[:1]]:
            self.made.append(key)
            found.append(Ended(key, lost="gone") if self.lost else Ended(key, call()))
        return found

    def close(self) -> None:
        self.calls.clear()

"""Folders as runs leave them, without training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compacter.tasks import BUILTIN_TASKS, TASKS
from compacter.training.recipe import Recipe

SHARES = {"full": 100.0, "adapter": 0.83, "compacter": 0.073, "compacter++": 0.047}


def make_run(
    folder: Path,
    *,
    method: str = "compacter++",
    task: str = "builtin/roles",
    model: str = "builtin/minilm",
    seed: int = 42,
    test: dict[str, float] | None = None,
    validation: dict[str, float] | None = None,
    predictions: Sequence[Any] | None = None,
    labels: Sequence[Any] | None = None,
    groups: Sequence[Sequence[int]] | None = None,
    changed: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """A finished run. `settings` are keys of its recipe, `changed` are keys of its result."""
    known = TASKS.get(task) or BUILTIN_TASKS.get(task)
    metrics = known.metrics if known else ("accuracy", "f1")
    test = test if test is not None else dict.fromkeys(metrics, 80.0)
    validation = validation if validation is not None else test
    recipe = {"epochs": 3, "learning_rate": 3e-3, "batch_size": 32} | settings
    recipe = Recipe.make(recipe | {"model": model, "method": method, "seed": seed})
    score = sum((test or validation).values()) / len(test or validation)
    result = {
        "method": method,
        "task": task,
        "model": model,
        "seed": seed,
        "recipe": recipe.model_dump(mode="json") | {"task": task},
        "trainable": 10_000,
        "head_trainable": 770,
        "percent": SHARES.get(method, 0.1),
        "validation": validation,
        "test": test,
        "score": score,
        "status": "finished",
        "warnings": [],
        "best_checkpoint": 40,
        "seconds": 100.0,
        "samples_per_second": 12.0,
        "peak_memory_bytes": 900_000_000,
        "versions": {"compacter-peft": "0.1.0"},
        "data_fingerprint": "0" * 64,
        "curve": [
            {"step": step, "epoch": step / 20, "loss": 1 / step, "learning_rate": 1e-3}
            for step in range(5, 45, 5)
        ]
        + [
            {"step": step, "epoch": step / 20, "eval_score": score - 40 / step} for step in (20, 40)
        ],
    }
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result | (changed or {})), encoding="utf-8")
    if predictions is not None:
        assert labels is not None
        lines = [
            {"split": "test", "index": i, "prediction": str(p), "answer": p, "label": y}
            | ({"group": groups[i]} if groups else {})
            for i, (p, y) in enumerate(zip(predictions, labels, strict=True))
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "predictions.jsonl").write_text(text, encoding="utf-8")
    return folder


def make_failed(folder: Path, error: str, **recipe: Any) -> Path:
    folder.mkdir(parents=True)
    record = {
        "recipe": recipe,
        "error": error,
        "kind": "TrainingError",
        "when": "2026-01-02T03:04:05",
        "attempts": 2,
    }
    (folder / "failed.json").write_text(json.dumps(record), encoding="utf-8")
    return folder

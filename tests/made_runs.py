"""Folders as runs leave them, without training."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from compacter.paper import score_columns, tables
from compacter.tasks import BUILTIN_TASKS, TASKS
from compacter.training.defaults import defaults_for
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
    """A finished run, of a task of the paper with the paper's epochs. `settings` are keys of its
    recipe, `changed` are keys of its result."""
    known = TASKS.get(task) or BUILTIN_TASKS.get(task)
    metrics = known.metrics if known else ("accuracy", "f1")
    test = test if test is not None else dict.fromkeys(metrics, 80.0)
    validation = validation if validation is not None else test
    epochs = defaults_for(TASKS[task], method, "t5-base", rows=0).epochs if task in TASKS else 3
    recipe = {"epochs": epochs, "learning_rate": 3e-3, "batch_size": 32} | settings
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


def make_study(folder: Path) -> Path:
    """Runs of every kind that a report shows: the paper's grid on T5-base and GLUE, tasks of the
    package with predictions and failed runs, fewer training rows, and a task of one's own with a
    name that is markup."""
    rng = random.Random(0)
    for row in tables()["glue_t5_base"]:
        for task, scores in score_columns(row["scores"]).items():
            for seed in (1, 2):
                metrics = TASKS[task].metrics
                test = {m: s + rng.gauss(0, 0.4) for m, s in zip(metrics, scores, strict=True)}
                make_run(
                    folder / "runs" / f"glue-{row['method']}-{task}-{seed}",
                    model="t5-base",
                    task=task,
                    method=row["method"],
                    seed=seed,
                    n=row.get("n"),
                    test=test,
                    changed={
                        "percent": row["trained_percent"],
                        "trainable": int(2_228_820 * row["trained_percent"]),
                        "peak_memory_bytes": 4e9 + 3e7 * row["trained_percent"],
                        "seconds": rng.uniform(800, 1200),
                    },
                )
    gold = [i % 2 for i in range(200)]
    for method, right in (("full", 0.92), ("adapter", 0.9), ("compacter++", 0.8)):
        for task in BUILTIN_TASKS:
            answers = [y if rng.random() < right else 1 - y for y in gold]
            score = 100 * sum(a == y for a, y in zip(answers, gold, strict=True)) / len(gold)
            make_run(
                folder / "runs" / f"{method}-{task.replace('/', '-')}",
                task=task,
                method=method,
                test={"accuracy": score},
                predictions=answers,
                labels=gold,
                changed={"seconds": 300.0 if method == "full" else 240.0},
            )
    for size, seed, (method, gain) in itertools.product(
        (100, 500, 1000), (1, 2, 3), (("full", 9), ("compacter++", 8))
    ):
        for task in ("cola", "sst2"):
            score = 30 + gain * math.log10(size) + rng.gauss(0, 2)
            make_run(
                folder / "runs" / f"rows-{size}-{method}-{task}-{seed}",
                task=task,
                method=method,
                seed=seed,
                max_train_samples=size,
                test={TASKS[task].metrics[0]: score},
            )
    for method in ("full", "compacter++"):
        make_run(
            folder / "runs" / f"own-{method}",
            task="<script>alert(1)</script>",
            method=method,
            train_file="train.csv",
            text_columns=("text",),
            labels=("a", "b"),
            changed={"warnings": ["every answer is '<b>'"]},
        )
    make_failed(
        folder / "runs" / "broken",
        "loss is <img src=x onerror=alert(1)> & no number",
        method="bitfit",
        task="rte",
        model="t5-base",
        learning_rate=0.3,
        seed=1,
    )
    (folder / "sweep.yaml").write_text("method: [full, '<i>']\n", encoding="utf-8")
    return folder

"""The figures of the paper, "Compacter: Efficient Low-Rank Hypercomplex Adapter Layers" (Karimi
Mahabadi, Henderson and Ruder, NeurIPS 2021): its tables, and exact parameter counts that reproduce
them. Each file says in its notes what its figures mean."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any


@lru_cache(maxsize=1)
def tables() -> dict[str, Any]:
    """All tables of the paper."""
    return _read("tables.json")


@lru_cache(maxsize=1)
def counts() -> dict[str, Any]:
    """Trained parameters of every method on T5-base and T5-small."""
    return _read("counts.json")


def _read(name: str) -> dict[str, Any]:
    text = files("compacter.paper").joinpath(name).read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def efficiency_figures(method: str) -> dict[str, float | None] | None:
    """Table 3 for a method: MB for each sample and minutes for an epoch of MNLI on T5-base, with
    their differences to full fine-tuning in percent. The printed difference in memory divides by
    the method's own memory; here both divide by full fine-tuning's."""
    rows = {row["method"]: row for row in tables()["efficiency_t5_base_mnli"]}
    row = rows.get("prompt-tuning" if method.startswith("prompt-tuning") else method)
    if row is None:
        return None
    memory = 100.0 * (row["memory_mb"] / rows["full"]["memory_mb"] - 1.0)
    return {
        "trained_percent": row["trained_percent"],
        "memory_mb": row["memory_mb"],
        "memory_percent": round(memory, 2),
        "memory_percent_as_printed": row["memory_delta_percent"],
        "minutes_per_epoch": row["minutes_per_epoch"],
        "time_percent": row["time_delta_percent"],
    }


def printed_figures(model: str, method: str, n: int | None, tasks: int) -> dict[str, float] | None:
    """The `trained_percent` and `total_multiple` that the paper prints for a method on GLUE
    (8 tasks) or SuperGLUE (6), or None where it prints none."""
    names = {
        ("t5-base", 8): ("glue_t5_base", "glue_t5_base_ablations"),
        ("t5-base", 6): ("superglue_t5_base", "superglue_t5_base_by_n"),
        ("t5-small", 8): ("glue_t5_small",),
    }.get((model, tasks), ())
    for row in (row for name in names for row in tables()[name]):
        if row["method"] == method and row.get("n") == n:
            return {key: row[key] for key in ("trained_percent", "total_multiple")}
    return None


SCORES = {
    ("t5-base", "glue", False): ("glue_t5_base", "glue_t5_base_ablations"),
    ("t5-base", "glue", True): ("glue_t5_base_output_layer_tuned",),
    ("t5-base", "superglue", False): ("superglue_t5_base", "superglue_t5_base_by_n"),
    ("t5-small", "glue", False): ("glue_t5_small",),
}
"""The score tables of a model, a benchmark, and whether the output layer is tuned: the one of all
methods first."""

INTRINSIC_DIM = 20_000
"""Of the tables that name none."""

NUM_TOKENS = 100
"""Of the prompts."""

BOTTLENECKS = {"t5-base": (24, 48, 96), "t5-small": (16, 32, 64)}
"""Those that were tried."""

RATES = {
    ("t5-base", "glue", False): "learning_rates_glue_t5_base",
    ("t5-base", "glue", True): "learning_rates_output_layer_tuned",
    ("t5-base", "superglue", False): "learning_rates_superglue_t5_base",
    ("t5-small", "glue", False): "learning_rates_glue_t5_small",
}


def papers_model(model: str) -> str | None:
    """The paper's name of a model: that of the hub, with or without its owner, or of a folder."""
    is_path = model.startswith(("/", ".", "~"))
    name = model.rstrip("/").rpartition("/")[2] if is_path else model.removeprefix("google-t5/")
    return name if name in ("t5-base", "t5-small") else None


def printed_scores(
    model: str,
    benchmark: str,
    tuned: bool,
    method: str,
    *,
    n: int | None = None,
    intrinsic_dim: int | None = None,
) -> dict[str, Any] | None:
    """The row of scores that the paper prints for a method with these settings, or None."""
    names = SCORES.get((papers_model(model) or "", benchmark, tuned), ())
    usual = INTRINSIC_DIM if method == "intrinsic-said" else None
    for row in (row for name in names for row in tables()[name]):
        found = (row["method"], row.get("n"), row.get("intrinsic_dim", usual))
        if found == (method, n, intrinsic_dim):
            return dict(row)
    return None


def printed_rate(model: str, benchmark: str, tuned: bool, method: str) -> float | None:
    """The learning rate that the paper chose."""
    name = RATES.get((papers_model(model) or "", benchmark, tuned))
    rate: float | None = tables()[name].get(method) if name else None
    return rate


def score_columns(scores: dict[str, Any]) -> dict[str, tuple[float, ...]]:
    """A row's scores by task, without its average: one number, or one for each metric."""
    return {
        task: tuple(value) if isinstance(value, list) else (value,)
        for task, value in scores.items()
        if task != "avg"
    }

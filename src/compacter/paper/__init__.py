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

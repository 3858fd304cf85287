"""The report as one self-contained HTML page: style, script, figures and data are all in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from compacter.extras import require
from compacter.report.cells import Table
from compacter.report.content import Content
from compacter.report.figures import marker, method_class
from compacter.report.runs import Run
from compacter.report.sections import thinned

CURVE_NUMBERS = 100_000
"""Points of all runs' curves together: many runs get coarser ones."""
FEWEST, MOST = 8, 60
"""Points of one run's curve."""


def render(content: Content) -> str:
    """The page. Whatever comes from runs is escaped by the template."""
    jinja2 = require("jinja2", "cli", "the report's page")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("compacter.report", "page"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.policies["json.dumps_kwargs"] = {
        "sort_keys": False,
        "separators": (",", ":"),
        "allow_nan": False,
    }
    environment.globals["method_class"] = method_class
    environment.globals["marker"] = marker
    environment.globals["order"] = _order
    template = environment.get_template("page.html.jinja")
    data = {"common": _plain(content.common), "runs": _runs_data(content)}
    return str(template.render(content=content, data=data))


def _order(table: Table, row: int, column: int) -> str:
    """What a cell sorts by, where that is a number that its text does not say."""
    value = table.rows[row][column].value
    if isinstance(value, str) or value is None or not math.isfinite(value):
        return ""
    return f"{value:.6g}"


def _runs_data(content: Content) -> list[Any]:
    """For each run, what differs from the common recipe, and its curves."""
    share = CURVE_NUMBERS // (4 * max(1, len(content.runs)))
    points = max(FEWEST, min(MOST, share))
    return [
        [
            _plain({key: run.result.recipe.get(key) for key in content.varying}),
            _curve(run, "eval_score", points),
            _curve(run, "loss", points),
            run.result.best_checkpoint,
            run.result.warnings,
        ]
        for run in content.runs
    ]


def _curve(run: Run, key: str, points: int) -> list[Sequence[float]]:
    """Steps and values, at most so many of them, with four digits."""
    values = {
        int(entry["step"]): float(f"{entry[key]:.4g}")
        for entry in run.result.curve
        if key in entry and math.isfinite(entry[key])
    }
    steps = thinned(sorted(values), points)
    return [steps, [values[step] for step in steps]]


def _plain(recipe: dict[str, Any]) -> dict[str, Any]:
    """Without numbers that JSON does not have."""
    return {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in recipe.items()
    }

"""Figure 1 of the paper with our figures: score, percent of trained parameters, memory."""

from __future__ import annotations

import html
import io
import math
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from compacter.errors import BenchError
from compacter.extras import require
from compacter.methods import METHODS
from compacter.paper import (
    BOTTLENECKS,
    INTRINSIC_DIM,
    NUM_TOKENS,
    papers_model,
    printed_scores,
)
from compacter.training.result import write_atomically

ENDINGS = (".svg", ".png", ".html")
COLOURS = {
    "full": "#555555",
    "adapter": "#4477aa",
    "prompt": "#ccbb44",
    "bitfit": "#66ccee",
    "intrinsic": "#aa3377",
}
HIGHLIGHT = "#ee6677"  # Compacter and Compacter++
LARGEST = 900.0  # area of the largest circle, in square points


def check_figure(path: Path) -> None:
    """Before anything is measured: the file can be drawn and written."""
    if path.suffix.lower() not in ENDINGS:
        raise BenchError(
            f"a figure cannot be written as {path.suffix or path.name!r}; expected a file that "
            f"ends with {', '.join(ENDINGS)}"
        )
    if not path.parent.is_dir():
        raise BenchError(f"there is no folder {str(path.parent)!r} for the figure")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        found = "a folder" if path.is_dir() else "not to be written"
        raise BenchError(f"{str(path)!r} is {found}; expected a file for the figure")
    require("matplotlib", "bench", "--figure")


def check_scores(scores: Mapping[str, float] | None, methods: Collection[str]) -> None:
    """There is something to draw."""
    if scores is not None and not scores.keys() & set(methods):
        raise BenchError(
            f"none of the measured methods has a score; expected scores of {', '.join(methods)}"
        )


def draw(
    report: Mapping[str, Any], path: Path, scores: Mapping[str, float] | None = None
) -> list[str]:
    """Write the figure; returns the methods in it. The height is a method's score: of `scores`, or
    the paper's average on GLUE for T5-base and T5-small. Where there is none it is the time of a
    training step, in percent of full fine-tuning's."""
    label, heights = _heights(report, scores)
    rows = [row for row in report["methods"] if row["method"] in heights]
    check_scores(scores, [row["method"] for row in report["methods"]])
    ending = path.suffix.lower()
    image = _plot(report, rows, label, heights, "svg" if ending == ".html" else ending[1:])
    if ending == ".html":
        image = _page(report, rows, label, heights, image).encode("utf-8")
    try:
        write_atomically(path, image)
    except OSError as error:
        raise BenchError(f"{str(path)!r} cannot be written: {error.strerror}") from None
    return [row["method"] for row in rows]


def _heights(
    report: Mapping[str, Any], scores: Mapping[str, float] | None
) -> tuple[str, dict[str, float]]:
    names = [row["method"] for row in report["methods"]]
    if scores is not None:
        return "score", {name: scores[name] for name in names if name in scores}
    printed = {row["method"]: _printed(report, row) for row in report["methods"]}
    known = {name: value for name, value in printed.items() if value is not None}
    if known:
        return "average score on GLUE (paper)", known
    times = {row["method"]: 100 * row["step"]["ratio_of_medians"] for row in report["methods"]}
    return "time of a training step, % of full fine-tuning", times


def _printed(report: Mapping[str, Any], row: Mapping[str, Any]) -> float | None:
    """The paper's average on GLUE for a method, if it was measured with settings of the paper's. Of
    three bottlenecks, the paper has the best for each task."""
    model, name, settings = papers_model(report["model"]), row["method"], report["settings"]
    is_prompt = METHODS[name].family == "prompt"
    if is_prompt and settings.get("num_tokens", NUM_TOKENS) != NUM_TOKENS:
        return None
    if model is None or row["bottleneck"] not in (None, *BOTTLENECKS[model]):
        return None
    found = printed_scores(
        model,
        "glue",
        tuned=False,
        method=name,
        n=row["n"],
        intrinsic_dim=settings.get("intrinsic_dim", INTRINSIC_DIM)
        if name == "intrinsic-said"
        else None,
    )
    return None if found is None else float(found["scores"]["avg"])


def _memory(row: Mapping[str, Any]) -> float:
    """Per row of the largest batch as in Table 3, or of a batch of one row where that does not
    fit the budget."""
    memory = row["memory"]
    return float(memory["per_sample"] or memory["fixed"] + memory["per_row"])


def _plot(
    report: Mapping[str, Any],
    rows: list[Mapping[str, Any]],
    label: str,
    heights: Mapping[str, float],
    kind: str,
) -> bytes:
    figures = require("matplotlib.figure", "bench", "--figure")
    figure = figures.Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    most = max(_memory(row) for row in rows)
    circles: list[tuple[str, tuple[float, float], float]] = []
    for row in sorted(rows, key=_memory, reverse=True):  # small circles on top of large ones
        name, area = row["method"], LARGEST * _memory(row) / most
        place = (row["percent"], heights[name])
        axes.scatter(
            *place,
            s=area,
            color=HIGHLIGHT if _is_ours(name) else COLOURS[METHODS[name].family],
            alpha=0.7,
            linewidths=0.8,
            edgecolors="white",
        )
        circles.append((name, place, math.sqrt(area) / 2))
    axes.set_xscale("log")
    axes.margins(x=0.12, y=0.15)
    axes.set_xlabel("trained parameters, % of the model (log)")
    axes.set_ylabel(label)
    axes.set_title(
        f"{report['model']}: circles are memory per row, the largest {most / 1e6:,.0f} MB"
    )
    axes.grid(alpha=0.3)
    figure.draw_without_rendering()  # settles where things are
    _label(axes, circles)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=150)
    return buffer.getvalue()


def _label(axes: Any, circles: list[tuple[str, tuple[float, float], float]]) -> None:
    """Put each name beside its circle, on the side where it hides least of what is there."""
    pixels = axes.figure.dpi / 72
    taken = []
    for _, place, radius in circles:
        x, y = axes.transData.transform(place)
        reach = radius * pixels
        taken.append((x - reach, y - reach, x + reach, y + reach))
    for name, place, radius in circles:
        gap = radius + 3
        sides = [
            ((0, gap), "center", "bottom"),
            ((gap, 0), "left", "center"),
            ((-gap, 0), "right", "center"),
            ((0, -gap), "center", "top"),
            ((gap, gap), "left", "bottom"),
            ((-gap, gap), "right", "bottom"),
            ((gap, -gap), "left", "top"),
            ((-gap, -gap), "right", "top"),
        ]
        text = axes.annotate(
            METHODS[name].title,
            place,
            xytext=sides[0][0],
            textcoords="offset points",
            fontsize=8,
            fontweight="bold" if _is_ours(name) else "normal",
        )
        hidden: list[tuple[float, int]] = []
        for index, side in enumerate(sides):
            hidden.append((sum(_overlap(_place(text, *side), box) for box in taken), index))
        taken.append(_place(text, *sides[min(hidden)[1]]))


def _place(
    text: Any, offset: tuple[float, float], horizontal: str, vertical: str
) -> tuple[float, float, float, float]:
    """Move a label; returns its corners in pixels."""
    text.set_position(offset)
    text.set_ha(horizontal)
    text.set_va(vertical)
    box = text.get_window_extent()
    return box.x0, box.y0, box.x1, box.y1


def _overlap(
    one: tuple[float, float, float, float], other: tuple[float, float, float, float]
) -> float:
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(0.0, width) * max(0.0, height)


def _is_ours(method: str) -> bool:
    return method.startswith("compacter")


def _page(
    report: Mapping[str, Any],
    rows: list[Mapping[str, Any]],
    label: str,
    heights: Mapping[str, float],
    image: bytes,
) -> str:
    """The picture and its numbers, in one file that needs nothing else."""
    picture = image.decode("utf-8")
    picture = picture[picture.index("<svg") :]
    title = html.escape(f"{report['model']}, batch {report['batch']} x {report['length']}")
    columns = ("method", "trained", "% of the model", label, "MB per row", "step, ms")
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "\n".join(
        f"<tr><td>{html.escape(row['method'])}</td><td>{row['trainable']:,}</td>"
        f"<td>{row['percent']:.3f}</td><td>{heights[row['method']]:.2f}</td>"
        f"<td>{_memory(row) / 1e6:,.1f}</td><td>{1e3 * row['step']['median']:,.0f}</td></tr>"
        for row in rows
    )
    return _PAGE.format(title=title, picture=picture, head=head, body=body)


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font-family: sans-serif; max-width: 60rem; margin: 2rem auto; }}
svg {{ width: 100%; height: auto; }}
td, th {{ padding: 0.2rem 0.8rem; text-align: right; }}
td:first-child, th:first-child {{ text-align: left; }}
</style>
<h1>{title}</h1>
{picture}
<table>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</html>
"""

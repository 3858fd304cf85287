"""The figure: which score is drawn, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from compacter.bench.figure import _heights, _label, draw
from compacter.methods import METHODS
from compacter.paper import printed_scores


def report(model: str, *names: str) -> dict[str, Any]:
    """A report with a figure of its own for every method."""
    rows = [
        {
            "method": name,
            "n": min(METHODS[name].n_preference, default=None),
            "bottleneck": 16 if METHODS[name].family == "adapter" else None,
            "trainable": 10**index,
            "percent": 10.0 ** (index - 6),
            "step": {"median": 1.0, "ratio_of_medians": 1.0 - index / 20},
            "memory": {"per_sample": 1e6 * (index + 1), "fixed": 4e8, "per_row": 1e8},
        }
        for index, name in enumerate(names)
    ]
    return {"model": model, "batch": 8, "length": 128, "methods": rows, "settings": {}}


def test_scores_given_win_over_the_papers():
    label, heights = _heights(report("t5-base", "full", "bitfit"), {"full": 1.0, "adapter": 2.0})
    assert (label, heights) == ("score", {"full": 1.0})


def test_the_papers_scores_for_the_papers_models():
    label, heights = _heights(report("google-t5/t5-base", "full", "bitfit"), None)
    assert "GLUE (paper)" in label
    for name in ("full", "bitfit"):
        found = printed_scores("t5-base", "glue", False, name)
        assert found is not None
        assert heights[name] == found["scores"]["avg"]


def test_no_score_of_the_papers_for_other_settings():
    names = ("compacter", "compacter++", "adapter", "prompt-tuning-r", "intrinsic-said", "bitfit")
    found = report("t5-base", *names)
    compacter, plus, adapter, *_ = found["methods"]
    compacter["n"], plus["n"] = 8, 2
    compacter["bottleneck"], plus["bottleneck"], adapter["bottleneck"] = 48, 48, 20
    found["settings"] = {"num_tokens": 50, "intrinsic_dim": 1_400}
    _, heights = _heights(found, None)
    assert heights.keys() == {"compacter", "intrinsic-said", "bitfit"}
    assert heights["compacter"] == 86.34
    assert heights["intrinsic-said"] == 84.36


def test_time_where_there_is_no_score():
    label, heights = _heights(report("gpt2", "full", "bitfit"), None)
    assert "time of a training step" in label
    assert heights == {"full": 100.0, "bitfit": 95.0}


def test_all_methods_are_drawn(tmp_path: Path):
    file = tmp_path / "figure.svg"
    assert draw(report("t5-small", *METHODS), file) == list(METHODS)
    text = file.read_text(encoding="utf-8")
    assert all(method.title in text for method in METHODS.values())


def test_a_method_that_fits_no_budget_is_drawn_too(tmp_path: Path):
    found = report("t5-small", "full", "bitfit")
    found["methods"][0]["memory"]["per_sample"] = None
    assert draw(found, tmp_path / "figure.html") == ["full", "bitfit"]
    assert "<td>500.0</td>" in (tmp_path / "figure.html").read_text(encoding="utf-8")


def test_labels_of_neighbours_do_not_hide_each_other():
    figure = Figure(figsize=(8, 5))
    axes = figure.add_subplot()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    figure.draw_without_rendering()
    _label(axes, [("compacter", (0.5, 0.5), 5.0), ("adapter-lowrank", (0.5, 0.51), 5.0)])
    first, second = (text.get_window_extent() for text in axes.texts)
    assert not first.overlaps(second)

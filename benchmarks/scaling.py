"""How the cost of Compacter grows with layers, width, length, n, rank and bottleneck.

    python benchmarks/scaling.py --output scaling           # scaling.json, .md and .svg in there
    python benchmarks/scaling.py --quick --output scaling   # small models, to try the script

One setting is changed at a time, from a T5 of six layers and width 512, batch 8 x 128. Costs are
what a training step has beyond one that trains the layer norms alone: the time of its operators,
less that of those which it does without, and the bytes that it saves for the backward pass."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

from compacter.bench import count_step
from compacter.bench.work import make_inputs, make_optimizer, training_step
from compacter.extras import require
from operators import net, profiled, total
from subjects import make

REFERENCE = "layer norms"
METHODS = ("adapter", "compacter", "compacter++")


@dataclass(frozen=True)
class Point:
    """A model, a batch and the settings of the adapters."""

    layers: int = 6
    width: int = 512
    length: int = 128
    n: int = 4
    rank: int = 1
    bottleneck: int = 16
    batch: int = 8

    def bare(self) -> nn.Module:
        torch.manual_seed(0)
        config = T5Config(
            vocab_size=2_048,
            d_model=self.width,
            d_ff=4 * self.width,
            d_kv=64,
            num_heads=max(1, self.width // 64),
            num_layers=self.layers,
            decoder_start_token_id=0,
        )
        return T5ForConditionalGeneration(config)

    def settings(self, method: str) -> dict[str, Any]:
        if method == REFERENCE:
            return {}
        found = {"bottleneck": self.bottleneck}
        return found if method == "adapter" else {**found, "n": self.n, "rank": self.rank}


RANGES = {
    "layers": (2, 4, 6, 12),
    "width": (128, 256, 512, 1024),
    "length": (16, 64, 128, 256),
    "n": (2, 4, 8, 16),
    "rank": (1, 2, 4),
    "bottleneck": (16, 32, 64, 128),
}


@cache  # every range has the point where nothing is changed
def measure(point: Point, rounds: int) -> dict[str, Any]:
    """Of each method: milliseconds and bytes beyond the reference's."""
    bare = point.bare()
    works, saved = {}, {}
    for name in (REFERENCE, *METHODS):
        model = make(bare, name, **point.settings(name))
        optimizer = make_optimizer(model)
        inputs = make_inputs(model, point.batch, point.length, 4)
        saved[name] = count_step(model, inputs, optimizer).activations
        works[name] = training_step(model, optimizer, inputs)
    operators = profiled(works, rounds)
    reference = operators[REFERENCE]
    whole = total(reference.values())
    found = {}
    for name in METHODS:
        time = net(operators[name], reference)
        found[name] = {
            "milliseconds": time,
            "percent": 100 * time / whole,
            "saved_bytes": saved[name] - saved[REFERENCE],
        }
    return {**asdict(point), "reference_milliseconds": whole, "methods": found}


def markdown(results: dict[str, list[dict[str, Any]]]) -> str:
    """A row for each point: percent of the reference's time, then the megabytes saved."""
    columns = [f"{name}, {what}" for what in ("time", "MB") for name in METHODS]
    lines = [f"| | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for axis, points in results.items():
        for point in points:
            found = [point["methods"][name] for name in METHODS]
            cells = [f"{method['percent']:+.1f}%" for method in found]
            cells += [f"{method['saved_bytes'] / 1e6:+.2f}" for method in found]
            lines.append(f"| {axis} {point[axis]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def plot(results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    figures = require("matplotlib.figure", "bench", "a plot")
    figure = figures.Figure(figsize=(4 * len(results), 6), layout="constrained")
    grid = figure.subplots(2, len(results), squeeze=False)
    for column, (axis, points) in enumerate(results.items()):
        values = [point[axis] for point in points]
        for name in METHODS:
            rows = [point["methods"][name] for point in points]
            top, bottom = grid[0][column], grid[1][column]
            top.plot(values, [r["percent"] for r in rows], marker="o", label=name)
            bottom.plot(values, [r["saved_bytes"] / 1e6 for r in rows], marker="o", label=name)
        for axes in grid[:, column]:
            axes.set_xscale("log", base=2)
            axes.set_xticks(values, [str(value) for value in values])
            axes.set_xlabel(axis)
            axes.grid(alpha=0.3)
    grid[0][0].set_ylabel("more time of operators, %")
    grid[1][0].set_ylabel("more saved bytes, MB")
    grid[0][0].legend(fontsize=8)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="steps of each that are profiled")
    parser.add_argument("--quick", action="store_true", help="small models, to try the script")
    parser.add_argument("--only", choices=RANGES, help="one axis instead of all")
    parser.add_argument("--output", type=Path, required=True, help="folder for the results")
    arguments = parser.parse_args()
    start = Point(layers=2, width=128, length=16, batch=2) if arguments.quick else Point()
    chosen = {arguments.only: RANGES[arguments.only]} if arguments.only else RANGES
    assert set(RANGES) < {field.name for field in fields(Point)}
    results: dict[str, list[dict[str, Any]]] = {}
    for axis, values in chosen.items():
        for value in values[:2] if arguments.quick else values:
            print(f"{axis}={value}", flush=True)
            point = replace(start, **{axis: value})
            results.setdefault(axis, []).append(measure(point, arguments.rounds))
    arguments.output.mkdir(parents=True, exist_ok=True)
    machine = {"threads": torch.get_num_threads(), "torch": torch.__version__}
    text = json.dumps({"machine": machine, "ranges": results}, indent=1)
    (arguments.output / "scaling.json").write_text(text + "\n", encoding="utf-8")
    (arguments.output / "scaling.md").write_text(markdown(results), encoding="utf-8")
    plot(results, arguments.output / "scaling.svg")
    print(f"wrote scaling.json, scaling.md and scaling.svg to {arguments.output}")


if __name__ == "__main__":
    main()

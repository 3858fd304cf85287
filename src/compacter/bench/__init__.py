"""Time, memory and size of every method, on one model, in one process.

`memory` counts what a training step holds, `timing` times several pieces of work turn by turn,
`work` is what is measured (a batch, a step, decoding), `run` does it for every method, `report`
turns it into figures beside full fine-tuning's and the paper's, `figure` draws them."""

from __future__ import annotations

from compacter.bench.memory import Memory, MemoryLine, SavedTensors, count_step, parse_size
from compacter.bench.report import Report, Row
from compacter.bench.run import PRESETS, BenchSettings, measure
from compacter.bench.timing import Laps, Timing, take_turns

__all__ = [
    "PRESETS",
    "BenchSettings",
    "Laps",
    "Memory",
    "MemoryLine",
    "Report",
    "Row",
    "SavedTensors",
    "Timing",
    "count_step",
    "measure",
    "parse_size",
    "take_turns",
]

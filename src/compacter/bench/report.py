"""What was measured, as figures beside full fine-tuning's and, as in Table 3, the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from compacter.bench.memory import Memory, MemoryLine
from compacter.bench.timing import Timing
from compacter.methods.counting import Count
from compacter.paper import efficiency_figures

REFERENCE = "full"


@dataclass(frozen=True)
class Row:
    """One method."""

    count: Count
    memory: Memory
    """At the batch size that was timed."""
    line: MemoryLine
    """Of the total, over batch sizes."""
    step: Timing
    decode: Timing | None
    cuda_peak: int | None = None
    """The allocator's peak in a step, without the other models on the device."""

    @property
    def method(self) -> str:
        return self.count.method


@dataclass(frozen=True)
class Report:
    """All methods on one model; the first row is full fine-tuning, which the others are compared
    with."""

    model: str
    batch: int
    length: int
    target_length: int
    new_tokens: int
    task: str
    task_rows: int
    memory_budget: int
    settings: dict[str, Any]
    machine: dict[str, Any]
    rows: Sequence[Row]
    left_out: dict[str, str] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """For programs: everything, with differences to full fine-tuning in percent."""
        return {
            "model": self.model,
            "batch": self.batch,
            "length": self.length,
            "target_length": self.target_length,
            "new_tokens": self.new_tokens,
            "task": self.task,
            "task_rows": self.task_rows,
            "memory_budget": self.memory_budget,
            "settings": self.settings,
            "machine": self.machine,
            "methods": [self.plain_row(row) for row in self.rows],
            "left_out": self.left_out,
        }

    def plain_row(self, row: Row) -> dict[str, Any]:
        full, count = self.rows[0], row.count
        sample, full_sample = self.per_sample(row), self.per_sample(full)
        return {
            "method": count.method,
            "n": count.n,
            "bottleneck": count.bottleneck,
            "trainable": count.trainable,
            "head": count.head,
            "percent": round(count.percent, 4),
            "step": _compared(row.step, full.step),
            "epoch_minutes": row.step.median * self.steps_per_epoch / 60,
            "memory": {
                **asdict(row.memory),
                "least": row.memory.least,
                "total": row.memory.total,
                "percent": difference(row.memory.total, full.memory.total),
                "fixed": row.line.fixed,
                "per_row": row.line.per_row,
                "largest_batch": row.line.largest_batch(self.memory_budget),
                "per_sample": sample,
                "per_sample_percent": sample and full_sample and difference(sample, full_sample),
                "cuda_peak": row.cuda_peak,
            },
            "decode": row.decode and full.decode and _compared(row.decode, full.decode),
            "paper": efficiency_figures(count.method),
        }

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.task_rows // self.batch)

    def per_sample(self, row: Row) -> float | None:
        """Bytes at the largest batch that fits the budget, divided by that batch, as in Table 3;
        None if nothing fits."""
        batch = row.line.largest_batch(self.memory_budget)
        return row.line.at(batch) / batch if batch else None


def difference(value: float, reference: float) -> float:
    """In percent of the reference."""
    return 100.0 * (value / reference - 1.0)


def _compared(timing: Timing, full: Timing) -> dict[str, Any]:
    of_medians, of_minima = timing.ratios(full)
    return {
        "median": timing.median,
        "minimum": timing.minimum,
        "ratio_of_medians": of_medians,
        "ratio_of_minima": of_minima,
        "percent": difference(timing.median, full.median),
        "seconds": list(timing.seconds),
    }

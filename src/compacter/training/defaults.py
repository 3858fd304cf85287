"""The paper's optimisation settings by method, benchmark, model size and output layer.

AdamW (0.9, 0.999, 1e-8) without weight decay, a linear decay of the learning rate. What the paper
does not cover (other models, other tasks) follows GLUE on T5-base, but for the warm-up of short
runs. The tasks that the package makes are for `builtin/minilm` and have settings with which it
learns them in minutes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from compacter.methods import METHODS
from compacter.paper import tables
from compacter.tasks import Task

ModelSize = Literal["t5-base", "t5-small", "other"]

PAPER_WARMUP_STEPS = 500
MOST_WARMUP = 1 / 5  # of all steps, so that short runs have time at their rate
MANY_EPOCHS, FEW_EPOCHS = 20, 3
FEW_EPOCHS_TASKS = ("sst2", "qqp", "qnli", "mnli", "multirc", "record")
MANY_ROWS = 10_000  # own data with more rows than this gets few epochs

BATCH_SIZES = {"glue": 100, "superglue": 32}
LENGTHS = {"glue": 128, "superglue": 256}
OTHER_BATCH_SIZE, OTHER_LENGTH = 32, 128

BUILTIN_RATES = {"full": 1e-4, "head-only": 3e-3, "adapter": 1e-3}
"""Where the paper's rates for T5 do not serve a small encoder."""
BUILTIN_EPOCHS = {"builtin/roles": 1, "builtin/tone": 2, "builtin/grammar": 3}
BUILTIN_BATCH_SIZE = 16
BUILTIN_DROPOUT = 0.0  # with dropout a small model takes several times as long to begin to learn


@dataclass(frozen=True)
class Defaults:
    """What a recipe leaves open, filled in."""

    learning_rate: float
    epochs: int
    batch_size: int
    max_length: int
    warmup_steps: int | None
    """None: see `usual_warmup`, for which the number of steps must be known."""
    dropout: float | None = None
    """None: as the model's configuration says."""


def model_size(model_type: str, width: int) -> ModelSize:
    """T5-base and T5-small have settings of their own in the paper."""
    sizes: dict[tuple[str, int], ModelSize] = {("t5", 768): "t5-base", ("t5", 512): "t5-small"}
    return sizes.get((model_type, width), "other")


def defaults_for(
    task: Task, method: str, size: ModelSize, *, rows: int, tune_output_layer: bool = False
) -> Defaults:
    if task.benchmark == "builtin":
        paper = learning_rate(method, "glue", size, tune_output_layer)
        return Defaults(
            learning_rate=BUILTIN_RATES.get(method, paper),
            epochs=BUILTIN_EPOCHS[task.name],
            batch_size=BUILTIN_BATCH_SIZE,
            max_length=OTHER_LENGTH,
            warmup_steps=None,
            dropout=BUILTIN_DROPOUT,
        )
    is_record = task.name == "record"
    few = task.name in FEW_EPOCHS_TASKS if task.benchmark in BATCH_SIZES else rows > MANY_ROWS
    return Defaults(
        learning_rate=learning_rate(method, task.benchmark, size, tune_output_layer),
        epochs=FEW_EPOCHS if few else MANY_EPOCHS,
        batch_size=16 if is_record else BATCH_SIZES.get(task.benchmark, OTHER_BATCH_SIZE),
        max_length=512 if is_record else LENGTHS.get(task.benchmark, OTHER_LENGTH),
        warmup_steps=warmup_steps(task.benchmark, size),
    )


def learning_rate(
    method: str, benchmark: str, size: ModelSize, tune_output_layer: bool = False
) -> float:
    """One learning rate per method, from the four tables of the paper; for a method that is not in
    it, that of Compacter, and for training a head alone, that of full fine-tuning."""
    if tune_output_layer:
        table = "learning_rates_output_layer_tuned"
    elif size == "t5-small":
        table = "learning_rates_glue_t5_small"
    elif size == "t5-base" and benchmark == "superglue":
        table = "learning_rates_superglue_t5_base"
    else:
        table = "learning_rates_glue_t5_base"
    rates, every = tables()[table], tables()["learning_rates_glue_t5_base"]
    if method not in every:
        method = "compacter" if method in METHODS else "full"
    rate: float = rates.get(method, every[method])
    return rate


def warmup_steps(benchmark: str, size: ModelSize) -> int | None:
    if size == "t5-base" and benchmark == "glue":
        return PAPER_WARMUP_STEPS
    if (size == "t5-base" and benchmark == "superglue") or (
        size == "t5-small" and benchmark in BATCH_SIZES
    ):
        return 0
    return None


def usual_warmup(steps: int) -> int:
    """Where the paper says nothing: its steps for GLUE, or a part of those that there are."""
    return min(PAPER_WARMUP_STEPS, round(MOST_WARMUP * steps))

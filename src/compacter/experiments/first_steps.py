"""How long runs would take, by their first steps, before any is finished."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from compacter.experiments.engines.local import call_all
from compacter.experiments.pace import kind
from compacter.experiments.store import Run


def timed(runs: Iterable[Run], steps: int, jobs: int) -> list[Run]:
    """One run of each kind with the seconds that it would take, measured with as many at a time as
    there are to be."""
    kinds = {kind(run.recipe): run for run in runs}
    calls = {name: partial(_seconds, run.recipe, steps) for name, run in kinds.items()}
    return [replace(kinds[name], seconds=found) for name, found in call_all(calls, jobs).items()]


def _seconds(values: Mapping[str, Any], steps: int) -> float:
    """Of all steps, and of the answers that are asked for at each checkpoint and at the end. The
    rows are drawn from all, since those of a run by length begin with the longest."""
    from transformers.trainer_utils import IntervalStrategy

    from compacter.tasks import take
    from compacter.training.prepare import prepare
    from compacter.training.progress import silence_transformers
    from compacter.training.recipe import Recipe
    from compacter.training.run import make_trainer

    silence_transformers()
    ready = prepare(Recipe.make(dict(values)))
    recipe, splits = ready.recipe, ready.splits
    assert recipe.batch_size is not None
    assert recipe.epochs is not None
    rows_per_step = recipe.batch_size * recipe.gradient_accumulation
    ready.recipe = recipe.model_copy(update={"early_stopping": None})
    ready.splits = replace(splits, train=take(splits.train, rows_per_step * steps, recipe.seed))
    asked = take(splits.validation, recipe.batch_size, recipe.seed)
    with TemporaryDirectory() as folder:
        trainer = make_trainer(ready, Path(folder), None, [])
        trainer.args.max_steps = steps
        trainer.args.eval_strategy = trainer.args.save_strategy = IntervalStrategy.NO
        trainer.args.load_best_model_at_end = False
        trainer.predictions(asked)  # what is set up once is not timed
        step = trainer.train().metrics["train_runtime"] / steps
        started = time.perf_counter()
        trainer.predictions(asked)
        answer = (time.perf_counter() - started) / len(asked)
    total = -(-len(splits.train) // rows_per_step) * recipe.epochs
    checkpoints = total // recipe.save_steps if recipe.save_steps else recipe.epochs
    answers = checkpoints * len(splits.validation) + len(splits.test or splits.validation)
    return float(step * total + answer * answers)

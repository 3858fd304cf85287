"""What an engine's process does with a run of a sweep, the same on every engine."""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import Any, Literal

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from compacter.errors import ExperimentError
from compacter.experiments.store import Claim, Planned, Store
from compacter.tasks import fingerprint
from compacter.training.progress import silence_transformers
from compacter.training.recipe import Recipe
from compacter.training.run import Prepared, train

Outcome = Literal["finished", "failed", "busy"]


def execute(folder: Path, run: Planned, retry: bool) -> Outcome:
    """Train a run, or go on with it, unless it is finished, or has failed and is not to be tried
    again, or another process is at it. Whatever goes wrong is recorded."""
    store = Store(folder)
    claim = store.claim(run.id)
    if claim is None:
        return "busy"
    with claim:
        if store.is_finished(run.id):
            return "finished"
        if store.has_failed(run.id) and not retry:
            return "failed"
        silence_transformers()
        attempts = store.forget_failure(run.id)

        def check_data(ready: Prepared) -> None:
            if fingerprint(ready.splits) != run.data_fingerprint:
                raise ExperimentError(
                    f"the data of {ready.task.name} is not what it was when the sweep started; "
                    "start the sweep again"
                )

        try:
            train(
                Recipe.make(run.recipe),
                store.run_folder(run.id),
                resume=True,
                on_start=check_data,
                callbacks=[_Tell(claim)],
            )
        except Exception as error:
            traceback.print_exc()
            store.fail(run, str(error), type(error).__name__, attempts + 1)
            return "failed"
        return "finished"


class _Tell(TrainerCallback):
    """Tells through a claim how far a run is, once a second at most."""

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.told = 0.0

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        if time.monotonic() - self.told > 1:
            self.claim.tell(state.global_step, state.max_steps)
            self.told = time.monotonic()

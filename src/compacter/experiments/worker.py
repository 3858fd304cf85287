"""What an engine's process does with a run of a sweep, the same on every engine."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Literal

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from compacter.errors import ExperimentError
from compacter.experiments.store import Claim, Planned, Store
from compacter.tasks import fingerprint
from compacter.training.prepare import Prepared
from compacter.training.progress import silence_transformers
from compacter.training.recipe import Recipe
from compacter.training.run import train

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
        store.forget_broken_result(run.id)

        def check_data(ready: Prepared) -> None:
            if fingerprint(ready.splits) != run.data_fingerprint:
                raise ExperimentError(
                    f"the data of {ready.task.name} is not what it was when the sweep started; "
                    "start the sweep again"
                )

        with _printing_to(store.log(run.id)):
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


@contextmanager
def _printing_to(log: Path) -> Iterator[None]:
    """What this process prints, in Python or below it, is added to a file; afterwards it goes where
    it went before, as Ray's workers live on and take the next run."""
    with (
        log.open("a", buffering=1, encoding="utf-8", errors="backslashreplace") as file,
        redirect_stdout(file),
        redirect_stderr(file),
    ):
        kept = {number: os.dup(number) for number in (1, 2)}
        try:
            for number in kept:
                os.dup2(file.fileno(), number)
            yield
        finally:
            for number, descriptor in kept.items():
                os.dup2(descriptor, number)
                os.close(descriptor)


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

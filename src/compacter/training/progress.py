"""Progress of a run: a bar with loss, speed and time left, or plain lines without a terminal."""

from __future__ import annotations

import sys
import time
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class Progress(TrainerCallback):
    """Writes to standard error, so that results on standard output stay clean."""

    def __init__(self) -> None:
        self.started = 0.0
        self.begun_at = 0
        self.loss = ""
        self.is_terminal = sys.stderr.isatty()

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        self.started = time.monotonic()
        self.begun_at = state.global_step

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        if self.is_terminal and state.is_world_process_zero:
            self._show(state, end="")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        logs = logs or {}
        if not state.is_world_process_zero:
            return
        if "loss" in logs:
            self.loss = f"loss {logs['loss']:.4f}"
            if not self.is_terminal:
                self._show(state, end="\n")
        if "eval_score" in logs:
            scores = ", ".join(
                f"{name.removeprefix('eval_')} {value:.2f}"
                for name, value in logs.items()
                if name.startswith("eval_")
            )
            lead = "\r\033[K" if self.is_terminal else ""
            print(f"{lead}step {state.global_step}: validation {scores}", file=sys.stderr)

    def _show(self, state: TrainerState, end: str) -> None:
        done = max(1, state.global_step - self.begun_at)
        seconds = (time.monotonic() - self.started) / done
        left = seconds * (state.max_steps - state.global_step)
        line = (
            f"step {state.global_step}/{state.max_steps}, {self.loss}, "
            f"{1 / max(seconds, 1e-9):.2f} steps/s, {int(left // 60)}:{int(left % 60):02d} left"
        )
        if self.is_terminal:
            width = 20
            full = width * state.global_step // max(1, state.max_steps)
            line = f"\r\033[K[{'#' * full}{'.' * (width - full)}] {line}"
        print(line, end=end, file=sys.stderr, flush=True)

"""Progress of a run: a bar with loss, speed and time left, or plain lines, and a log file."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from compacter.extras import silence_extras


class Lines(TrainerCallback, ABC):
    """Tells in lines how a run goes: of the processes of a run, the first."""

    def __init__(self) -> None:
        self.started = 0.0
        self.begun_at = 0
        self.loss = ""

    @abstractmethod
    def write(self, line: str) -> None:
        """Where the lines go."""

    def on_loss(self, line: str) -> None:
        self.write(line)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        self.started = time.monotonic()
        self.begun_at = state.global_step

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
            self.on_loss(self.place(state))
        if "eval_score" in logs:
            scores = ", ".join(
                f"{name.removeprefix('eval_')} {value:.2f}"
                for name, value in logs.items()
                if name.startswith("eval_")
            )
            self.write(f"step {state.global_step}: validation {scores}")

    def place(self, state: TrainerState) -> str:
        """Where the run is, how fast it goes and when it ends."""
        done = max(1, state.global_step - self.begun_at)
        seconds = (time.monotonic() - self.started) / done
        left = seconds * (state.max_steps - state.global_step)
        return (
            f"step {state.global_step}/{state.max_steps}, {self.loss}, "
            f"{1 / max(seconds, 1e-9):.2f} steps/s, {int(left // 60)}:{int(left % 60):02d} left"
        )


class LogFile(Lines):
    """Adds the lines to a file, each with the time."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def write(self, line: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")


class Progress(Lines):
    """Writes to standard error, so that results on standard output stay clean."""

    BAR = 20

    def __init__(self, label: str = "") -> None:
        """Lines with a label are those of one run of several, and there is no bar."""
        super().__init__()
        self.label = label
        self.is_terminal = sys.stderr.isatty() and not label

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        if self.is_terminal and state.is_world_process_zero:
            full = self.BAR * state.global_step // max(1, state.max_steps)
            bar = "#" * full + "." * (self.BAR - full)
            print(f"\r\033[K[{bar}] {self.place(state)}", end="", file=sys.stderr, flush=True)

    def on_loss(self, line: str) -> None:
        if not self.is_terminal:  # else the bar has said it
            self.write(line)

    def write(self, line: str) -> None:
        lead = "\r\033[K" if self.is_terminal else ""
        print(f"{lead}{self.label}{line}", file=sys.stderr, flush=True)


def announce(run: object) -> None:
    """The trained parameters come first."""
    print(run, file=sys.stderr, flush=True)


def silence_transformers() -> None:
    """What transformers and others say on their own account would hide what we say."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    silence_extras()

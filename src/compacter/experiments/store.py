"""The folder of a sweep: its grid, its plan, its runs and what state each is in.

    DIR/sweep.yaml        the grid, with the flags applied
    DIR/plan.json         the runs that it makes, by their ids
    DIR/runs/<id>/        what `compacter train` leaves, or failed.json
    DIR/running/<id>.json who trains that run now, and how far it is
    DIR/logs/<id>.log     what a run printed, while it goes on or if it failed

A state is never written down, so it cannot be wrong: a run is done if its result is there (the
result is the last thing that a run writes), and running if somebody holds its claim, which is a
lock of the system that ends with its process, however that ends. Reading imports no torch."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

import yaml

from compacter.errors import CompacterError, ExperimentError
from compacter.training.folder import RECIPE_NAME, check_writable
from compacter.training.recipe import DATA_PLACES, METHOD_SETTINGS, read_recipe
from compacter.training.result import (
    CHECKPOINTS,
    RESULT_NAME,
    read_summary,
    write_atomically,
)

SWEEP_NAME = "sweep.yaml"
PLAN_NAME = "plan.json"
FAILED_NAME = "failed.json"
RUNS, RUNNING, LOGS = "runs", "running", "logs"

State = Literal["done", "diverged", "failed", "running", "waiting", "stopped"]
STATES: tuple[State, ...] = ("done", "diverged", "failed", "running", "waiting", "stopped")
"""Stopped: begun by an earlier plan and not in this one, so that it waits for nothing."""

ID_LENGTH = 12
TELLING = (*METHOD_SETTINGS, "max_train_samples", "learning_rate", "epochs", "seed")
"""Keys that tell runs apart where no grid says which ones do."""

LOOKS = 25  # times that a claim is tried for: somebody may just be looking whether it is held
LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class Planned:
    """A run of a plan."""

    id: str
    label: str
    """What tells it from the other runs of the grid."""
    given: dict[str, Any]
    """Its recipe as the grid gives it, without what it leaves open."""
    recipe: dict[str, Any]
    """The same, filled in."""
    data_fingerprint: str | None
    """None: its data or model could not be read, and `error` says why."""
    unread_id: str
    """Its id as long as its data could not be read."""
    error: str | None = None
    kind: str | None = None


@dataclass(frozen=True)
class Run:
    """A run as it is now."""

    id: str
    state: State
    label: str
    recipe: dict[str, Any]
    """Filled in, as far as that could be done, without what is open."""
    method: str | None = None
    task: str | None = None
    score: float | None = None
    seconds: float | None = None
    error: str | None = None
    step: int | None = None
    steps: int | None = None


def run_id(recipe: Mapping[str, Any], data_fingerprint: str | None) -> str:
    """A short hash of a resolved recipe and its data, wherever that is."""
    known = {
        key: value
        for key, value in recipe.items()
        if value is not None and (data_fingerprint is None or key not in DATA_PLACES)
    }
    text = json.dumps([known, data_fingerprint], sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]


class Claim:
    """The right to train a run, held by one process; it ends with the process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor
        self.started = time.time()

    def tell(self, step: int | None = None, steps: int | None = None) -> None:
        content = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": self.started,
            "step": step,
            "steps": steps,
        }
        text = json.dumps(content, allow_nan=False).encode()
        os.pwrite(self.descriptor, text, 0)
        os.ftruncate(self.descriptor, len(text))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.path.unlink(missing_ok=True)  # while it is still held
        os.close(self.descriptor)


class Store:
    """The folder of one sweep."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """A folder that holds a sweep."""
        store = cls(folder)
        if not (store.folder / PLAN_NAME).is_file():
            found = "a file" if store.folder.is_file() else "no such folder"
            if store.folder.is_dir():
                found = f"a folder without {PLAN_NAME}"
            raise ExperimentError(
                f"{str(folder)!r} is no sweep: found {found}; expected the --output of "
                "'compacter sweep'"
            )
        return store

    @classmethod
    def create(cls, folder: str | Path) -> Self:
        """A folder for a sweep: new, empty, or that of an earlier sweep, also if that was killed
        before it had written its grid."""
        store = cls(folder)
        check_writable(Path(folder))
        is_sweep = (store.folder / SWEEP_NAME).exists()
        begun = store.folder.iterdir() if store.folder.exists() else ()
        if not is_sweep and not all(_is_of_a_beginning(path) for path in begun):
            raise ExperimentError(
                f"{str(folder)!r} is not empty and holds no sweep; choose another folder"
            )
        return store

    # The plan

    def write(self, grid: Mapping[str, Any], plan: Iterable[Planned]) -> None:
        content = json.dumps([asdict(run) for run in plan], indent=0, allow_nan=False)
        try:
            for name in ("", RUNS, RUNNING, LOGS):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / SWEEP_NAME, yaml.safe_dump(dict(grid), sort_keys=False))
            write_atomically(self.folder / PLAN_NAME, content + "\n")
        except OSError as error:
            raise ExperimentError(
                f"the sweep cannot be written to {str(self.folder)!r}: {error.strerror}; expected "
                "a folder that you may write to, and room in it"
            ) from None

    def plan(self) -> list[Planned]:
        path = self.folder / PLAN_NAME
        try:
            return [Planned(**run) for run in json.loads(path.read_text(encoding="utf-8"))]
        except (OSError, ValueError, TypeError) as error:
            raise ExperimentError(f"{str(path)!r} is not the plan of a sweep: {error}") from None

    # The runs

    def run_folder(self, run: str) -> Path:
        return self.folder / RUNS / run

    def log(self, run: str) -> Path:
        return self.folder / LOGS / f"{run}.log"

    def is_finished(self, run: str) -> bool:
        return bool(read_summary(self.run_folder(run)))

    def has_failed(self, run: str) -> bool:
        return not self.is_finished(run) and (self.run_folder(run) / FAILED_NAME).exists()

    def claim(self, run: str) -> Claim | None:
        """The right to train a run, or None if another process has it."""
        path = self.folder / RUNNING / f"{run}.json"
        for _ in range(LOOKS):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    claim = Claim(path, descriptor)
                    claim.tell()
                    return claim
            except FileNotFoundError:  # its last holder has just taken the file away
                pass
            except BlockingIOError:
                time.sleep(LOOK_SECONDS)
            except OSError:
                os.close(descriptor)
                raise
            os.close(descriptor)
        return None

    def progress(self, run: str) -> dict[str, Any] | None:
        """What the holder of a claim tells, or None if nobody holds it."""
        try:
            with (self.folder / RUNNING / f"{run}.json").open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    return _object(file.read())
        except FileNotFoundError:
            pass
        return None

    def fail(self, run: Planned, error: str, kind: str, attempts: int) -> None:
        """Record that a run failed."""
        content = {
            "recipe": run.recipe,
            "error": " ".join(error.split()) or kind,
            "kind": kind,
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "attempts": attempts,
        }
        folder = self.run_folder(run.id)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(
            folder / FAILED_NAME, json.dumps(content, indent=1, allow_nan=False) + "\n"
        )

    def forget_failure(self, run: str) -> int:
        """Take the record of a failure away; says after how many attempts it was made."""
        path = self.run_folder(run) / FAILED_NAME
        attempts = _read(path).get("attempts", 0)
        path.unlink(missing_ok=True)
        return int(attempts)

    def forget_broken_result(self, run: str) -> None:
        """Take away what is left of a result that was cut off, as by a machine that lost its power;
        the run goes on from its last checkpoint."""
        path = self.run_folder(run) / RESULT_NAME
        if path.exists() and not _object(path.read_bytes()):
            path.unlink()

    def remove(self, run: str) -> None:
        shutil.rmtree(self.run_folder(run), ignore_errors=True)

    def tidy(self, run: str) -> None:
        """Take away what a process that was killed at its very end has left in a finished run."""
        folder = self.run_folder(run)
        for name in (FAILED_NAME, *(path.name for path in folder.glob(".*.*"))):
            (folder / name).unlink(missing_ok=True)
        if (folder / CHECKPOINTS).exists():
            shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        self.log(run).unlink(missing_ok=True)

    def begun(self) -> set[str]:
        """The runs that have a folder."""
        return {path.name for path in (self.folder / RUNS).glob("*")}

    def runs(self, plan: Iterable[Planned] | None = None) -> list[Run]:
        """Every run of the plan (the last one, unless another is given), and after them those that
        other plans have left."""
        planned = {run.id: run for run in (self.plan() if plan is None else plan)}
        others = self.begun() - planned.keys()
        return [self.look(run, planned.get(run)) for run in (*planned, *sorted(others))]

    def look(self, run: str, planned: Planned | None = None) -> Run:
        """A run as it is now. What no plan tells about it is taken from what it has left."""
        folder = self.run_folder(run)
        result, failure = read_summary(folder), _read(folder / FAILED_NAME)
        recipe = _said(planned.recipe) if planned else _recipe(folder, result or failure)
        label = planned.label if planned else _label(recipe)
        if result:
            return Run(
                run,
                "done" if result.get("status") == "finished" else "diverged",
                label,
                recipe,
                result.get("method"),
                result.get("task"),
                result.get("score"),
                result.get("seconds"),
            )
        names = (recipe.get("method"), recipe.get("task"))
        progress = self.progress(run)
        if progress is not None:
            step, steps = progress.get("step"), progress.get("steps")
            return Run(run, "running", label, recipe, *names, step=step, steps=steps)
        if failure:
            return Run(run, "failed", label, recipe, *names, error=failure.get("error"))
        return Run(run, "waiting" if planned else "stopped", label, recipe, *names)


def _is_of_a_beginning(path: Path) -> bool:
    if path.name in (RUNS, RUNNING, LOGS):
        return path.is_dir() and not any(path.iterdir())
    return path.name.startswith(f".{SWEEP_NAME}.")


def _recipe(folder: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """A run's recipe from its result or failure, or else its own file, without what is open."""
    try:
        found = record.get("recipe") or read_recipe(folder / RECIPE_NAME)
    except CompacterError:
        return {}
    return _said(found)


def _said(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in recipe.items() if value is not None}


def _label(recipe: Mapping[str, Any]) -> str:
    names = [str(recipe[key]) for key in ("method", "task") if key in recipe]
    return " ".join(names + [f"{key}={recipe[key]}" for key in TELLING if key in recipe])


def _read(path: Path) -> dict[str, Any]:
    try:
        return _object(path.read_bytes())
    except OSError:
        return {}


def _object(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}

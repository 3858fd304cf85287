"""Calls on this machine, so many at a time, each in a process of its own.

Each process is forked from a server that has imported torch and transformers and done nothing else
(multiprocessing's forkserver): it starts in hundredths of a second in place of several, yet shares
no memory, device or lock with another run, so that whatever ends it ends only that run, and what it
had allocated goes with it. Workers that live on and take the next run would start as warm, but one
run's memory peak, leaks and crashes would be the next one's. Where forking is not safe (all but
Linux) processes are spawned, and pay for their imports."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process, reduction
from typing import Any

from compacter.errors import CompacterError, ExperimentError
from compacter.experiments.engines import Call, Ended

START = "forkserver" if sys.platform == "linux" else "spawn"
PRELOADED = ["compacter.experiments.quiet", "compacter.training.run"]
PATIENCE = 5.0  # seconds that a process has to end when told to
DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass
class _Started:
    key: str
    process: Any
    answer: connection.Connection
    slot: int


class Local:
    """An engine for one machine."""

    def __init__(self, jobs: int = 1) -> None:
        if jobs < 1:
            raise ExperimentError(f"jobs={jobs} does not fit; expected 1 or more")
        self.slots = jobs
        self.context: Any = get_context(START)
        if START == "forkserver":
            self.context.set_forkserver_preload(PRELOADED)
        self.waiting: deque[tuple[str, Call]] = deque()
        self.started: dict[int, _Started] = {}

    def submit(self, key: str, call: Call) -> None:
        self.waiting.append((key, call))
        self._fill()

    def ended(self, timeout: float) -> list[Ended]:
        handles = {
            handle: started
            for started in self.started.values()
            for handle in (started.answer, started.process.sentinel)
        }
        ready = {id(handles[h]): handles[h] for h in connection.wait(list(handles), timeout)}
        found = [self._collect(started) for started in ready.values()]
        self._fill()
        return found

    def close(self) -> None:
        self.waiting.clear()
        for started in self.started.values():
            started.process.terminate()
        for started in self.started.values():
            started.process.join(PATIENCE)
            started.process.kill()
            started.process.join()
            started.answer.close()
        self.started.clear()

    def _fill(self) -> None:
        free = [slot for slot in range(self.slots) if slot not in self.started]
        for slot in free[: len(self.waiting)]:
            key, call = self.waiting.popleft()
            receive, send = self.context.Pipe(duplex=False)
            process = self.context.Process(
                target=_serve, args=(send, call, slot, self.slots, _Streams()), name=key
            )
            process.start()
            send.close()  # so that the pipe ends with the process
            self.started[slot] = _Started(key, process, receive, slot)

    def _collect(self, started: _Started) -> Ended:
        del self.started[started.slot]
        try:
            value, error = started.answer.recv()
        except (EOFError, OSError):
            started.process.join()
            return Ended(started.key, lost=_how(started.process.exitcode))
        finally:
            started.answer.close()
        started.process.join()
        return Ended(started.key, value, error)


def call_all(calls: Mapping[str, Call], jobs: int = 1) -> dict[str, Any]:
    """What these calls give, so many made at a time. One that fails ends them all."""
    engine = Local(jobs)
    found: dict[str, Any] = {}
    try:
        for key, call in calls.items():
            engine.submit(key, call)
        while len(found) < len(calls):
            for ended in engine.ended(1.0):
                if ended.error is not None:
                    raise ended.error
                if ended.lost is not None:
                    raise ExperimentError(f"{ended.key}: {ended.lost}")
                found[ended.key] = ended.value
    finally:
        engine.close()
    return found


def _how(exitcode: int) -> str:
    """How a process ended, in words."""
    if exitcode < 0:
        name = signal.Signals(-exitcode).name
        memory = "; was there enough memory?" if name == "SIGKILL" else ""
        return f"the process of the run was ended by {name}{memory}"
    return f"the process of the run ended by itself with exit code {exitcode}"


class _Streams:
    """This process's standard output and error, for a process that is not its own child."""

    def __getstate__(self) -> list[Any]:
        return [reduction.DupFd(number) for number in (1, 2)]

    def __setstate__(self, streams: list[Any]) -> None:
        for number, stream in zip((1, 2), streams, strict=True):
            descriptor = stream.detach()
            os.dup2(descriptor, number)
            os.close(descriptor)


def _serve(
    answer: connection.Connection,
    call: Call,
    slot: int,
    slots: int,
    streams: _Streams,
) -> None:
    """What a process does: make the call and send what came of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it hears Ctrl-C, and ends it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    device = one_device(slot, os.environ)
    if device is not None:
        os.environ[DEVICES] = device
    share_threads(slots)
    try:
        answer.send((call(), None))
    except Exception as error:
        if not isinstance(error, CompacterError):
            traceback.print_exc()
            error = RuntimeError(f"{type(error).__name__}: {error}")  # others may not be picklable
        answer.send((None, error))


def _end_with_parent() -> None:
    """A run whose sweep was killed would go on unseen, and keep its claim."""
    parent, adopted_by = parent_process(), os.getppid()
    assert parent is not None
    while not connection.wait([parent.sentinel], 0.5) and os.getppid() == adopted_by:
        pass
    os._exit(1)


def share_threads(slots: int) -> None:
    import torch

    torch.set_num_threads(max(1, torch.get_num_threads() // slots))


def one_device(slot: int, environment: Mapping[str, str]) -> str | None:
    """The GPU of a slot, of those that may be seen: a run that saw several would spread over them.
    None where there is none."""
    named = environment.get(DEVICES)
    if named is not None:
        visible = [name.strip() for name in named.split(",") if name.strip()]
    else:
        import torch

        visible = [str(index) for index in range(torch.cuda.device_count())]
    return visible[slot % len(visible)] if visible else None

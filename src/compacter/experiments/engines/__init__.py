"""Engines place calls on processes; what the calls do is no concern of theirs.

`Local` starts a process for each call on this machine, `Ray` hands calls to a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

Call = Callable[[], Any]
"""Must be picklable: a function of a module, or a functools.partial of one."""


@dataclass(frozen=True)
class Ended:
    """A call that has ended."""

    key: str
    value: Any = None
    error: Exception | None = None
    """What the call raised."""
    lost: str | None = None
    """How its process ended, if it did so before the call."""


class Engine(Protocol):
    """Something that makes calls, several at a time, each in a process that may be lost."""

    @property
    def slots(self) -> int:
        """How many calls can go on at a time."""

    def submit(self, key: str, call: Call) -> None:
        """Make a call as soon as there is a free place."""

    def ended(self, timeout: float) -> list[Ended]:
        """The calls that have ended since the last time; waits so many seconds for one."""

    def close(self) -> None:
        """End all that still goes on."""

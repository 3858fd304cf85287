"""How a sweep stands, and when it will be done."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from compacter.experiments.pace import Pace
from compacter.experiments.store import STATES, Run, State


@dataclass
class Overview:
    """How a sweep stands."""

    runs: dict[str, Run]
    slots: int = 1
    pace: Pace = field(default_factory=Pace)

    def count(self) -> dict[State, int]:
        """The number of runs in each state."""
        found = Counter(run.state for run in self.runs.values())
        return {state: found[state] for state in STATES}

    def running(self) -> list[Run]:
        return [run for run in self.runs.values() if run.state == "running"]

    def seconds_left(self) -> float | None:
        """None if no finished run tells."""
        total = 0.0
        for run in self.runs.values():
            if run.state in ("waiting", "running"):
                seconds = self.pace.seconds(run.recipe)
                if seconds is None:
                    return None
                share = run.step / run.steps if run.step and run.steps else 0.0
                total += seconds * (1 - share)
        return total / self.slots

    def update(self, run: Run) -> None:
        self.runs[run.id] = run
        if run.state == "done":
            self.pace.add(run)

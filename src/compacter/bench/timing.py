"""Timing on machines that are never quiet: several pieces of work turn by turn in one process,
compared by the ratios of their medians and of their minima.

Most of the noise of a virtual machine is its host's: while that gives a core to others, all that
waits for this core stands still. Linux counts such time, as "steal", so that a turn in which it
was stolen can be told, whatever it measured, and taken again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

STAT = Path("/proc/stat")
STOLEN = 0.01
"""Share of the cores' time, above which a turn is taken again."""
PATIENCE = 1.0
"""How many turns may be taken again, for each that counts, where a figure is to be relied on."""


@dataclass(frozen=True)
class Timing:
    """Seconds of every turn."""

    seconds: tuple[float, ...]
    left_out: int = 0
    """Turns that were taken again, because the cores were given to others meanwhile."""

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def minimum(self) -> float:
        return min(self.seconds)

    def ratios(self, other: Timing) -> tuple[float, float]:
        """Of the medians and of the minima."""
        return self.median / other.median, self.minimum / other.minimum

    def ratio_interval(self, other: Timing, draws: int = 2_000) -> tuple[float, float]:
        """Between which 95% of the ratios of medians lie when rounds are drawn anew, with those of
        both together: how far the figure of these rounds can be trusted."""
        turns = np.random.default_rng(0).integers(
            len(self.seconds), size=(draws, len(self.seconds))
        )
        medians = (np.median(np.array(each.seconds)[turns], axis=1) for each in (self, other))
        low, high = np.quantile(np.divide(*medians), (0.025, 0.975))
        return float(low), float(high)


def stolen_seconds() -> float:
    """For how long, of all cores and since the start, a host let this machine wait for a core; 0
    where nobody counts it."""
    try:
        ticks = STAT.read_text(encoding="ascii").split("\n", 1)[0].split()
        return int(ticks[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def take_turns(
    work: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    patience: float = 0.0,
    wait: Callable[[], object] = lambda: None,
    on_round: Callable[[int], object] = lambda number: None,
    clock: Callable[[], float] = time.perf_counter,
    stolen: Callable[[], float] = stolen_seconds,
) -> dict[str, Timing]:
    """Call everything once in every round, so that a slow minute slows all alike, in an order that
    is drawn anew, so that none has always the same one before it. A turn in which the host took the
    cores away is taken again, until these are more than `patience` times all turns; then every turn
    counts. `wait` is called before the clock is read, for devices that work on their own."""
    names, generator = list(work), np.random.default_rng(0)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    left_out = dict.fromkeys(names, 0)
    most_left_out = patience * rounds * len(names)
    for number in range(rounds):
        on_round(number)
        for name in generator.permutation(names).tolist():
            while True:
                wait()
                stolen_before, start = stolen(), clock()
                work[name]()
                wait()
                taken = clock() - start
                is_quiet = stolen() - stolen_before <= STOLEN * taken * _cores()
                if is_quiet or sum(left_out.values()) >= most_left_out:
                    break
                left_out[name] += 1
            seconds[name].append(taken)
    return {name: Timing(tuple(seconds[name]), left_out[name]) for name in names}


def _cores() -> int:
    return os.cpu_count() or 1

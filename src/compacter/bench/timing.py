"""Timing on machines that are never quiet: several pieces of work turn by turn in one process,
compared by the ratios of their medians and of their minima."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np


@dataclass(frozen=True)
class Timing:
    """Seconds of every turn."""

    seconds: tuple[float, ...]

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


def take_turns(
    work: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    wait: Callable[[], object] = lambda: None,
    on_round: Callable[[int], object] = lambda number: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Call everything once in every round, so that a slow minute slows all alike, in an order that
    is drawn anew, so that none has always the same one before it. `wait` is called before the clock
    is read, for devices that work on their own."""
    names, generator = list(work), np.random.default_rng(0)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        on_round(number)
        for name in generator.permutation(names).tolist():
            wait()
            start = clock()
            work[name]()
            wait()
            seconds[name].append(clock() - start)
    return {name: Timing(tuple(found)) for name, found in seconds.items()}

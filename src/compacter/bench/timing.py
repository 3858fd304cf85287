"""Timing on machines that are never quiet: several pieces of work turn by turn in one process,
compared by the ratios of their medians and of their minima.

Cores that others use too are slow for a hundredth of a second here and there, so that hardly any
turn of a second is quiet as a whole, but most of its laps are. Where the clock is read after every
layer, the median is that of each lap over all turns, added up: a slow moment spoils one lap of one
turn, and not the turn."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn


@dataclass(frozen=True)
class Timing:
    """Seconds of every turn, and of its laps."""

    laps: tuple[tuple[float, ...], ...]

    @property
    def seconds(self) -> tuple[float, ...]:
        return tuple(sum(turn) for turn in self.laps)

    def of_rounds(self, rounds: Sequence[int]) -> Timing:
        """Of these rounds alone; one can be among them several times."""
        return Timing(tuple(self.laps[number] for number in rounds))

    @property
    def median(self) -> float:
        """The medians of all laps, added up."""
        return _median(self._laps)

    @property
    def median_turn(self) -> float:
        """The same of whole turns, whatever their laps."""
        return float(np.median(self.seconds))

    @property
    def minimum(self) -> float:
        """The minima of all laps, added up: a turn in which no lap is disturbed."""
        return float(self._laps.min(axis=0).sum())

    def ratios(self, other: Timing) -> tuple[float, float]:
        """Of the medians and of the minima."""
        return self.median / other.median, self.minimum / other.minimum

    def ratio_interval(self, other: Timing, draws: int = 1_000) -> tuple[float, float]:
        """Between which 95% of the ratios of medians lie when rounds are drawn anew, with those of
        both together: how far the figure of these rounds can be trusted."""
        generator, turns = np.random.default_rng(0), len(self.laps)
        drawn = (generator.integers(turns, size=turns) for _ in range(draws))
        ratios = [_median(self._laps[some]) / _median(other._laps[some]) for some in drawn]
        low, high = np.quantile(ratios, (0.025, 0.975))
        return float(low), float(high)

    @property
    def _laps(self) -> NDArray[np.float64]:
        """As a table. Turns that do not all have as many laps have one."""
        is_even = len({len(turn) for turn in self.laps}) == 1
        return np.array(self.laps if is_even else [[seconds] for seconds in self.seconds])


def _median(laps: NDArray[np.float64]) -> float:
    return float(np.median(laps, axis=0).sum())


class Laps:
    """Reads the clock whenever a layer of a model is done, forwards and backwards."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._times: list[float] = []

    def watch(self, model: nn.Module) -> None:
        """Layers are what models keep in lists."""
        for layers in model.modules():
            if isinstance(layers, nn.ModuleList):
                for layer in layers:
                    if self._passed not in layer._forward_hooks.values():
                        layer.register_forward_hook(self._passed)

    def _passed(self, module: nn.Module, args: Any, output: Any) -> None:
        self._times.append(self.clock())
        first = output[0] if isinstance(output, tuple) else output
        if isinstance(first, Tensor) and first.requires_grad:
            first.register_hook(lambda _: self._times.append(self.clock()))  # type: ignore[no-untyped-call]

    def of(self, *work: Callable[[], object]) -> tuple[float, ...]:
        """Seconds of every lap while all that is done; the last one is until its end."""
        self._times.clear()
        start = self.clock()
        for part in work:
            part()
        return tuple(np.diff([start, *self._times, self.clock()]).tolist())


def take_turns(
    work: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    laps: Laps | None = None,
    wait: Callable[[], object] = lambda: None,
    on_round: Callable[[int], object] = lambda number: None,
) -> dict[str, Timing]:
    """Call everything once in every round, so that a slow minute slows all alike, in an order that
    is drawn anew, so that none has always the same one before it. `laps` watches the models that
    work; without, a turn is one lap. `wait` is called before a turn begins and ends, for devices
    that work on their own."""
    names, generator, watch = list(work), np.random.default_rng(0), laps or Laps()
    turns: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
    for number in range(rounds):
        on_round(number)
        for name in generator.permutation(names).tolist():
            wait()
            turns[name].append(watch.of(work[name], wait))
    return {name: Timing(tuple(turns[name])) for name in names}

"""Turns, with a clock that the test moves."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from compacter.bench import Timing, take_turns


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def work(self, name: str, *seconds: float) -> object:
        left = list(seconds)

        def run() -> None:
            self.calls.append(name)
            self.now += left.pop(0)

        return run


def test_every_round_gives_each_its_turn():
    clock = Clock()
    rounds: list[int] = []
    found = take_turns(
        {"a": clock.work("a", 1, 2, 6), "b": clock.work("b", 3, 3, 3)},
        3,
        clock=lambda: clock.now,
        on_round=rounds.append,
    )
    assert [sorted(clock.calls[i : i + 2]) for i in (0, 2, 4)] == [["a", "b"]] * 3
    assert rounds == [0, 1, 2]
    assert found == {"a": Timing((1, 2, 6)), "b": Timing((3, 3, 3))}
    assert (found["a"].median, found["a"].minimum) == (2, 1)
    assert found["a"].ratios(found["b"]) == pytest.approx((2 / 3, 1 / 3))


def test_each_has_every_other_before_it_about_equally_often():
    clock, rounds = Clock(), 400
    take_turns({name: clock.work(name, *[1] * rounds) for name in "abcd"}, rounds)
    pairs = Counter(pairwise(clock.calls))
    within = [pairs[a, b] for a in "abcd" for b in "abcd" if a != b]
    assert min(within) > 0.5 * max(within)


def test_how_far_a_ratio_can_be_trusted():
    """Noise that both have in the same round does not count; noise of their own does, and less in
    more rounds."""
    generator = np.random.default_rng(1)
    slow_rounds = generator.uniform(1, 3, 41)
    twice, once = Timing(tuple(2 * slow_rounds)), Timing(tuple(slow_rounds))
    assert twice.ratio_interval(once) == pytest.approx((2, 2))
    held, widths = 0, {40: 0.0, 400: 0.0}
    for rounds in [*widths] * 50:
        a, b = (Timing(tuple(level + generator.uniform(0, 1, rounds))) for level in (4.0, 3.5))
        low, high = a.ratio_interval(b, draws=300)
        held += low < 4.5 / 4 < high
        widths[rounds] += high - low
    assert 88 <= held <= 99
    assert widths[400] == pytest.approx(widths[40] / 10**0.5, rel=0.2)


def test_a_device_is_waited_for_inside_the_time():
    """Work that was only started is finished by `wait`; what was left over is not ours."""
    clock = Clock()
    pending = [5.0]

    def wait() -> None:
        clock.now += sum(pending)
        pending.clear()

    found = take_turns({"a": lambda: pending.append(2.0)}, 1, wait=wait, clock=lambda: clock.now)
    assert found["a"].seconds == (2.0,)


def test_nothing_to_time():
    assert take_turns({}, 3) == {}

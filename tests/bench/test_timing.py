"""Turns, with a clock that the test moves."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from compacter.bench import Timing, take_turns
from compacter.bench.timing import stolen_seconds


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


class Host:
    """Gives the cores to others in some turns, which then take ten times as long."""

    def __init__(self, *busy: bool) -> None:
        self.clock, self.busy, self.stolen = Clock(), list(busy), 0.0

    def work(self) -> None:
        is_busy = bool(self.busy) and self.busy.pop(0)
        self.clock.now += 10 if is_busy else 1
        self.stolen += 9 if is_busy else 0

    def turns(self, rounds: int, patience: float) -> Timing:
        found = take_turns(
            {"a": self.work},
            rounds,
            patience=patience,
            clock=lambda: self.clock.now,
            stolen=lambda: self.stolen,
        )
        return found["a"]


def test_turns_in_which_the_host_was_busy_are_taken_again():
    assert Host(False, True, True, False).turns(2, patience=4) == Timing((1, 1), left_out=2)


def test_patience_ends_and_then_every_turn_counts():
    assert Host(True, True, True, False).turns(2, patience=1) == Timing((10, 1), left_out=2)
    assert Host(True, False).turns(2, patience=0) == Timing((10, 1))


def test_a_turn_that_was_slow_by_itself_counts():
    clock = Clock()
    work = {"a": clock.work("a", 1, 10, 1)}
    found = take_turns(work, 3, patience=4, clock=lambda: clock.now, stolen=lambda: 5.0)
    assert found["a"] == Timing((1, 10, 1))


def test_what_the_kernel_counts_as_stolen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """The eighth number of the line for all cores, in ticks."""
    stat = tmp_path / "stat"
    stat.write_text("cpu  10 20 30 40 50 60 70 250 90 100\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    monkeypatch.setattr("compacter.bench.timing.STAT", stat)
    monkeypatch.setattr("os.sysconf", {"SC_CLK_TCK": 100}.__getitem__)
    assert stolen_seconds() == 2.5
    stat.unlink()
    assert stolen_seconds() == 0.0


def test_nothing_to_time():
    assert take_turns({}, 3) == {}

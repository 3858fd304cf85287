"""Turns, with a clock that the test moves."""

from __future__ import annotations

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


def test_every_round_gives_each_its_turn_and_begins_with_another():
    clock = Clock()
    rounds: list[int] = []
    found = take_turns(
        {"a": clock.work("a", 1, 2, 6), "b": clock.work("b", 3, 3, 3)},
        3,
        clock=lambda: clock.now,
        on_round=rounds.append,
    )
    assert clock.calls == ["a", "b", "b", "a", "a", "b"]
    assert rounds == [0, 1, 2]
    assert found == {"a": Timing((1, 2, 6)), "b": Timing((3, 3, 3))}
    assert (found["a"].median, found["a"].minimum) == (2, 1)
    assert found["a"].ratios(found["b"]) == pytest.approx((2 / 3, 1 / 3))


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

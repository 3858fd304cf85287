"""Turns, with a clock that the test moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compacter.bench import Laps, Timing, take_turns


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

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


def whole(seconds: Iterable[float]) -> Timing:
    """Of turns of one lap."""
    return Timing(tuple((each,) for each in seconds))


def test_every_round_gives_each_its_turn():
    clock = Clock()
    rounds: list[int] = []
    found = take_turns(
        {"a": clock.work("a", 1, 2, 6), "b": clock.work("b", 3, 3, 3)},
        3,
        laps=Laps(lambda: clock.now),
        on_round=rounds.append,
    )
    assert [sorted(clock.calls[i : i + 2]) for i in (0, 2, 4)] == [["a", "b"]] * 3
    assert rounds == [0, 1, 2]
    assert found == {"a": whole((1, 2, 6)), "b": whole((3, 3, 3))}
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
    twice, once = whole(2 * slow_rounds), whole(slow_rounds)
    assert twice.ratio_interval(once) == pytest.approx((2, 2))
    held, widths = 0, {40: 0.0, 400: 0.0}
    for rounds in [*widths] * 50:
        a, b = (whole(level + generator.uniform(0, 1, rounds)) for level in (4.0, 3.5))
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

    laps = Laps(lambda: clock.now)
    found = take_turns({"a": lambda: pending.append(2.0)}, 1, wait=wait, laps=laps)
    assert found["a"].seconds == (2.0,)


class Layer(nn.Module):
    """Takes some time forwards, more in some calls, and three times as long backwards."""

    def __init__(self, clock: Clock, *seconds: float) -> None:
        super().__init__()
        self.clock, self.left = clock, list(seconds)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        seconds = self.left.pop(0)
        self.clock.now += seconds
        output = x * 2
        if output.requires_grad:
            output.grad_fn.register_prehook(lambda _: self.clock.pass_by(3 * seconds))
        return output, None


class Layers(nn.Module):
    def __init__(self, *layers: Layer) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x, _ = layer(x)
        return x


def layers_in_turns(clock: Clock, *seconds: tuple[float, ...], trained: bool = False) -> Timing:
    """`seconds`: for each layer, one number for each turn."""
    model, x = Layers(*(Layer(clock, *each) for each in seconds)), torch.ones(1)
    laps = Laps(lambda: clock.now)
    laps.watch(model)
    laps.watch(model)  # again, which changes nothing

    def work() -> None:
        output = model(x.clone().requires_grad_(trained))
        if trained:
            output.backward()
        clock.now += 0.5

    return take_turns({"a": work}, len(seconds[0]), laps=laps)["a"]


def test_a_slow_moment_spoils_one_lap_and_not_the_turn():
    found = layers_in_turns(Clock(), (1, 1, 9), (2, 9, 2), (3, 3, 3))
    assert found.laps == ((1, 2, 3, 0.5), (1, 9, 3, 0.5), (9, 2, 3, 0.5))
    assert found.seconds == (6.5, 13.5, 14.5)
    assert (found.median, found.median_turn, found.minimum) == (6.5, 13.5, 6.5)


def test_layers_have_laps_backwards_too():
    """The clock is read when the gradient of a layer's output is there, before its own backward
    pass: the first lap backwards has nothing in it, the last has the first layer's."""
    found = layers_in_turns(Clock(), (1,), (2,), trained=True)
    assert found.laps == ((1, 2, 0, 6, 3.5),)


def test_turns_with_different_numbers_of_laps_are_compared_as_wholes():
    assert Timing(((1, 1), (5,), (2, 1))).median == 3


def test_nothing_to_time():
    assert take_turns({}, 3) == {}

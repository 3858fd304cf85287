"""Random choices that are the same on every machine and in every version of Python.

Of `random.Random`, only the sequence of `random()` is promised to stay; so all choices are made
from it here."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """Choices that depend on the seed alone."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def below(self, count: int) -> int:
        return int(self._random.random() * count)

    def one(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def two(self, choices: Sequence[T]) -> tuple[T, T]:
        """Two different ones, in random order."""
        first = self.below(len(choices))
        second = self.below(len(choices) - 1)
        return choices[first], choices[second + (second >= first)]

    def coin(self) -> bool:
        return self._random.random() < 0.5

    def shuffled(self, items: Sequence[T]) -> list[T]:
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(len(left))]

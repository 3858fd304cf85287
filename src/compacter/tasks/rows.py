"""One row of any task, as it is in the data: nothing is cleaned or joined yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Label = int | float
"""The index of a class, or a number where the task is a regression."""


@dataclass(frozen=True, slots=True)
class Row:
    """The texts of a row and what is known about the right answer."""

    fields: Mapping[str, str]
    label: Label | None = None
    """None: not labelled, or the right answers are texts (ReCoRD)."""
    answers: tuple[str, ...] = ()
    """ReCoRD: the entities that are right, sorted."""
    candidates: tuple[str, ...] = ()
    """COPA: the two choices; ReCoRD: the entities of the passage, sorted."""
    group: tuple[int, int] | None = None
    """Rows that are scored together: MultiRC (paragraph, question); ReCoRD (passage, query)."""
    index: int = 0
    """The row's place in its published split or file, from 0."""

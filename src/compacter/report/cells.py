"""What a table is, and how its numbers are written."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

MINUS = "\N{MINUS SIGN}"
DASH = "\N{EN DASH}"
MISSING = DASH
BEST_OF = "\N{DAGGER}"
DIFFERS = "*"
DIVERGED = "\N{DOUBLE DAGGER}"


@dataclass(frozen=True)
class Cell:
    """What is shown, and what it sorts by."""

    text: str
    value: float | str | None = None
    deviation: float | None = None
    paper: float | None = None
    paper_text: str = ""
    """The paper's figure as it is written, where that is not as precise as ours."""
    below: str = ""
    """A second line, where there is no figure of the paper."""
    marks: str = ""
    note: str = ""
    more: tuple[tuple[str, float], ...] = ()
    """Names and values of what programs want to know too."""
    best: bool = False

    @property
    def second(self) -> str:
        """The second line: the paper's figure."""
        if self.paper is None:
            return self.below
        digits = min(3, len(self.text.partition(".")[2])) if self.text != MISSING else 2
        return "paper " + (self.paper_text or f"{self.paper:.{digits}f}".replace("-", MINUS))


@dataclass(frozen=True)
class Column:
    title: str
    below: str = ""
    numeric: bool = True


@dataclass(frozen=True)
class Table:
    name: str
    """Also that of its file."""
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]


def show(value: Any) -> str:
    """A setting as people write it."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(show, value))
    return str(value)


def score_text(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "no number"


def percent(value: float) -> str:
    return f"{value:.3g}" if value else "0"


def amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def signed(value: float, digits: int = 2) -> str:
    text = f"{value:+.{digits}f}".replace("-", MINUS)
    return text[1:] if float(f"{value:.{digits}f}") == 0 else text


def count_range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,}{DASH}{high:,}"


def with_best(
    rows: Sequence[tuple[Cell, ...]],
    places: Iterable[int],
    highest: bool,
    left_out: Collection[int] = (),
) -> list[tuple[Cell, ...]]:
    """The best of each of these columns marked, as its text shows it, where rows differ; the rows
    that are left out are never the best."""
    found = [list(row) for row in rows]
    judged = [row for number, row in enumerate(found) if number not in left_out]
    for place in places:
        values = {
            float(value): row[place].text
            for row in judged
            if isinstance(value := row[place].value, int | float) and math.isfinite(value)
        }
        if len(set(values.values())) < 2:
            continue
        text = values[max(values) if highest else min(values)]
        for row in judged:
            if row[place].text == text:
                row[place] = replace(row[place], best=True)
    return [tuple(row) for row in found]

"""Rows as text: T5's own recipe for text to text, labelled pairs for encoders, and back.

Source: the name of the task, then `key: value` for each field. Target: the word for the label,
or its index where `label_words` is "digits", as in the authors' code."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Literal

from compacter.errors import TaskError
from compacter.tasks.rows import Label, Row
from compacter.tasks.table import Task

LabelWords = Literal["words", "digits"]
Answer = Label | str
"""A prediction: a class, a number, or the text of an entity (ReCoRD)."""

PLACEHOLDER = "@placeholder"
COPA_QUESTIONS = {"cause": "What was the cause of this?", "effect": "What was the effect of this?"}


@dataclass(frozen=True, slots=True)
class Example:
    """A row as text to text. `row` is its position in the rows that were formatted."""

    source: str
    target: str | None
    row: int


@dataclass(frozen=True, slots=True)
class Pair:
    """What an encoder reads: one text or two."""

    text_a: str
    text_b: str | None = None


@dataclass(frozen=True, slots=True)
class Candidates:
    """A pair for each possible answer, and which of them are right (none known: all False)."""

    pairs: tuple[Pair, ...]
    right: tuple[bool, ...]


# Text to text


def source(task: Task, row: Row) -> str:
    """What the model reads, such as `rte sentence1: A dog barks. sentence2: An animal barks.`"""
    parts = (f"{name}: {_value(task, row, name)}" for name in task.fields)
    return " ".join((task.name, *parts))


def targets(task: Task, row: Row, label_words: LabelWords = "words") -> tuple[str, ...]:
    """What the model may answer: one text, none for a row without a label, and for ReCoRD one for
    each right answer."""
    _check_label_words(label_words)
    if task.kind == "entity":
        return tuple(answer.strip() for answer in row.answers)
    if row.label is None:
        return ()
    if task.kind == "number":
        return (number_text(row.label, task.step),)
    index = int(row.label)
    return (str(index) if label_words == "digits" else task.labels[index],)


def examples(
    task: Task, rows: Iterable[Row], *, train: bool, label_words: LabelWords = "words"
) -> list[Example]:
    """The rows as text to text.

    To train on, a row of ReCoRD is one example for each of its answers; to evaluate, every row is
    one example. A row without a label has no target."""
    found = []
    for position, row in enumerate(rows):
        text = source(task, row)
        choices = targets(task, row, label_words) or (None,)
        kept = choices if train else choices[:1]
        found += [Example(text, choice, position) for choice in kept]
    return found


def number_text(value: float, step: float | None) -> str:
    """The number as a target. With a step, the nearest multiple of it, halves to the even
    multiple: 2.5 is 12.5 steps of 0.2 and becomes 12 of them, "2.4".

    The arithmetic is decimal: 0.1 is half a step whatever binary fractions make of it."""
    if step is None:
        return f"{value:.6g}"
    unit = Decimal(str(step))
    multiple = (Decimal(f"{value:.6g}") / unit).to_integral_value(ROUND_HALF_EVEN)
    return f"{multiple * unit + 0:.{_decimals(unit)}f}"  # + 0: no "-0.0"


def _decimals(unit: Decimal) -> int:
    exponent = unit.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def parse(task: Task, text: str, label_words: LabelWords = "words") -> Answer | None:
    """The answer that a text stands for, exactly and case-sensitively after stripping; None if it
    stands for none."""
    _check_label_words(label_words)
    text = text.strip()
    if task.kind == "entity":
        return text
    if task.kind == "number":
        number = float(text) if _NUMBER.fullmatch(text) else math.nan
        return number if math.isfinite(number) else None
    known = [str(i) for i in range(len(task.labels))] if label_words == "digits" else task.labels
    return known.index(text) if text in known else None


def _check_label_words(label_words: str) -> None:
    if label_words not in ("words", "digits"):
        raise TaskError(f"label_words is {label_words!r}; expected 'words' or 'digits'")


# Encoders


def pair(task: Task, row: Row) -> Pair:
    """The row as one text or two. Not for tasks that choose among candidates."""
    if task.kind in ("choice", "entity"):
        raise TaskError(f"{task.name} chooses among candidates; take candidate_pairs()")
    first, second = ([_value(task, row, name) for name in names] for names in task.pair)
    return Pair(" ".join(first), " ".join(second) if second else None)


def candidate_pairs(task: Task, row: Row) -> Candidates:
    """A pair for each candidate: COPA's two choices after the premise and its question, ReCoRD's
    entities in the place that the query leaves open. The best scored one is the answer."""
    if task.kind == "choice":
        question = row.fields["question"]
        if question not in COPA_QUESTIONS:
            expected = " or ".join(map(repr, COPA_QUESTIONS))
            raise TaskError(f"{task.name}: the question is {question!r}; expected {expected}")
        asked = f"{_value(task, row, 'premise')} {COPA_QUESTIONS[question]}"
        pairs = tuple(Pair(asked, candidate.strip()) for candidate in row.candidates)
        return Candidates(pairs, tuple(i == row.label for i in range(len(pairs))))
    if task.kind == "entity":
        query, passage = _value(task, row, "query"), _value(task, row, "passage")
        pairs = tuple(Pair(query.replace(PLACEHOLDER, c), passage) for c in row.candidates)
        return Candidates(pairs, tuple(c in row.answers for c in row.candidates))
    raise TaskError(f"{task.name} has labels and no candidates; take pair()")


def chosen(task: Task, row: Row, scores: Sequence[float]) -> Answer | None:
    """The answer whose candidate has the best score: a class for COPA, a text for ReCoRD. Of equal
    scores the first counts. None where there are no candidates."""
    if len(scores) != len(row.candidates):
        raise TaskError(
            f"{task.name}: {len(scores)} scores for {len(row.candidates)} candidates of a row; "
            "expected one for each"
        )
    if not scores:
        return None
    best = max(range(len(scores)), key=scores.__getitem__)
    return best if task.kind == "choice" else row.candidates[best]


# Values


def _value(task: Task, row: Row, name: str) -> str:
    if name == "entities" and task.kind == "entity":
        return ", ".join(row.candidates)
    text = row.fields[name]
    if task.name == "multirc":
        text = re.sub(r"</?b>", "", text.replace("<br>", " "))
    elif task.kind == "entity" and name == "passage":
        text = without_highlights(text)
    return text.strip()


def without_highlights(passage: str) -> str:
    """ReCoRD's passages end in summary lines, each after a line `@highlight`. The break becomes a
    space after closing punctuation, else the end of a sentence."""
    passage = re.sub(r"([.?!\"'])\n@highlight\n", r"\1 ", passage)
    return passage.replace("\n@highlight\n", ". ")

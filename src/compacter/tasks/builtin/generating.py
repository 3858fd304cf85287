"""Rows from the grammars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from compacter.errors import TaskError
from compacter.tasks.builtin import grammar, roles, tone
from compacter.tasks.builtin.drawing import Draw
from compacter.tasks.builtin.words import TEST, TRAIN, VALIDATION, Words
from compacter.tasks.rows import Row
from compacter.tasks.table import Split, Task

Texts = tuple[str, ...]
Phenomenon = Callable[[Draw, Words, bool], Texts]
"""Draws the texts of a row whose answer is yes, or no."""

GRAMMARS: Mapping[str, tuple[str, Sequence[tuple[Phenomenon, int]]]] = MappingProxyType(
    {
        "builtin/roles": ("entailment", roles.PHENOMENA),
        "builtin/tone": ("positive", tone.PHENOMENA),
        "builtin/grammar": ("acceptable", grammar.PHENOMENA),
    }
)
"""The label that means yes, and the phenomena with their shares in percent."""

TEST_ROWS = 1_000


def generate(task: Task, split: Split) -> list[Row]:
    """The rows of one split, none of which is in another one. Half of the rows of each phenomenon
    have either label."""
    if task.name not in GRAMMARS or task.sizes is None:
        raise TaskError(
            f"the package does not make the task {task.name!r}; it makes {', '.join(GRAMMARS)}"
        )
    train, validation = task.sizes
    words, count = {
        "train": (TRAIN, train),
        "validation": (VALIDATION, validation),
        "test": (TEST, TEST_ROWS),
    }[split]
    return _rows(task, _draw(task, split, words, count))


def _draw(task: Task, split: Split, words: Words, count: int) -> list[tuple[Texts, bool]]:
    """`count` different rows in random order."""
    draw = Draw(f"{task.name} {split}")
    found: dict[Texts, bool] = {}
    for phenomenon, percent in GRAMMARS[task.name][1]:
        wanted = len(found) + count * percent // 100
        while len(found) < wanted:
            answer = len(found) % 2 == 0
            found.setdefault(phenomenon(draw, words, answer), answer)
    return draw.shuffled(list(found.items()))


def _rows(task: Task, drawn: list[tuple[Texts, bool]]) -> list[Row]:
    yes = task.labels.index(GRAMMARS[task.name][0])
    return [
        Row(dict(zip(task.fields, texts, strict=True)), yes if answer else 1 - yes, index=index)
        for index, (texts, answer) in enumerate(drawn)
    ]

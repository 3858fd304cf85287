"""What is to be answered: texts, or objects of texts, from arguments, lines or a table. Nothing
here imports torch, so that what cannot be read is told at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from compacter.errors import TrainingError
from compacter.tasks import Row, Task
from compacter.tasks.sources.own import is_table, read_records
from compacter.tasks.sources.reading import decoded, read_text, show, text_value

Given = tuple[str, Any]
"""The place of a text, for messages, and the text or an object of texts."""

STANDARD_INPUT = Path("-")


@dataclass(frozen=True)
class Source:
    """Where the texts come from."""

    file: Path | None = None
    lines: list[Given] | None = None
    """None: the file is a table, which is read when it is known which columns are needed."""

    @classmethod
    def from_arguments(cls, texts: Sequence[str]) -> Self:
        """Texts of the command line. What begins as a JSON object has to be one."""
        return cls(lines=[_parsed(f"text {i}", text) for i, text in enumerate(texts, start=1)])

    @classmethod
    def from_list(cls, texts: Sequence[Any]) -> Self:
        """Texts of a program."""
        if isinstance(texts, str | bytes | Mapping):
            raise TrainingError(f"texts is {show(texts)}; expected a list of texts or of mappings")
        return cls(lines=[(f"texts[{index}]", text) for index, text in enumerate(texts)])

    @classmethod
    def from_file(cls, file: Path) -> Self:
        """A table, or the lines of another file or of standard input. Empty lines are passed
        over."""
        if is_table(file):
            return cls(file)
        if file == STANDARD_INPUT:
            name, text = "standard input", decoded("standard input", sys.stdin.buffer.read())
        else:
            name, text = str(file), read_text(file)
        numbered = enumerate((line.removesuffix("\r") for line in text.split("\n")), start=1)
        kept = [(f"{name}, line {number}", line) for number, line in numbered if line.strip()]
        return cls(file, [_parsed(where, line) for where, line in kept])

    def read(self, task: Task) -> list[Given]:
        """What is to be answered; of a table all columns, as they may be wanted beside it."""
        if self.lines is not None:
            return self.lines
        assert self.file is not None
        records = read_records(self.file, text_names(task), others=True)
        if not records:
            raise TrainingError(f"{self.file} has no rows; expected rows")
        return list(records)


def _parsed(where: str, text: str) -> Given:
    if not text.lstrip().startswith("{"):
        return where, text
    try:
        return where, json.loads(text)
    except ValueError as error:
        raise TrainingError(f"{where} is not a JSON object: {error}; expected one") from None


def text_names(task: Task) -> list[str]:
    """The fields of a task that are texts."""
    return [name for name in task.fields if task.kind != "entity" or name != "entities"]


def as_row(task: Task, text: Any, index: int = 0, where: str | None = None) -> Row:
    """A row of the task from a string (where it has one text) or a mapping of its fields."""
    place = where or "the text"
    names = text_names(task)
    if isinstance(text, str):
        if len(task.fields) > 1:
            raise TrainingError(
                f"{place}: {task.name} reads {len(task.fields)} texts ({', '.join(task.fields)}) "
                "and one was given; give an object with these keys"
            )
        text = {task.fields[0]: text}
    if not isinstance(text, Mapping):
        raise TrainingError(
            f"{place} is {show(text)}; expected a text, or an object with {', '.join(task.fields)}"
        )
    missing = [name for name in names if name not in text]
    if missing:
        raise TrainingError(
            f"{place}: {task.name} reads {', '.join(task.fields)}; found "
            f"{', '.join(map(str, text))}, missing {missing[0]!r}"
        )
    fields = {name: text_value(place, name, text[name]) for name in names}
    candidates = _candidates(task, text, place)
    if task.kind == "choice" and not candidates:
        candidates = (fields["choice1"], fields["choice2"])
    return Row(fields=fields, candidates=candidates, index=index)


def _candidates(task: Task, text: Mapping[str, Any], place: str) -> tuple[str, ...]:
    """The answers to choose from, where a task's rows bring them."""
    if task.kind not in ("choice", "entity"):
        return ()
    name = "candidates" if "candidates" in text else "entities"
    given = text.get(name, [])
    if not isinstance(given, list | tuple) or not all(isinstance(part, str) for part in given):
        raise TrainingError(f"{place}: {task.name}: {name} is {given!r}; expected a list of texts")
    if task.kind == "entity" and not given:
        raise TrainingError(
            f"{place}: {task.name} chooses between entities; expected a list of 'entities'"
        )
    return tuple(given)

"""What all sources need: lines of a file, objects of a JSON line, labels; with errors that say
where."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compacter.errors import TaskError
from compacter.tasks.rows import Label
from compacter.tasks.table import Task, nearest

UNLABELLED = -1
"""What the hub writes for the label of an unlabelled row."""


def show(value: Any, width: int = 60) -> str:
    """A value for an error message, shortened."""
    text = repr(value)
    return text if len(text) <= width else f"{text[:width]}..."


def listing(names: list[str], most: int = 8) -> str:
    """Names for an error message."""
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (", ..." if len(names) > most else "") if names else "nothing"


def read_text(path: Path) -> str:
    """The whole file, UTF-8 with or without a byte-order mark, with line ends as they are."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TaskError(f"{path} cannot be read ({error.strerror or error})") from None
    text = decoded(str(path), content)
    if not text.strip():
        raise TaskError(f"{path} is empty; expected rows")
    return text


def decoded(name: str, content: bytes) -> str:
    """The text of a file, or of what came through a pipe."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TaskError(
            f"{name} is not UTF-8: byte {error.start} is {content[error.start]:#04x}; "
            "save the file as UTF-8"
        ) from None
    if "\0" in text:
        raise TaskError(f"{name} is no text file: it holds zero bytes; expected UTF-8 text")
    return text


def json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line's place, for messages, and its object. Empty lines are passed over."""
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise TaskError(
                f"{where} is no JSON ({error.msg}, column {error.colno}); expected one object on "
                "each line"
            ) from None
        if not isinstance(value, dict):
            raise TaskError(f"{where}: found {show(value)}; expected a JSON object")
        yield where, value


def member(where: str, value: dict[str, Any], key: str, kind: type) -> Any:
    """`value[key]`, which must be there and of that kind."""
    if key not in value:
        raise TaskError(
            f"{where}: there is no {key!r} (found {listing(list(value))}){nearest(key, value)}"
        )
    found = value[key]
    if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        names = {str: "a text", int: "a whole number", list: "a list", dict: "an object"}
        raise TaskError(f"{where}: {key!r} is {show(found)}; expected {names[kind]}")
    return found


def objects(where: str, value: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """`value[key]`, which must be a list of objects."""
    found: list[dict[str, Any]] = member(where, value, key, list)
    for entry in found:
        if not isinstance(entry, dict):
            raise TaskError(f"{where}: {key!r} holds {show(entry)}; expected objects")
    return found


def read_label(task: Task, where: str, value: Any) -> Label:
    """A label as the files write it: a word, a class index (as a number or as digits), a truth
    value for tasks about truth, a number for regressions."""
    if task.kind == "number":
        return number(where, value)
    expected = f"expected one of {listing([*task.labels], 20)} or their indices from 0"
    text = value.strip() if isinstance(value, str) else str(value)
    if text in task.labels:
        return task.labels.index(text)
    plain = isinstance(value, str | int) and not isinstance(value, bool)
    if plain and text.isascii() and text.isdigit() and int(text) < len(task.labels):
        return int(text)
    hint = nearest(text, task.labels)
    raise TaskError(f"{where}: the label is {show(value)}; {expected}{hint}")


def text_value(where: str, name: str, value: Any) -> str:
    """A text, which is not empty and can be written as UTF-8."""
    if value is None or (isinstance(value, str) and not value.strip()):
        raise TaskError(
            f"{where}: the text in {name!r} is empty ({show(value)}); expected a text, or no such "
            "row"
        )
    if not isinstance(value, str):
        raise TaskError(f"{where}: {name!r} is {show(value)}; expected a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise TaskError(
            f"{where}: {name!r} holds {value[error.start]!r}, half of a character; expected a text "
            "that can be written as UTF-8"
        ) from None
    return value


def number(where: str, value: Any) -> float:
    """A finite number, written as one or as text."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise TaskError(f"{where}: the label is {show(value)}; expected a number")
    return found


def checked_copa_question(where: str, question: str) -> str:
    if question not in ("cause", "effect"):
        raise TaskError(f"{where}: 'question' is {show(question)}; expected 'cause' or 'effect'")
    return question

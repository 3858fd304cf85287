"""The files of GLUE (tab-separated) and SuperGLUE (JSON lines) as their makers distribute them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compacter.errors import TaskError
from compacter.tasks.rows import Row
from compacter.tasks.sources.reading import (
    checked_copa_question,
    json_lines,
    listing,
    member,
    objects,
    read_label,
    read_text,
)
from compacter.tasks.table import DiskFiles, Split, Task, nearest

logger = logging.getLogger(__name__)

BENCHMARK_FOLDERS = {
    "glue": ("glue", "gluedata"),
    "superglue": ("superglue", "supergluedata"),
}


@dataclass(frozen=True)
class OfficialFiles:
    """`data_dir` is the folder of a task, or one that holds the folders of tasks, or one that holds
    GLUE/, SuperGLUE/ or glue_data/. Upper and lower case, `-` and `_` make no difference."""

    data_dir: str | Path

    def load_rows(self, task: Task, split: Split) -> list[Row]:
        disk = _disk(task)
        path = self.find(task, split)
        if path.suffix == ".tsv":
            rows = list(_tsv_rows(task, disk, path, labelled=split != "test"))
        else:
            rows = list(_json_rows(task, path, labelled=split != "test"))
        if not rows:
            raise TaskError(f"{path} has a header and no rows; expected rows")
        return rows

    def find(self, task: Task, split: Split) -> Path:
        """The file of that split."""
        disk = _disk(task)
        folder = self._folder(task, disk)
        path = _child(folder, disk.files[split])
        if path is None or not path.is_file():
            raise TaskError(
                f"{folder} holds no {disk.files[split]}, the {split} set of {task.name} "
                f"(found: {listing(_names(folder))})"
            )
        return path

    def _folder(self, task: Task, disk: DiskFiles) -> Path:
        top = Path(self.data_dir)
        if not top.is_dir():
            what = "is a file" if top.exists() else "does not exist"
            raise TaskError(
                f"the data folder {top} {what}; expected the folder of {task.name} "
                f"({disk.folder}) or one that holds it"
            )
        wanted = _plain(disk.folder)
        inside = [top]
        inside += [p for p in _folders(top) if _plain(p.name) in BENCHMARK_FOLDERS[task.benchmark]]
        for parent in reversed(inside):  # a benchmark's folder knows best which RTE it holds
            for child in _folders(parent):
                if _plain(child.name) == wanted:
                    return child
        files = {name.lower() for name in disk.files.values()}
        if _plain(top.name) == wanted or files & {name.lower() for name in _names(top)}:
            return top
        benchmark = "GLUE" if task.benchmark == "glue" else "SuperGLUE"
        raise TaskError(
            f"the data folder {top} holds no folder {disk.folder} or {benchmark}/{disk.folder} "
            f"and none of {', '.join(disk.files.values())} (found: {listing(_names(top))})"
        )


def _disk(task: Task) -> DiskFiles:
    if task.disk is None:
        raise TaskError(f"the task {task.name!r} has no official files")
    return task.disk


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def _folders(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir())


def _child(folder: Path, name: str) -> Path | None:
    return next((folder / n for n in _names(folder) if n.lower() == name.lower()), None)


# GLUE


def _tsv_rows(task: Task, disk: DiskFiles, path: Path, *, labelled: bool) -> Iterator[Row]:
    """Rows of a file without quoting: a quotation mark is a character like any other."""
    lines = (
        (number, line.rstrip("\r").split("\t"))
        for number, line in enumerate(read_text(path).split("\n"), start=1)
        if line.strip("\r")
    )
    header = list(disk.header) if disk.header and labelled else next(lines)[1]
    wanted = [*task.fields, "label"] if labelled else [*task.fields]
    place = {name: _column(path, header, disk.columns.get(name, name)) for name in wanted}
    count = short = 0
    for number, cells in lines:
        where = f"{path}, line {number}"
        if len(cells) < len(header) and disk.skip_short_rows:
            short += 1
            continue
        if len(cells) < len(header) or any(cells[len(header) :]):
            raise TaskError(
                f"{where} has {len(cells)} columns; expected {len(header)}, separated by tabs: "
                f"{listing(header, 16)}"
            )
        yield Row(
            fields={name: cells[place[name]] for name in task.fields},
            label=read_label(task, where, cells[place["label"]]) if labelled else None,
            index=count,
        )
        count += 1
    if short:
        logger.warning("%s: %d rows with too few columns were left out", path, short)


def _column(path: Path, header: list[str], name: str) -> int:
    if header.count(name) != 1:
        found = "twice" if name in header else "not"
        raise TaskError(
            f"{path}: the column {name!r} is {found} in the header, which is "
            f"{listing(header, 16)}{nearest(name, header) if found == 'not' else ''}"
        )
    return header.index(name)


# SuperGLUE


def _json_rows(task: Task, path: Path, *, labelled: bool) -> Iterator[Row]:
    make = {"multirc": _multirc, "record": _record}.get(task.name, _plain_row)
    index = 0
    for where, value in json_lines(path):
        for row in make(task, where, value, labelled):
            yield Row(row.fields, row.label, row.answers, row.candidates, row.group, index)
            index += 1


def _plain_row(task: Task, where: str, value: dict[str, Any], labelled: bool) -> Iterator[Row]:
    fields = {name: member(where, value, name, str) for name in task.fields}
    candidates: tuple[str, ...] = ()
    if task.kind == "choice":
        checked_copa_question(where, fields["question"])
        candidates = (fields["choice1"], fields["choice2"])
    label = read_label(task, where, member(where, value, "label", object)) if labelled else None
    yield Row(fields, label, candidates=candidates)


def _multirc(task: Task, where: str, value: dict[str, Any], labelled: bool) -> Iterator[Row]:
    """A line is a paragraph with its questions and their answers; a row is an answer."""
    passage = member(where, value, "passage", dict)
    text = member(where, passage, "text", str)
    paragraph = member(where, value, "idx", int)
    for question in objects(where, passage, "questions"):
        asked = member(where, question, "question", str)
        group = (paragraph, member(where, question, "idx", int))
        for answer in objects(where, question, "answers"):
            fields = {
                "question": asked,
                "answer": member(where, answer, "text", str),
                "paragraph": text,
            }
            label = None
            if labelled:
                label = read_label(task, where, member(where, answer, "label", object))
            yield Row(fields, label, group=group)


def _record(task: Task, where: str, value: dict[str, Any], labelled: bool) -> Iterator[Row]:
    """A line is a passage with its queries; a row is a query."""
    passage = member(where, value, "passage", dict)
    text = member(where, passage, "text", str)
    entities = set()
    for entity in objects(where, passage, "entities"):
        start, end = member(where, entity, "start", int), member(where, entity, "end", int)
        if not 0 <= start <= end < len(text):
            raise TaskError(
                f"{where}: an entity goes from {start} to {end}; expected places in the passage, "
                f"which has {len(text)} characters"
            )
        entities.add(text[start : end + 1])
    for query in objects(where, value, "qas"):
        answers: set[str] = set()
        if labelled:
            found = objects(where, query, "answers")
            answers = {member(where, answer, "text", str) for answer in found}
            if not answers:
                raise TaskError(f"{where}: a query has no answers; expected at least one")
        yield Row(
            fields={"query": member(where, query, "query", str), "passage": text},
            answers=tuple(sorted(answers)),
            candidates=tuple(sorted(entities)),
            group=(member(where, value, "idx", int), member(where, query, "idx", int)),
        )

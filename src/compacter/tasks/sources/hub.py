"""GLUE and SuperGLUE from the Hugging Face hub, at a fixed revision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compacter.errors import TaskError
from compacter.extras import require
from compacter.tasks.rows import Row
from compacter.tasks.sources.reading import (
    UNLABELLED,
    checked_copa_question,
    listing,
    read_label,
    show,
)
from compacter.tasks.table import HubFiles, Split, Task, nearest


@dataclass(frozen=True)
class Hub:
    """`path`: a copy of the hub's repository on disk to read in place of the hub: its README.md,
    which lists the tasks, and a folder of Parquet files for each. `revision`: another one than the
    one that the table of tasks names."""

    path: str | Path | None = None
    revision: str | None = None
    cache_dir: str | Path | None = None

    def load_rows(self, task: Task, split: Split) -> list[Row]:
        if task.hub is None:
            raise TaskError(f"the task {task.name!r} is not on the hub")
        where = f"{self.path or task.hub.repository}/{task.hub.config}, {split}"
        return list(_rows(task, where, self._columns(task.hub, split), split))

    def _columns(self, hub: HubFiles, split: Split) -> Mapping[str, list[Any]]:
        datasets = require("datasets", "train", "loading a task from the hub")
        cache_dir = None if self.cache_dir is None else str(self.cache_dir)
        try:
            dataset = datasets.load_dataset(
                hub.repository if self.path is None else str(self.path),
                hub.config,
                revision=self.revision or hub.revision,
                split=hub.splits[split],
                cache_dir=cache_dir,
                trust_remote_code=False,
            )
        except Exception as error:  # whatever the network, the cache or the files came up with
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise TaskError(
                f"{self.path or hub.repository} ({hub.config}, {split}) could not be loaded "
                f"({lines[0].rstrip('.')}); without a network, name a folder with the official "
                "files: --data-dir DIR"
            ) from None
        columns: Mapping[str, list[Any]] = dataset[:]
        return columns


def _rows(task: Task, where: str, columns: Mapping[str, list[Any]], split: Split) -> Iterator[Row]:
    answers = task.kind == "entity"
    grouped = answers or task.name == "multirc"
    wanted = [name for name in task.fields if name != "entities"]
    wanted += ["entities", "answers"] if answers else ["label"]
    wanted += ["idx"] if grouped else []
    for name in wanted:
        if name not in columns:
            raise TaskError(
                f"{where}: there is no column {name!r} (found {listing(list(columns), 16)})"
                f"{nearest(name, columns)}"
            )
    count = len(columns[wanted[0]])
    if not count:
        raise TaskError(f"{where} has no rows; expected rows")
    for index in range(count):
        yield _row(
            task, f"{where}, row {index}", {n: columns[n][index] for n in wanted}, index, split
        )


def _row(task: Task, where: str, value: Mapping[str, Any], index: int, split: Split) -> Row:
    fields = {name: value[name] for name in task.fields if name != "entities"}
    for name, text in fields.items():
        if not isinstance(text, str):
            raise TaskError(f"{where}: {name!r} is {show(text)}; expected a text")
    if task.kind == "entity":
        group = _group(where, value["idx"], "passage", "query")
        answers = _texts(where, "answers", value["answers"])
        if not answers and split != "test":
            raise TaskError(f"{where}: a query has no answers; expected at least one")
        return Row(
            fields, None, answers, _texts(where, "entities", value["entities"]), group, index
        )
    candidates: tuple[str, ...] = ()
    if task.kind == "choice":
        checked_copa_question(where, fields["question"])
        candidates = (fields["choice1"], fields["choice2"])
    label = None
    if value["label"] != UNLABELLED or split != "test":
        label = read_label(task, where, value["label"])
        if task.kind == "number":
            label = float(f"{label:.6g}")  # the hub's numbers have 32 bits: 3.8 reads 3.79999995
    return Row(
        fields,
        label,
        candidates=candidates,
        group=_group(where, value["idx"], "paragraph", "question") if "idx" in value else None,
        index=index,
    )


def _group(where: str, idx: Any, first: str, second: str) -> tuple[int, int]:
    if not isinstance(idx, dict) or {first, second} - set(idx):
        raise TaskError(f"{where}: 'idx' is {show(idx)}; expected {first!r} and {second!r}")
    return idx[first], idx[second]


def _texts(where: str, name: str, value: Any) -> tuple[str, ...]:
    """A list of texts, sorted and each once: the hub's order is arbitrary."""
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise TaskError(f"{where}: {name!r} is {show(value)}; expected a list of texts")
    return tuple(sorted(set(value)))

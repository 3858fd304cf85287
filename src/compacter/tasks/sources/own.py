"""A user's own data: CSV, TSV, JSON lines or Parquet; a row has one or two texts and a label."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compacter.errors import TaskError
from compacter.extras import require
from compacter.tasks.rows import Label, Row
from compacter.tasks.sources.reading import (
    json_lines,
    listing,
    number,
    read_text,
    show,
    text_value,
)
from compacter.tasks.splits import SPLIT_SEED, carve, check_split
from compacter.tasks.table import BUILTIN_TASKS, TASKS, Split, Task, nearest

DELIMITERS = {".csv": ",", ".tsv": "\t"}
EXTENSIONS = (*DELIMITERS, ".jsonl", ".ndjson", ".parquet")
MOST_LABELS = 1_000

Record = tuple[str, Mapping[str, Any]]
"""A row's place, for messages, and its values."""


@dataclass(frozen=True)
class UserData:
    """Files that make a task of their own.

    Labels are texts; without `labels` they are those of the training file, in the order in which
    they first appear. Numbers with a fraction make the task a regression, unless `regression`
    says otherwise. Without a validation file, a share of the training rows drawn by the seed is
    split off. Without a test file there is no test set: the validation set stays whole."""

    train: str | Path
    validation: str | Path | None = None
    test: str | Path | None = None
    text_columns: Sequence[str] = ()
    label_column: str = "label"
    labels: Sequence[str] | None = None
    regression: bool | None = None
    name: str = "custom"
    validation_share: float = 0.1
    seed: int = SPLIT_SEED

    def __post_init__(self) -> None:
        columns = (*self.text_columns, self.label_column)
        if isinstance(self.text_columns, str) or not 1 <= len(self.text_columns) <= 2:
            raise TaskError(
                f"the text columns are {self.text_columns!r}; expected a list of one or two names"
            )
        if self.label_column in self.text_columns:
            raise TaskError(
                f"{self.label_column!r} is named both as a text column and as the label column; "
                "expected different columns"
            )
        if len(set(columns)) < len(columns):
            raise TaskError(f"the text column {columns[0]!r} is named twice; expected two columns")
        if not self.name or self.name.split() != [self.name]:
            raise TaskError(f"the task's name is {self.name!r}; expected one word")
        if self.name in TASKS or self.name in BUILTIN_TASKS:
            raise TaskError(
                f"{self.name!r} is a task of its own benchmark; with your own files expected "
                "another name, or none"
            )
        if not 0 < self.validation_share < 1:
            raise TaskError(
                f"the validation share is {self.validation_share}; expected a number between 0 "
                "and 1"
            )
        self._check_labels()
        if self.validation is not None and Path(self.validation) == Path(self.train):
            raise TaskError(
                f"{self.train} is named both as the training and as the validation file; leave the "
                "validation file out to split rows off"
            )

    def _check_labels(self) -> None:
        if self.labels is None:
            return
        if self.regression:
            raise TaskError("a regression has no labels; expected one of the two, not both")
        if isinstance(self.labels, str) or len(set(self.labels)) < max(2, len(self.labels)):
            raise TaskError(f"the labels are {self.labels!r}; expected two or more, all different")

    def task(self) -> Task:
        """The task that the training file makes. It is read only for what is not said."""
        labels, regression = self.labels, self.regression
        if labels is None and not regression:
            found = [(where, record[self.label_column]) for where, record in self._records("train")]
            if regression is None:
                regression = _have_fractions([value for _, value in found])
            if not regression:
                labels = tuple(dict.fromkeys(_label_text(where, value) for where, value in found))
                self._check_found(labels, len(found))
        texts = tuple(self.text_columns)
        return Task(
            name=self.name,
            benchmark="custom",
            kind="number" if regression else "classes",
            fields=texts,
            pair=(texts[:1], texts[1:]),
            labels=tuple(labels or ()),
            metrics=("pearson", "spearman") if regression else ("accuracy", "f1"),
            size="small",
        )

    def _check_found(self, labels: tuple[str, ...], rows: int) -> None:
        found = f"{self.train}: the column {self.label_column!r} holds"
        if len(labels) < 2:
            raise TaskError(f"{found} only the label {labels[0]!r}; expected two or more labels")
        if len(labels) > MOST_LABELS or (rows >= 20 and len(labels) > rows / 2):
            raise TaskError(
                f"{found} {len(labels)} different values in {rows} rows, such as "
                f"{show(labels[0])}; expected labels (give their list, or ask for a regression, if "
                "this is meant)"
            )

    def load_rows(self, task: Task, split: Split) -> list[Row]:
        """The rows of a split; none for a test set that is not there."""
        check_split(split)
        if split == "test" and self.test is None:
            return []
        if split == "test" or self.validation is not None:
            return self._rows(task, split)
        rows = self._rows(task, "train")
        size = max(1, round(len(rows) * self.validation_share))
        kept, carved = carve(rows, size, self.seed)
        return kept if split == "train" else carved

    def _rows(self, task: Task, split: Split) -> list[Row]:
        rows = []
        for index, (where, record) in enumerate(self._records(split)):
            fields = {name: text_value(where, name, record[name]) for name in self.text_columns}
            rows.append(Row(fields, _label(task, where, record[self.label_column]), index=index))
        return rows

    def _records(self, split: Split) -> list[Record]:
        path: str | Path | None = getattr(self, split)
        assert path is not None
        records = read_records(Path(path), (*self.text_columns, self.label_column))
        if not records:
            raise TaskError(f"{path} has no rows; expected rows")
        return records


# Values


def _label(task: Task, where: str, value: Any) -> Label:
    if task.kind == "number":
        return number(where, value)
    text = _label_text(where, value)
    if text not in task.labels:
        raise TaskError(
            f"{where}: the label is {show(value)}; expected one of "
            f"{listing([*task.labels], 20)}{nearest(text, task.labels)}"
        )
    return task.labels.index(text)


def _label_text(where: str, value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # what a table makes of whole numbers as soon as one is missing
    text = str(value).strip() if isinstance(value, str | int | float) else ""
    if not text or (isinstance(value, float) and math.isnan(value)):
        raise TaskError(f"{where}: the label is {show(value)}; expected a label in every row")
    return text


def _have_fractions(values: list[Any]) -> bool:
    """Whether all are numbers and some are not whole."""
    try:
        numbers = [math.nan if isinstance(value, bool) else float(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        return False
    return all(map(math.isfinite, numbers)) and not all(x.is_integer() for x in numbers)


# Files


def is_table(path: Path) -> bool:
    """Whether a file has columns, by its ending."""
    return path.suffix.lower() in EXTENSIONS


def read_records(path: Path, columns: Sequence[str], *, others: bool = False) -> list[Record]:
    """The rows of a file, of which these columns are needed. Of a Parquet file the others are left
    out, unless they are asked for."""
    extension = path.suffix.lower()
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise TaskError(f"the file {path} {what}; expected a file ({', '.join(EXTENSIONS)})")
    if extension in DELIMITERS:
        return list(_separated(path, DELIMITERS[extension], columns))
    if extension in (".jsonl", ".ndjson"):
        records = list(json_lines(path))
        for where, record in records:
            _check_columns(where, list(record), columns)
        return list(records)
    if extension == ".parquet":
        return _parquet(path, columns, others)
    raise TaskError(
        f"{path} has the extension {extension!r}; expected one of {', '.join(EXTENSIONS)}"
    )


def _check_columns(where: str, found: Sequence[str], columns: Sequence[str]) -> None:
    for name in columns:
        if name not in found:
            raise TaskError(
                f"{where}: there is no column {name!r} (found {listing([*found], 16)}); expected "
                f"{listing([*columns])}{nearest(name, found)}"
            )


def _separated(path: Path, delimiter: str, columns: Sequence[str]) -> Iterator[Record]:
    """Quoted fields may hold delimiters, line breaks and, doubled, quotation marks."""
    with _long_fields():
        reader = csv.reader(
            io.StringIO(read_text(path), newline=""), delimiter=delimiter, strict=True
        )
        try:
            header = [name.strip() for name in next(reader)]
            twice = sorted({name for name in header if header.count(name) > 1})
            if twice:
                raise TaskError(
                    f"{path}: the header names {listing(twice)} more than once; expected "
                    "different columns"
                )
            _check_columns(str(path), header, columns)
            line = reader.line_num + 1
            for cells in reader:
                where, line = f"{path}, line {line}", reader.line_num + 1
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise TaskError(
                        f"{where} has {len(cells)} columns; expected {len(header)}: "
                        f"{listing(header, 16)}"
                    )
                yield where, dict(zip(header, cells, strict=True))
        except csv.Error as error:
            raise TaskError(
                f"{path}, line {reader.line_num} cannot be read ({error}); expected fields that "
                f'are separated by {delimiter!r} and, where needed, quoted with "'
            ) from None


@contextmanager
def _long_fields() -> Iterator[None]:
    """The standard library refuses fields above 128 KB unless told otherwise."""
    before = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _parquet(path: Path, columns: Sequence[str], others: bool) -> list[Record]:
    parquet = require("pyarrow.parquet", "train", "reading Parquet")
    try:
        table = parquet.ParquetFile(path)
        _check_columns(str(path), table.schema_arrow.names, columns)
        records = table.read(columns=None if others else list(columns)).to_pylist()
    except TaskError:
        raise
    except (OSError, ValueError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise TaskError(f"{path} is no Parquet file that can be read ({lines[0]})") from None
    return [(f"{path}, row {index}", record) for index, record in enumerate(records)]

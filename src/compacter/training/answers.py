"""Answers in a file: what was given, and beside it what the model answered."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compacter.errors import TrainingError
from compacter.extras import require
from compacter.tasks import Task
from compacter.tasks.sources.own import DELIMITERS, EXTENSIONS, is_table
from compacter.training.folder import check_writable
from compacter.training.inputs import Given
from compacter.training.result import write_atomically

if TYPE_CHECKING:
    from compacter.training.pipelines import Prediction

PREDICTION, SCORE, PROBABILITIES = "prediction", "score", "probabilities"
PROBABILITY = "probability_"
"""What begins the name of a column with the probabilities of a label."""

Values = Mapping[str, Any]


def answer_of(prediction: Prediction) -> dict[str, Any]:
    """An answer as JSON has it."""
    found: dict[str, Any] = {PREDICTION: prediction.text, SCORE: prediction.score}
    if prediction.probabilities is not None:
        found[PROBABILITIES] = dict(prediction.probabilities)
    return found


def as_json(values: Values) -> str:
    """One line. What JSON has no word for, such as a date from a Parquet file, is a text."""
    return json.dumps(values, ensure_ascii=False, default=str, allow_nan=False)


class AnswerFile:
    """A file for answers. What cannot be written is told when it is made, before there are any."""

    def __init__(
        self, path: Path, task: Task, given: Sequence[Given], source: Path | None = None
    ) -> None:
        """`source`: the file in which `given` was found."""
        _check_file(path, source)
        self.path, self.extension = path, path.suffix.lower()
        self.records: list[Values] = [
            value if isinstance(value, Mapping) else {task.fields[0]: value} for _, value in given
        ]
        self.names = list(dict.fromkeys(name for record in self.records for name in record))
        own = {PREDICTION, SCORE, PROBABILITIES, *(PROBABILITY + label for label in task.labels)}
        taken = [name for name in self.names if name in own]
        if taken:
            raise TrainingError(
                f"there is a column {taken[0]!r} already, where the answers in {str(path)!r} are "
                "to stand; expected another name for it"
            )
        if self.extension == ".parquet":
            self.table = self._table(source)

    def write(self, predictions: Sequence[Prediction]) -> None:
        """The file is whole, or as it was before."""
        content = self._content(predictions)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, content)
        except OSError as error:
            raise TrainingError(
                f"the answers cannot be written to {str(self.path)!r} ({error.strerror or error})"
            ) from None

    def _content(self, predictions: Sequence[Prediction]) -> str | bytes:
        answers = [answer_of(prediction) for prediction in predictions]
        if self.extension in DELIMITERS:
            return self._separated([_flat(answer) for answer in answers])
        if self.extension == ".parquet":
            return self._parquet([_flat(answer) for answer in answers])
        pairs = zip(self.records, answers, strict=True)
        return "".join(f"{as_json({**record, **answer})}\n" for record, answer in pairs)

    def _separated(self, answers: Sequence[Values]) -> str:
        names = [*self.names, *_names(answers)]
        rows = (
            [_cell({**record, **answer}.get(name)) for name in names]
            for record, answer in zip(self.records, answers, strict=True)
        )
        delimiter = DELIMITERS[self.extension]
        return "".join(_line(cells, delimiter) for cells in (names, *rows))

    def _table(self, source: Path | None) -> Any:
        """The columns that are given, with their types and metadata if it is a Parquet file."""
        arrow = require("pyarrow", "train", "writing Parquet")
        schema = None
        if source is not None and source.suffix.lower() == ".parquet":
            schema = require("pyarrow.parquet", "train", "writing Parquet").read_schema(source)
        columns = {}
        for name in self.names:
            kind = None if schema is None else schema.field(name).type
            try:
                columns[name] = arrow.array([record.get(name) for record in self.records], kind)
            except (arrow.ArrowException, OverflowError) as error:
                raise TrainingError(
                    f"the column {name!r} cannot be written to {str(self.path)!r} ({error}); "
                    "expected values of one type, or a file that ends with .jsonl"
                ) from None
        return arrow.table(columns, metadata=None if schema is None else schema.metadata)

    def _parquet(self, answers: Sequence[Values]) -> bytes:
        table = self.table
        for name in _names(answers):
            table = table.append_column(name, [[answer[name] for answer in answers]])
        content = io.BytesIO()
        require("pyarrow.parquet", "train", "writing Parquet").write_table(table, content)
        return content.getvalue()


def _check_file(path: Path, source: Path | None) -> None:
    if not is_table(path):
        raise TrainingError(
            f"answers cannot be written as {path.suffix or path.name!r}; expected a file that ends "
            f"with {', '.join(EXTENSIONS)}"
        )
    if path.is_dir():
        raise TrainingError(f"{str(path)!r} is a folder; expected a file for the answers")
    if source is not None and path.exists() and source.exists() and path.samefile(source):
        raise TrainingError(
            f"{str(path)!r} is the file that is to be answered; expected another file for the "
            "answers"
        )
    check_writable(path.parent)


def _flat(answer: Values) -> dict[str, Any]:
    """The same with a column for each probability."""
    shares = answer.get(PROBABILITIES, {})
    plain = {name: value for name, value in answer.items() if name != PROBABILITIES}
    return plain | {PROBABILITY + label: share for label, share in shares.items()}


def _names(answers: Sequence[Values]) -> list[str]:
    return list(answers[0]) if answers else [PREDICTION, SCORE]


def _cell(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    is_json = isinstance(value, bool | int | float | list | dict)
    return (
        json.dumps(value, ensure_ascii=False, default=str, allow_nan=False)
        if is_json
        else str(value)
    )


def _line(cells: Iterable[str], delimiter: str) -> str:
    """Ends in a line feed, though the csv module is told of a carriage return as well: without it,
    it would not quote one inside of a text."""
    line = io.StringIO()
    csv.writer(line, delimiter=delimiter, lineterminator="\r\n").writerow(cells)
    return line.getvalue().removesuffix("\r\n") + "\n"

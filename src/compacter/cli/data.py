"""Options that say where data comes from, for every command that reads a task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from compacter.tasks import Source

TaskName = Annotated[
    str | None,
    typer.Option("--task", help="A task of 'compacter tasks'; a name for your own files."),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="The official GLUE or SuperGLUE files: the task's folder or one above it."),
]
TrainFile = Annotated[
    Path | None, typer.Option(help="Your own data: .csv, .tsv, .jsonl or .parquet.")
]
ValidationFile = Annotated[
    Path | None, typer.Option(help="Without it, a tenth of the training rows is split off.")
]
TestFile = Annotated[Path | None, typer.Option(help="Without it there is no test score.")]
TextColumns = Annotated[
    list[str] | None, typer.Option("--text-column", help="A text's column; once or twice.")
]
LabelColumn = Annotated[
    str | None, typer.Option(help="The label's column (default: label).", show_default=False)
]
Labels = Annotated[
    str | None,
    typer.Option(help="Your labels in order, with commas (default: as found in the train file)."),
]
Regression = Annotated[
    bool | None,
    typer.Option(
        "--regression/--classification",
        help="What your labels are (default: regression if they are numbers with fractions).",
        show_default=False,
    ),
]


def make_source(
    task: str | None,
    data_dir: Path | None,
    train_file: Path | None,
    validation_file: Path | None,
    test_file: Path | None,
    text_columns: list[str] | None,
    label_column: str | None,
    labels: str | None,
    regression: bool | None,
) -> Source:
    """The source that the options describe: own files, official files, the package itself,
    or the hub."""
    from compacter.errors import TaskError
    from compacter.tasks import BUILTIN_TASKS, Builtin, Hub, OfficialFiles, UserData

    own = {
        "--validation-file": validation_file,
        "--test-file": test_file,
        "--text-column": text_columns,
        "--label-column": label_column,
        "--labels": labels,
        "--regression/--classification": regression,
    }
    if train_file is None:
        given = [name for name, value in own.items() if value is not None and value != []]
        if given:
            raise TaskError(
                f"{given[0]} is for your own files and there is no --train-file; expected both "
                "or neither"
            )
        if data_dir is not None:
            return OfficialFiles(data_dir)
        return Builtin() if task in BUILTIN_TASKS else Hub()
    if data_dir is not None:
        raise TaskError("--data-dir and --train-file are both given; expected one of them")
    if not text_columns:
        raise TaskError("--train-file needs --text-column NAME, once or twice; found none")
    return UserData(
        train=train_file,
        validation=validation_file,
        test=test_file,
        text_columns=tuple(text_columns),
        label_column=label_column or "label",
        labels=None if labels is None else tuple(label.strip() for label in labels.split(",")),
        regression=regression,
        name=task or "custom",
    )

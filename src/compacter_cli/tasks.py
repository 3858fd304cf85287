"""`compacter tasks`: the fourteen tasks of the paper, and three that the package makes itself."""

from __future__ import annotations

from typing import Annotated

import typer

from compacter.tasks.table import BUILTIN_TASKS, TASKS, Task
from compacter_cli.output import console, print_json

EVERY = (*TASKS.values(), *BUILTIN_TASKS.values())


def tasks(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the tasks: labels, metrics, rows and how they are split."""
    if as_json:
        print_json([_row(task) for task in EVERY])
        return
    from rich.table import Table

    table = Table(title="Tasks", title_justify="left")
    for column in ("task", "benchmark"):
        table.add_column(column, no_wrap=True)
    table.add_column("labels")
    table.add_column("metrics")
    table.add_column("train rows", justify="right", no_wrap=True)
    table.add_column("validation rows", justify="right", no_wrap=True)
    table.add_column("split", no_wrap=True)
    for task in EVERY:
        train, validation = task.sizes or (0, 0)
        table.add_row(
            task.name,
            task.benchmark,
            _labels(task),
            ", ".join(task.metrics),
            f"{train:,}",
            f"{validation:,}",
            task.size,
        )
    console().print(table)
    console().print(
        "Rows as published. small: the published validation set is halved into validation and "
        "test.\nlarge: 1,000 training rows are the validation set, the published validation set "
        "is the test.\ngiven: made by the package, with a test set of 1,000 rows."
    )


def _labels(task: Task) -> str:
    words = {"number": "a number from 0 to 5", "entity": "an entity of the passage"}
    return words.get(task.kind, ", ".join(task.labels))


def _row(task: Task) -> dict[str, object]:
    assert task.sizes is not None
    return {
        "task": task.name,
        "benchmark": task.benchmark,
        "kind": task.kind,
        "fields": list(task.fields),
        "labels": list(task.labels),
        "metrics": list(task.metrics),
        "split": task.size,
        "rows": {"train": task.sizes[0], "validation": task.sizes[1]},
        "hub": task.hub
        and {
            "repository": task.hub.repository,
            "config": task.hub.config,
            "revision": task.hub.revision,
        },
        "folder": task.disk and task.disk.folder,
    }

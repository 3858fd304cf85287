"""What a task is: where its rows come from, how a row becomes text, how answers are scored.

    task, splits = load("rte", OfficialFiles("DATA_DIR"))
    examples(task, splits.train, train=True)[0].source      # "rte sentence1: ... sentence2: ..."
    score(task, [parse(task, text) for text in answers], splits.test)

Importing this does not import torch."""

from __future__ import annotations

from dataclasses import replace

from compacter.errors import TaskError
from compacter.tasks.formats import (
    Answer,
    Candidates,
    Example,
    LabelWords,
    Pair,
    candidate_pairs,
    chosen,
    examples,
    pair,
    parse,
    source,
    targets,
)
from compacter.tasks.metrics import mean_score, score
from compacter.tasks.rows import Label, Row
from compacter.tasks.sources import Builtin, Hub, OfficialFiles, Source, UserData
from compacter.tasks.splits import (
    SPLIT_SEED,
    Splits,
    fingerprint,
    paper_split,
    paper_splits,
    take,
    training_rows,
)
from compacter.tasks.table import BUILTIN_TASKS, SPLITS, TASKS, Split, Task, find_task

__all__ = [
    "BUILTIN_TASKS",
    "SPLITS",
    "SPLIT_SEED",
    "TASKS",
    "Answer",
    "Builtin",
    "Candidates",
    "Example",
    "Hub",
    "Label",
    "LabelWords",
    "OfficialFiles",
    "Pair",
    "Row",
    "Source",
    "Split",
    "Splits",
    "Task",
    "UserData",
    "candidate_pairs",
    "chosen",
    "examples",
    "find_task",
    "fingerprint",
    "load",
    "load_split",
    "mean_score",
    "pair",
    "parse",
    "score",
    "source",
    "take",
    "targets",
    "training_rows",
]


def load(
    task: str | None = None,
    source: Source | None = None,
    *,
    max_train_samples: int | None = None,
    seed: int = SPLIT_SEED,
) -> tuple[Task, Splits]:
    """A task and its splits, from the hub if no source is given and the package does not make the
    task itself.

    A benchmark's task is split as in the paper. A user's own files make a task of their own, to
    which no name is given here. `max_train_samples` draws that many training rows by the seed;
    validation and test rows stay the same."""
    declared = _declared(task, source)
    rows = source or _default_source(declared)
    if _as_they_come(declared, rows):
        splits = Splits(*(rows.load_rows(declared, split) for split in SPLITS))
    else:
        splits = paper_splits(declared, lambda split: rows.load_rows(declared, split))
    return declared, replace(splits, train=take(splits.train, max_train_samples, seed))


def load_split(task: str | None, source: Source | None, split: Split) -> tuple[Task, list[Row]]:
    """A task and one of its splits. Only the files that this split needs have to be there."""
    declared = _declared(task, source)
    rows = source or _default_source(declared)
    if _as_they_come(declared, rows):
        return declared, rows.load_rows(declared, split)
    return declared, paper_split(declared, split, lambda part: rows.load_rows(declared, part))


def _default_source(task: Task) -> Source:
    return Builtin() if task.benchmark == "builtin" else Hub()


def _as_they_come(task: Task, source: Source) -> bool:
    """Whether the splits are the source's own, not made anew as in the paper."""
    return task.size == "given" or isinstance(source, UserData)


def _declared(task: str | None, source: Source | None) -> Task:
    if isinstance(source, UserData):
        if task is not None and task != source.name:
            raise TaskError(
                f"the task is {task!r} and your own files are called {source.name!r}; expected the "
                "same name, or none"
            )
        return source.task()
    if task is None:
        raise TaskError(f"no task is named; choose one of {', '.join(TASKS)}, or give your files")
    return find_task(task)

"""The paper's splits: test sets of the benchmarks are not public, so each task is split anew.

    small: the first half of the permuted published validation set is the validation set, the rest
           is the test set (MultiRC: the questions are permuted, their answers stay together)
    large: the first 1,000 rows of the permuted training set are the validation set, the rest is
           trained on, the published validation set is the test set (of a training set that was
           cut to fewer than 10,000 rows, a tenth)

Permutations are those of `torch.randperm` with a generator of seed 42."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compacter.errors import TaskError
from compacter.tasks.rows import Row
from compacter.tasks.table import SPLITS, Split, Task

SPLIT_SEED = 42
VALIDATION_ROWS = 1_000

Load = Callable[[Split], list[Row]]


@dataclass(frozen=True)
class Splits:
    """The rows to train on, to choose by and to report. A user's data may have no test set."""

    train: list[Row]
    validation: list[Row]
    test: list[Row]

    def __getitem__(self, split: Split) -> list[Row]:
        rows: list[Row] = getattr(self, check_split(split))
        return rows


def check_split(split: str) -> Split:
    for known in SPLITS:
        if split == known:
            return known
    raise TaskError(f"there is no split {split!r}; choose one of {', '.join(SPLITS)}")


def permutation(count: int, seed: int = SPLIT_SEED) -> list[int]:
    """The numbers below `count` in an order that depends on the seed alone."""
    import torch

    order: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    return order


def training_rows(task: Task) -> int:
    """How many rows of the published training set are trained on."""
    if task.sizes is None:
        raise TaskError(f"the task {task.name!r} is your own; its rows are not known beforehand")
    published, _ = task.sizes
    return published - _carved_rows(published) if task.size == "large" else published


def _carved_rows(published: int) -> int:
    """Of a large training set, those that become the validation set."""
    return min(VALIDATION_ROWS, max(1, published // 10))


def paper_split(task: Task, split: Split, published: Load) -> list[Row]:
    """One split of the paper from the published ones, of which only what is needed is loaded."""
    check_split(split)
    if task.size == "large":
        if split == "test":
            return published("validation")
        rows = published("train")
        kept, carved = carve(rows, _carved_rows(len(rows)))
        return kept if split == "train" else carved
    if split == "train":
        return published("train")
    first, rest = halve(published("validation"), together=task.name == "multirc")
    return first if split == "validation" else rest


def paper_splits(task: Task, published: Load) -> Splits:
    """All three splits of the paper; each published split is loaded once."""
    loaded: dict[Split, list[Row]] = {}

    def once(split: Split) -> list[Row]:
        if split not in loaded:
            loaded[split] = published(split)
        return loaded[split]

    return Splits(*(paper_split(task, split, once) for split in SPLITS))


def halve(rows: Sequence[Row], *, together: bool = False) -> tuple[list[Row], list[Row]]:
    """The first half of the permuted rows, and the rest. `together`: groups are permuted and halved
    in place of rows, and the rows of a group keep their order."""
    groups = _groups(rows) if together else [[row] for row in rows]
    order = permutation(len(groups))
    half = len(groups) // 2
    first = [row for i in order[:half] for row in groups[i]]
    rest = [row for i in order[half:] for row in groups[i]]
    return first, rest


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each group, in the order in which groups first appear."""
    groups: dict[tuple[int, int] | None, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return list(groups.values())


def carve(rows: Sequence[Row], size: int, seed: int = SPLIT_SEED) -> tuple[list[Row], list[Row]]:
    """What is left to train on, and the first `size` of the permuted rows to validate on."""
    if not 0 < size < len(rows):
        raise TaskError(
            f"{size} validation rows cannot be split off the training set, which has {len(rows)}; "
            "expected at least one row on either side"
        )
    order = permutation(len(rows), seed)
    return [rows[i] for i in order[size:]], [rows[i] for i in order[:size]]


def take(rows: list[Row], count: int | None, seed: int = SPLIT_SEED) -> list[Row]:
    """`count` rows drawn by the seed: a prefix of one permutation, so that with the same seed a
    smaller set is part of every larger one. All rows if there are not more, or count is None."""
    if count is None or count >= len(rows):
        return rows
    if count < 1:
        raise TaskError(f"the number of training rows is {count}; expected at least 1")
    return [rows[i] for i in permutation(len(rows), seed)[:count]]


def fingerprint(splits: Splits) -> str:
    """A SHA-256 of all rows in their order: equal fingerprints mean equal data."""
    digest = hashlib.sha256()
    for split in SPLITS:
        digest.update(f"{split}\n".encode())
        for row in splits[split]:
            canonical = [
                sorted(row.fields.items()),
                row.label,
                row.answers,
                row.candidates,
                row.group,
                row.index,
            ]
            digest.update(json.dumps(canonical, ensure_ascii=True, allow_nan=False).encode())
            digest.update(b"\n")
    return digest.hexdigest()

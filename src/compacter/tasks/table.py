"""The fourteen tasks of the paper and three that the package makes itself, one declaration each.

A declaration says where the rows are, how they become text, what the labels are called and how
answers are scored. Batch sizes, lengths and epochs are settings of training and are not here.
Reading this table does not import torch."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from compacter.errors import TaskError

Benchmark = Literal["glue", "superglue", "builtin", "custom"]
Kind = Literal["classes", "number", "choice", "entity"]
Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")

GLUE_REVISION = "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"
SUPERGLUE_REVISION = "3de24cf8022e94f4ee4b9d55a6f539891524d646"


@dataclass(frozen=True)
class HubFiles:
    """Where a task is on the Hugging Face hub."""

    repository: str
    config: str
    revision: str
    splits: Mapping[Split, str]


@dataclass(frozen=True)
class DiskFiles:
    """How a task is distributed: a folder, a file for each split, and the names in its header."""

    folder: str
    files: Mapping[Split, str]
    columns: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The header's name of a field, or of `label`, where it is another one than ours."""
    header: tuple[str, ...] = ()
    """The columns of labelled files that come without a header (CoLA)."""
    skip_short_rows: bool = False
    """Whether rows with too few columns are known to occur and are left out (QQP)."""


@dataclass(frozen=True)
class Task:
    """What a task is."""

    name: str
    benchmark: Benchmark
    kind: Kind
    """classes: one of the labels; number: regression; choice: the better of the row's candidates;
    entity: a text, one of the row's candidates."""
    fields: tuple[str, ...]
    """The names of the texts of a row, in the order in which T5 reads them."""
    pair: tuple[tuple[str, ...], tuple[str, ...]]
    """For encoders: the fields that make up the first text and the second (none: one text)."""
    labels: tuple[str, ...]
    """T5's word for each class, in the order of the class indices."""
    metrics: tuple[str, ...]
    size: Literal["small", "large", "given"]
    """small: validation and test are the halves of the published validation set; large: the
    validation set comes from the training set, the published validation set is the test; given:
    all three sets are as they come."""
    positive: int | None = None
    """The class whose F1 is meant; None: the mean of the F1 of every class."""
    step: float | None = None
    """Numbers are written rounded to a multiple of this (STS-B: 0.2)."""
    sizes: tuple[int, int] | None = None
    """Rows of the published training and validation sets."""
    hub: HubFiles | None = None
    disk: DiskFiles | None = None

    @property
    def num_labels(self) -> int:
        """Outputs of a classification head: one for each class, one for a score."""
        return len(self.labels) if self.kind == "classes" else 1


def _glue(
    name: str,
    folder: str,
    fields: tuple[str, ...],
    labels: tuple[str, ...],
    metrics: tuple[str, ...],
    size: Literal["small", "large"],
    sizes: tuple[int, int],
    *,
    kind: Kind = "classes",
    columns: Mapping[str, str] | None = None,
    header: tuple[str, ...] = (),
    pair: tuple[tuple[str, ...], tuple[str, ...]] | None = None,
    positive: int | None = None,
    step: float | None = None,
    part: str = "",
    skip_short_rows: bool = False,
) -> Task:
    """`part`: what the names of the files and splits of MNLI end with."""
    return Task(
        name=name,
        benchmark="glue",
        kind=kind,
        fields=fields,
        pair=pair or (fields[:1], fields[1:]),
        labels=labels,
        metrics=metrics,
        size=size,
        positive=positive,
        step=step,
        sizes=sizes,
        hub=HubFiles(
            "nyu-mll/glue",
            name,
            GLUE_REVISION,
            {"train": "train", "validation": f"validation{part}", "test": f"test{part}"},
        ),
        disk=DiskFiles(
            folder,
            {"train": "train.tsv", "validation": f"dev{part}.tsv", "test": f"test{part}.tsv"},
            columns or {},
            header,
            skip_short_rows,
        ),
    )


def _superglue(
    name: str,
    folder: str,
    fields: tuple[str, ...],
    pair: tuple[tuple[str, ...], tuple[str, ...]],
    labels: tuple[str, ...],
    metrics: tuple[str, ...],
    size: Literal["small", "large"],
    sizes: tuple[int, int],
    *,
    kind: Kind = "classes",
    positive: int | None = None,
) -> Task:
    return Task(
        name=name,
        benchmark="superglue",
        kind=kind,
        fields=fields,
        pair=pair,
        labels=labels,
        metrics=metrics,
        size=size,
        positive=positive,
        sizes=sizes,
        hub=HubFiles("aps/super_glue", name, SUPERGLUE_REVISION, {s: s for s in SPLITS}),
        disk=DiskFiles(
            folder, {"train": "train.jsonl", "validation": "val.jsonl", "test": "test.jsonl"}
        ),
    )


ENTAILMENT = ("entailment", "not_entailment")
BOOLEAN = ("False", "True")

TASKS: Mapping[str, Task] = MappingProxyType(
    {
        task.name: task
        for task in (
            _glue(
                "cola",
                "CoLA",
                ("sentence",),
                ("unacceptable", "acceptable"),
                ("matthews",),
                "small",
                (8_551, 1_043),
                header=("source", "label", "original_label", "sentence"),
            ),
            _glue(
                "sst2",
                "SST-2",
                ("sentence",),
                ("negative", "positive"),
                ("accuracy",),
                "large",
                (67_349, 872),
            ),
            _glue(
                "mrpc",
                "MRPC",
                ("sentence1", "sentence2"),
                ("not_equivalent", "equivalent"),
                ("accuracy", "f1"),
                "small",
                (3_668, 408),
                columns={"sentence1": "#1 String", "sentence2": "#2 String", "label": "Quality"},
                positive=1,
            ),
            _glue(
                "qqp",
                "QQP",
                ("question1", "question2"),
                ("not_duplicate", "duplicate"),
                ("accuracy", "f1"),
                "large",
                (363_846, 40_430),
                columns={"label": "is_duplicate"},
                positive=1,
                skip_short_rows=True,
            ),
            _glue(
                "stsb",
                "STS-B",
                ("sentence1", "sentence2"),
                (),
                ("pearson", "spearman"),
                "small",
                (5_749, 1_500),
                kind="number",
                columns={"label": "score"},
                step=0.2,
            ),
            _glue(
                "mnli",
                "MNLI",
                ("hypothesis", "premise"),
                ("entailment", "neutral", "contradiction"),
                ("accuracy",),
                "large",
                (392_702, 9_815),
                columns={
                    "premise": "sentence1",
                    "hypothesis": "sentence2",
                    "label": "gold_label",
                },
                pair=(("premise",), ("hypothesis",)),
                part="_matched",
            ),
            _glue(
                "qnli",
                "QNLI",
                ("question", "sentence"),
                ENTAILMENT,
                ("accuracy",),
                "large",
                (104_743, 5_463),
            ),
            _glue(
                "rte",
                "RTE",
                ("sentence1", "sentence2"),
                ENTAILMENT,
                ("accuracy",),
                "small",
                (2_490, 277),
            ),
            _superglue(
                "boolq",
                "BoolQ",
                ("passage", "question"),
                (("question",), ("passage",)),
                BOOLEAN,
                ("accuracy",),
                "small",
                (9_427, 3_270),
            ),
            _superglue(
                "cb",
                "CB",
                ("hypothesis", "premise"),
                (("premise",), ("hypothesis",)),
                ("entailment", "contradiction", "neutral"),
                ("accuracy", "f1"),
                "small",
                (250, 56),
            ),
            _superglue(
                "copa",
                "COPA",
                ("choice1", "choice2", "premise", "question"),
                (("premise", "question"), ("candidate",)),
                ("choice1", "choice2"),
                ("accuracy",),
                "small",
                (400, 100),
                kind="choice",
            ),
            _superglue(
                "multirc",
                "MultiRC",
                ("question", "answer", "paragraph"),
                (("question", "answer"), ("paragraph",)),
                BOOLEAN,
                ("f1a", "em"),
                "small",
                (27_243, 4_848),
                positive=1,
            ),
            _superglue(
                "record",
                "ReCoRD",
                ("query", "entities", "passage"),
                (("query",), ("passage",)),
                (),
                ("f1", "em"),
                "large",
                (100_730, 10_000),
                kind="entity",
            ),
            _superglue(
                "wic",
                "WiC",
                ("sentence1", "sentence2", "word"),
                (("word", "sentence1"), ("word", "sentence2")),
                BOOLEAN,
                ("accuracy",),
                "small",
                (5_428, 638),
            ),
        )
    }
)


def _builtin(
    name: str, fields: tuple[str, ...], labels: tuple[str, ...], sizes: tuple[int, int]
) -> Task:
    return Task(
        name=f"builtin/{name}",
        benchmark="builtin",
        kind="classes",
        fields=fields,
        pair=(fields[:1], fields[1:]),
        labels=labels,
        metrics=("accuracy",),
        size="given",
        sizes=sizes,
    )


BUILTIN_TASKS: Mapping[str, Task] = MappingProxyType(
    {
        task.name: task
        for task in (
            _builtin("roles", ("sentence1", "sentence2"), ENTAILMENT, (5_000, 500)),
            _builtin("tone", ("sentence",), ("negative", "positive"), (3_000, 500)),
            _builtin("grammar", ("sentence",), ("unacceptable", "acceptable"), (3_000, 500)),
        )
    }
)
"""Tasks that the package generates; their test sets have 1,000 rows."""


def find_task(name: str) -> Task:
    """The task of that name, or an error with the nearest right one."""
    for known in (TASKS, BUILTIN_TASKS):
        if name in known:
            return known[name]
    if name.startswith("builtin"):
        near = difflib.get_close_matches(name.lower(), BUILTIN_TASKS, n=1, cutoff=0.85)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(BUILTIN_TASKS)}"
        raise TaskError(f"there is no task {name!r}; {hint}")
    plain = name.lower().replace("-", "").replace("_", "").removeprefix("superglue")
    near = [plain] if plain in TASKS else difflib.get_close_matches(plain, TASKS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(TASKS)}"
    raise TaskError(f"there is no task {name!r}; {hint}")


def nearest(name: str, choices: Iterable[str]) -> str:
    """`; did you mean 'x'?` where something in `choices` looks like `name`, else nothing."""
    plain = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(name.strip().lower(), plain, n=1)
    return f"; did you mean {plain[near[0]]!r}?" if near else ""

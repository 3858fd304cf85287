"""The table of tasks."""

from __future__ import annotations

import re

import pytest

from compacter.errors import CompacterError, TaskError
from compacter.paper import tables
from compacter.tasks import TASKS, find_task
from official_files import TASK_NAMES


def test_the_tasks_and_their_metrics_are_those_of_the_papers_tables() -> None:
    assert list(TASKS) == list(TASK_NAMES)
    for table, benchmark, columns in (
        ("glue_t5_base", "glue", 11),
        ("superglue_t5_base", "superglue", 9),
    ):
        scores = tables()[table][0]["scores"]
        tasks = [task for task in TASKS.values() if task.benchmark == benchmark]
        assert {task.name for task in tasks} == set(scores) - {"avg"}
        for task in tasks:
            printed = scores[task.name]
            assert len(task.metrics) == (len(printed) if isinstance(printed, list) else 1)
        assert sum(len(task.metrics) for task in tasks) == columns


def test_metrics_have_the_names_and_the_order_of_the_notes() -> None:
    pairs = {name: task.metrics for name, task in TASKS.items() if len(task.metrics) > 1}
    assert pairs == {
        "mrpc": ("accuracy", "f1"),
        "qqp": ("accuracy", "f1"),
        "stsb": ("pearson", "spearman"),
        "cb": ("accuracy", "f1"),
        "multirc": ("f1a", "em"),
        "record": ("f1", "em"),
    }
    assert TASKS["cola"].metrics == ("matthews",)


def test_size_classes_are_those_of_the_paper() -> None:
    large = {name for name, task in TASKS.items() if task.size == "large"}
    assert large == {"sst2", "qqp", "qnli", "mnli", "record"}


def test_revisions_are_fixed() -> None:
    for task in TASKS.values():
        assert task.hub is not None
        assert re.fullmatch(r"[0-9a-f]{40}", task.hub.revision)
        assert task.hub.config == task.name


def test_label_orders_of_mnli_and_cb_differ() -> None:
    assert TASKS["mnli"].labels == ("entailment", "neutral", "contradiction")
    assert TASKS["cb"].labels == ("entailment", "contradiction", "neutral")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("rtee", "did you mean 'rte'"),
        ("SST-2", "did you mean 'sst2'"),
        ("STS-B", "did you mean 'stsb'"),
        ("CoLA", "did you mean 'cola'"),
        ("super_glue_boolq", "did you mean 'boolq'"),
        ("mlni", "did you mean 'mnli'"),
        ("", "choose one of cola, sst2"),
        ("translation", "choose one of cola, sst2"),
    ],
)
def test_an_unknown_task_gets_the_nearest_name(name: str, hint: str) -> None:
    with pytest.raises(TaskError, match=re.escape(f"there is no task {name!r}; {hint}")):
        find_task(name)


def test_the_error_is_one_of_the_packages() -> None:
    assert issubclass(TaskError, CompacterError)
    assert issubclass(TaskError, ValueError)

"""Official files with something wrong in them. Each case changes one file of a right folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commands import Command, check_refused
from official_files import OFFICIAL, jsonl, tsv, write_official

pytestmark = pytest.mark.usefixtures("in_empty_folder")


def official(task: str, name: str, content: bytes) -> tuple[str, str, bytes]:
    return task, name, content


COPA = {"premise": "p", "choice1": "a", "choice2": "b", "question": "cause", "label": 0, "idx": 0}
RECORD = {
    "idx": 0,
    "passage": {"text": "Al ran.", "entities": [{"start": 0, "end": 1}]},
    "qas": [{"idx": 0, "query": "@placeholder", "answers": [{"text": "Al"}]}],
}
MULTIRC_ANSWER = {"idx": 0, "text": "yes", "label": 1}


def multirc(answer: Any) -> dict[str, Any]:
    question = {"idx": 0, "question": "q?", "answers": [answer]}
    return {"idx": 0, "passage": {"text": "t", "questions": [question]}}


RTE_HEADER = "index | sentence1 | sentence2 | label"

BAD_OFFICIAL = {
    "empty file": (official("rte", "train.tsv", b""), ["is empty", "train.tsv"]),
    "header only": (official("rte", "train.tsv", tsv(RTE_HEADER)), ["no rows"]),
    "wrong header": (
        official("rte", "train.tsv", tsv("index | premise | sentence2 | label", "0 | a | b | 0")),
        ["'sentence1' is not in the header", "'premise'"],
    ),
    "headerless": (
        official("rte", "train.tsv", tsv("0 | a | b | entailment")),
        ["'sentence1' is not in the header", "'entailment'"],
    ),
    "a column twice": (
        official(
            "rte", "train.tsv", tsv("sentence1 | sentence1 | sentence2 | label", "a | b | c | 0")
        ),
        ["'sentence1' is twice in the header"],
    ),
    "too few columns": (
        official("rte", "train.tsv", tsv(RTE_HEADER, "0 | a | b | entailment", "1 | a | b")),
        ["line 3 has 3 columns", "expected 4"],
    ),
    "too many columns": (
        official("rte", "train.tsv", tsv(RTE_HEADER, "0 | a | b | x | entailment")),
        ["line 2 has 5 columns", "expected 4"],
    ),
    "headerless CoLA of two columns": (
        official("cola", "train.tsv", tsv("A sentence. | 1")),
        ["line 1 has 2 columns", "'original_label'"],
    ),
    "CoLA with a header": (
        official("cola", "train.tsv", tsv("source | label | star | sentence", "x | 1 |  | A.")),
        ["line 1", "the label is 'label'", "'acceptable'"],
    ),
    "unknown label": (
        official("rte", "train.tsv", tsv(RTE_HEADER, "0 | a | b | entailmnt")),
        ["line 2", "'entailmnt'", "did you mean 'entailment'?"],
    ),
    "label index too large": (
        official("rte", "train.tsv", tsv(RTE_HEADER, "0 | a | b | 2")),
        ["the label is '2'", "expected one of 'entailment', 'not_entailment'"],
    ),
    "float label of classes": (
        official("rte", "train.tsv", tsv(RTE_HEADER, "0 | a | b | 0.5")),
        ["the label is '0.5'", "'entailment'"],
    ),
    "empty label": (
        official("rte", "train.tsv", tsv(RTE_HEADER, "0 | a | b | ")),
        ["the label is ''"],
    ),
    "score that is no number": (
        official("stsb", "train.tsv", OFFICIAL["stsb"][1]["train.tsv"].replace(b"3.800", b"high")),
        ["line 4", "the label is 'high'; expected a number"],
    ),
    "score that is not finite": (
        official("stsb", "train.tsv", OFFICIAL["stsb"][1]["train.tsv"].replace(b"3.800", b"nan")),
        ["the label is 'nan'; expected a number"],
    ),
    "not UTF-8": (
        official("rte", "train.tsv", tsv(RTE_HEADER) + b"0\tcaf\xe9\tb\t0\n"),
        ["is not UTF-8", "0xe9", "save the file as UTF-8"],
    ),
    "UTF-16": (
        official("rte", "train.tsv", "index\tsentence1".encode("utf-16-le")),
        ["zero bytes"],
    ),
    "broken JSON": (
        official("cb", "train.jsonl", OFFICIAL["cb"][1]["train.jsonl"] + b'{"premise": "x\n'),
        ["line 4 is no JSON", "one object on each line"],
    ),
    "JSON that is no object": (
        official("cb", "train.jsonl", b'["premise"]\n'),
        ["line 1", "['premise']", "expected a JSON object"],
    ),
    "JSON without a field": (
        official(
            "cb", "train.jsonl", jsonl({"premise": "p", "hypotesis": "h", "label": "neutral"})
        ),
        ["line 1: there is no 'hypothesis'", "did you mean 'hypotesis'?"],
    ),
    "JSON without a label": (
        official("cb", "train.jsonl", jsonl({"premise": "p", "hypothesis": "h"})),
        ["line 1: there is no 'label'"],
    ),
    "JSON text that is none": (
        official("cb", "train.jsonl", jsonl({"premise": 3, "hypothesis": "h", "label": "neutral"})),
        ["'premise' is 3; expected a text"],
    ),
    "truth value for a class": (
        official("cb", "train.jsonl", jsonl({"premise": "p", "hypothesis": "h", "label": True})),
        ["the label is True", "'neutral'"],
    ),
    "null label": (
        official("copa", "train.jsonl", jsonl(COPA | {"label": None})),
        ["the label is None", "'choice1', 'choice2'"],
    ),
    "fraction for a class": (
        official("copa", "train.jsonl", jsonl(COPA | {"label": 1.0})),
        ["the label is 1.0"],
    ),
    "COPA without cause or effect": (
        official("copa", "train.jsonl", jsonl(COPA | {"question": "why"})),
        ["'question' is 'why'; expected 'cause' or 'effect'"],
    ),
    "MultiRC that is flat": (
        official("multirc", "train.jsonl", jsonl({"idx": 0, "paragraph": "p"})),
        ["there is no 'passage'"],
    ),
    "MultiRC passage that is a text": (
        official("multirc", "train.jsonl", jsonl({"idx": 0, "passage": "p"})),
        ["'passage' is 'p'; expected an object"],
    ),
    "MultiRC answer that is a text": (
        official("multirc", "train.jsonl", jsonl(multirc("yes"))),
        ["'answers' holds 'yes'; expected objects"],
    ),
    "MultiRC without an index": (
        official("multirc", "train.jsonl", jsonl(multirc(MULTIRC_ANSWER) | {"idx": "0"})),
        ["'idx' is '0'; expected a whole number"],
    ),
    "MultiRC label": (
        official("multirc", "train.jsonl", jsonl(multirc(MULTIRC_ANSWER | {"label": 2}))),
        ["the label is 2"],
    ),
    "ReCoRD entity outside the passage": (
        official(
            "record",
            "train.jsonl",
            jsonl(RECORD | {"passage": {"text": "Al", "entities": [{"start": 0, "end": 2}]}}),
        ),
        ["from 0 to 2", "which has 2 characters"],
    ),
    "ReCoRD without answers": (
        official(
            "record",
            "train.jsonl",
            jsonl(RECORD | {"qas": [{"idx": 0, "query": "q", "answers": []}]}),
        ),
        ["a query has no answers"],
    ),
    "one training row of a large task": (
        official("sst2", "train.tsv", tsv("sentence | label", "fine | 1")),
        ["1 validation rows cannot be split off the training set, which has 1"],
    ),
}


@pytest.mark.parametrize("kind", BAD_OFFICIAL)
def test_bad_official_files(kind: str, command: Command, tmp_path: Path) -> None:
    (task, name, content), parts = BAD_OFFICIAL[kind]
    folder = write_official(task, tmp_path)
    (folder / name).write_bytes(content)
    check_refused(command("preview", "--task", task, "--data-dir", "."), *parts)


def test_a_folder_that_is_not_there(command: Command) -> None:
    run = command("preview", "--task", "rte", "--data-dir", "nowhere")
    check_refused(run, "the data folder nowhere does not exist", "RTE")


def test_a_folder_that_is_a_file(command: Command, tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    check_refused(command("preview", "--task", "rte", "--data-dir", "data"), "data is a file")


def test_a_folder_without_the_task(command: Command, tmp_path: Path) -> None:
    write_official("mrpc", tmp_path / "GLUE")
    run = command("preview", "--task", "rte", "--data-dir", ".")
    check_refused(run, "no folder RTE or GLUE/RTE", "train.tsv", "found: 'GLUE'")


def test_a_folder_without_the_file(command: Command, tmp_path: Path) -> None:
    (write_official("rte", tmp_path) / "train.tsv").unlink()
    run = command("preview", "--task", "rte", "--data-dir", ".")
    check_refused(run, "RTE holds no train.tsv, the train set of rte", "'dev.tsv'")


def test_the_folder_of_another_task(command: Command, tmp_path: Path) -> None:
    write_official("cb", tmp_path)
    run = command("preview", "--task", "boolq", "--data-dir", "CB")
    check_refused(run, "line 1: there is no 'passage'", "'premise'")

"""`compacter tasks`, `compacter preview`, and every kind of bad data that they may meet."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from compacter.cli import main
from compacter.tasks import BUILTIN_TASKS, TASKS
from task_files import OFFICIAL, jsonl, tsv, write_official


@dataclass(frozen=True)
class Run:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)


Command = Callable[..., Run]


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Command:
    """Run `compacter` with these arguments in this process and an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str) -> Run:
        monkeypatch.setattr(sys, "argv", ["compacter", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        captured = capfd.readouterr()
        return Run(int(stop.value.code or 0), captured.out, captured.err)

    return run


def check_refused(run: Run, *parts: str) -> None:
    assert run.code == 2, run
    assert run.out == ""
    (line,) = run.err.splitlines()
    assert line.startswith("compacter: ")
    for part in parts:
        assert part in line


# compacter tasks


@pytest.mark.parametrize("arguments", [["tasks"], ["tasks", "--json"], ["preview", "--help"]])
def test_answers_without_importing_torch(arguments: list[str]) -> None:
    code = f"""
import sys
from compacter.cli import main
sys.argv = ["compacter", *{arguments}]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
heavy = {{"torch", "peft", "transformers", "numpy", "datasets", "sklearn"}} & set(sys.modules)
assert not heavy, heavy
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout


def test_tasks_as_json(command: Command) -> None:
    rows = {row["task"]: row for row in command("tasks", "--json").json}
    assert list(rows) == [*TASKS, *BUILTIN_TASKS]
    assert (rows["builtin/tone"]["hub"], rows["builtin/tone"]["folder"]) == (None, None)
    assert rows["cb"] == {
        "task": "cb",
        "benchmark": "superglue",
        "kind": "classes",
        "fields": ["hypothesis", "premise"],
        "labels": ["entailment", "contradiction", "neutral"],
        "metrics": ["accuracy", "f1"],
        "split": "small",
        "rows": {"train": 250, "validation": 56},
        "hub": {
            "repository": "aps/super_glue",
            "config": "cb",
            "revision": TASKS["cb"].hub.revision,  # type: ignore[union-attr]
        },
        "folder": "CB",
    }


def test_tasks_as_a_table(command: Command) -> None:
    lines = command("tasks").out.splitlines()
    for task in (*TASKS.values(), *BUILTIN_TASKS.values()):
        (line,) = (line for line in lines if f"│ {task.name} " in line)
        assert task.benchmark in line
        assert ", ".join(task.metrics) in line
        assert task.size in line


# compacter preview


def test_preview_of_official_files(command: Command, tmp_path: Path) -> None:
    write_official("rte", tmp_path / "GLUE")
    run = command("preview", "--task", "rte", "--data-dir", ".", "--max-length", "8", "--json")
    assert run.json == {
        "task": "rte",
        "split": "train",
        "rows": 2,
        "examples": 2,
        "labels": ["entailment", "not_entailment"],
        "shown": [
            {
                "source": "rte sentence1: A dog barks. sentence2: An animal barks.",
                "target": "entailment",
            },
            {
                "source": "rte sentence1: A dog barks. sentence2: A cat barks.",
                "target": "not_entailment",
            },
        ],
        "lengths": {
            "unit": "words",
            "note": "words, because no --model was named",
            "measured": 2,
            "source": {"min": 9, "median": 9, "p95": 9, "max": 9},
            "target": {"min": 1, "median": 1, "p95": 1, "max": 1},
            "max_length": 8,
            "longer": 2,
        },
    }


def test_preview_for_people(command: Command, tmp_path: Path) -> None:
    write_official("record", tmp_path)
    arguments = ["preview", "--task", "record", "--data-dir", ".", "--max-length", "500"]
    out = command(*arguments).out
    assert "record, train: 1 rows" in out
    assert "source: record query: " in out
    assert "Lengths in words, because no --model was named" in out
    assert "0 of " in out
    assert "sources are longer than 500" in out
    assert command(*arguments, "--rows", "0").out.count("source: ") == 0


def test_preview_with_digits(command: Command, tmp_path: Path) -> None:
    write_official("cb", tmp_path)
    arguments = ["--task", "cb", "--data-dir", ".", "--label-words", "digits", "--json"]
    shown = command("preview", *arguments, "--rows", "2").json["shown"]
    assert [row["target"] for row in shown] == ["0", "1"]


def test_preview_counts_tokens_where_there_is_a_tokenizer(command: Command, tmp_path: Path) -> None:
    write_official("cola", tmp_path)
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained("m")
    arguments = ["preview", "--task", "cola", "--data-dir", "CoLA"]
    lengths = command(*arguments, "--model", "m", "--json").json["lengths"]
    assert (lengths["unit"], lengths["note"]) == ("tokens", "tokens of m")
    # cola sentence : He said " no .
    assert lengths["source"] == {"min": 7, "median": 8, "p95": 8, "max": 8}
    lengths = command(*arguments, "--model", "no/such-model", "--json").json["lengths"]
    assert lengths["unit"] == "words"
    assert "no tokenizer of 'no/such-model' could be loaded" in lengths["note"]


def test_preview_of_own_files(command: Command, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('q,a,ok\n"Who, me?",You.,yes\nWhy?,[b]Because[/b].,no\n')
    own = ["--train-file", "t.csv", "--text-column", "q", "--text-column", "a"]
    arguments = ["preview", *own, "--label-column", "ok", "--validation-file", "t2.csv"]
    answer = command(*arguments, "--json").json
    assert answer["task"] == "custom"
    assert answer["labels"] == ["yes", "no"]
    assert answer["shown"][0] == {"source": "custom q: Who, me? a: You.", "target": "yes"}
    assert "source: custom q: Why? a: [b]Because[/b]." in command(*arguments).out
    given = command(*arguments, "--task", "polite", "--labels", "no, yes", "--json").json
    assert given["labels"] == ["no", "yes"]
    assert given["shown"][0]["source"] == "polite q: Who, me? a: You."
    none = command(*arguments, "--split", "test")
    assert none.code == 0
    assert "There is no such set" in none.out


def test_asking_for_classes_or_for_a_regression(command: Command, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("text,label\none,1\ntwo,2\n")
    own = ["preview", "--train-file", "t.csv", "--text-column", "text", "--validation-file", "v"]
    assert command(*own, "--json").json["labels"] == ["1", "2"]
    assert command(*own, "--classification", "--json").json["labels"] == ["1", "2"]
    assert command(*own, "--regression", "--json").json["labels"] == []


# Bad official files. Each case changes one file of a right folder.


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


# Bad files of the user's own. Each case is a file and options.

GOOD_CSV = b"text,label\none,yes\ntwo,no\n"
BAD_OWN: dict[str, tuple[str, bytes, list[str], list[str]]] = {
    "empty": ("t.csv", b" \n", [], ["t.csv is empty"]),
    "header only": ("t.csv", b"text,label\n", [], ["t.csv has no rows"]),
    "no label column": (
        "t.csv",
        b"text,lable\none,yes\n",
        [],
        ["no column 'label'", "found 'text', 'lable'", "did you mean 'lable'?"],
    ),
    "no text column": (
        "t.csv",
        GOOD_CSV,
        ["--text-column", "txt"],
        ["no column 'txt'", "did you mean 'text'?"],
    ),
    "duplicate columns": (
        "t.csv",
        b"text,label,text\none,yes,two\n",
        [],
        ["names 'text' more than once"],
    ),
    "too few cells": ("t.csv", GOOD_CSV + b"three\n", [], ["line 4 has 1 columns", "expected 2"]),
    "a comma that is not quoted": (
        "t.csv",
        b"text,label\none, two,yes\n",
        [],
        ["line 2 has 3 columns"],
    ),
    "line numbers after a quoted line break": (
        "t.csv",
        b'text,label\n"one\n1",yes\ntwo\n',
        [],
        ["line 4 has 1 columns"],
    ),
    "a quotation mark that is never closed": (
        "t.csv",
        b'text,label\n"one,yes\ntwo,no\n',
        [],
        ["cannot be read", "unexpected end of data"],
    ),
    "a broken quotation": ("t.csv", b'text,label\n"one"x,yes\n', [], ["line 2 cannot be read"]),
    "empty text": ("t.csv", GOOD_CSV + b" ,yes\n", [], ["line 4: the text in 'text' is empty"]),
    "null text": (
        "t.jsonl",
        jsonl({"text": None, "label": "yes"}, {"text": "b", "label": "no"}),
        [],
        ["line 1: the text in 'text' is empty"],
    ),
    "text that is a list": (
        "t.jsonl",
        jsonl({"text": ["a"], "label": "yes"}, {"text": "b", "label": "no"}),
        [],
        ["'text' is ['a']; expected a text"],
    ),
    "empty label": ("t.csv", GOOD_CSV + b"three,\n", [], ["line 4: the label is ''"]),
    "null label": (
        "t.jsonl",
        jsonl({"text": "a", "label": None}),
        [],
        ["line 1: the label is None; expected a label in every row"],
    ),
    "one label": ("t.csv", b"text,label\none,yes\ntwo,yes\n", [], ["only the label 'yes'"]),
    "labels that are none": (
        "t.csv",
        b"text,label\n" + b"".join(b"x,unlike %d\n" % i for i in range(30)),
        [],
        ["30 different values in 30 rows", "'unlike 0'"],
    ),
    "label not in the list": (
        "t.csv",
        GOOD_CSV,
        ["--labels", "yess,no"],
        ["line 2: the label is 'yes'", "expected one of 'yess', 'no'", "did you mean 'yess'?"],
    ),
    "float label of given classes": (
        "t.csv",
        b"text,label\na,0\nb,0.5\n",
        ["--labels", "0,1"],
        ["line 3: the label is '0.5'; expected one of '0', '1'"],
    ),
    "regression on words": ("t.csv", GOOD_CSV, ["--regression"], ["'yes'; expected a number"]),
    "one label in the list": ("t.csv", GOOD_CSV, ["--labels", "yes"], ["expected two or more"]),
    "a label twice in the list": ("t.csv", GOOD_CSV, ["--labels", "a,b,a"], ["all different"]),
    "labels of a regression": (
        "t.csv",
        GOOD_CSV,
        ["--labels", "yes,no", "--regression"],
        ["a regression has no labels"],
    ),
    "text column that is the label column": (
        "t.csv",
        GOOD_CSV,
        ["--text-column", "label"],
        ["'label' is named both as a text column and as the label column"],
    ),
    "a text column twice": (
        "t.csv",
        GOOD_CSV,
        ["--text-column", "text", "--text-column", "text"],
        ["'text' is named twice"],
    ),
    "three text columns": (
        "t.csv",
        GOOD_CSV,
        ["--text-column", "a", "--text-column", "b", "--text-column", "c"],
        ["expected a list of one or two names"],
    ),
    "the training file to validate on": (
        "t.csv",
        GOOD_CSV,
        ["--validation-file", "t.csv"],
        ["both as the training and as the validation file"],
    ),
    "a name with a space": ("t.csv", GOOD_CSV, ["--task", "my task"], ["expected one word"]),
    "the name of a benchmark's task": (
        "t.csv",
        GOOD_CSV,
        ["--task", "rte"],
        ["'rte' is a task of its own benchmark"],
    ),
    "not UTF-8": ("t.csv", b"text,label\ncaf\xe9,yes\n", [], ["is not UTF-8"]),
    "unsupported extension": ("t.xlsx", b"PK", [], ["'.xlsx'", "expected one of .csv, .tsv"]),
    "no extension": ("t", GOOD_CSV, [], ["has the extension ''"]),
    "broken JSON": (
        "t.jsonl",
        jsonl({"text": "a", "label": "b"}) + b"{'text': 1}\n",
        [],
        ["line 2 is no JSON"],
    ),
    "JSON that is one list": (
        "t.jsonl",
        b'[{"text": "a", "label": "b"}]\n',
        [],
        ["expected a JSON object"],
    ),
    "JSON without the label": (
        "t.jsonl",
        jsonl({"text": "a", "label": "b"}, {"text": "c"}),
        [],
        ["line 2: there is no column 'label' (found 'text')"],
    ),
    "no Parquet": ("t.parquet", GOOD_CSV, [], ["t.parquet is no Parquet file"]),
    "too few rows to split": (
        "t.csv",
        b"text,label\na,yes\n",
        ["--labels", "yes,no"],
        ["1 validation rows cannot be split off", "which has 1"],
    ),
}


@pytest.mark.parametrize("kind", BAD_OWN)
def test_bad_files_of_ones_own(kind: str, command: Command, tmp_path: Path) -> None:
    name, content, options, parts = BAD_OWN[kind]
    (tmp_path / name).write_bytes(content)
    if "--text-column" not in options:
        options = [*options, "--text-column", "text"]
    check_refused(command("preview", "--train-file", name, *options), *parts)


def test_parquet_without_the_column(command: Command, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"sentence": ["a"], "label": [1]}), tmp_path / "t.parquet")
    run = command("preview", "--train-file", "t.parquet", "--text-column", "text")
    check_refused(run, "no column 'text' (found 'sentence', 'label')")


@pytest.mark.parametrize("name", ["missing.csv", "folder"])
def test_no_such_file(name: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    run = command("preview", "--train-file", name, "--text-column", "text")
    check_refused(run, name, "expected a file")


def test_a_label_of_the_validation_file_that_training_does_not_know(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_bytes(GOOD_CSV)
    (tmp_path / "v.csv").write_bytes(b"text,label\none,nope\n")
    files = ["--train-file", "t.csv", "--validation-file", "v.csv", "--text-column", "text"]
    run = command("preview", *files, "--split", "validation")
    check_refused(run, "v.csv, line 2: the label is 'nope'", "'yes', 'no'", "did you mean 'no'?")


# Wrong usage


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--task", "rt"], ["no task 'rt'", "did you mean 'rte'?"]),
        (["--data-dir", "."], ["no task is named", "cola"]),
        (["--task", "rte", "--split", "dev"], ["no split 'dev'"]),
        (["--task", "rte", "--label-words", "emoji"], ["'emoji'", "'words' or 'digits'"]),
        (["--task", "rte", "--text-column", "a"], ["text_columns", "train_file"]),
        (["--task", "rte", "--test-file", "a.csv"], ["test_file", "train_file"]),
        (["--train-file", "t.csv"], ["text_columns"]),
        (["--train-file", "t.csv", "--data-dir", "."], ["data_dir and train_file"]),
        (["--task", "rte", "--rows", "-1"], ["--rows"]),
        (["--task", "rte", "--max-length", "0"], ["--max-length"]),
        (["--tsk", "rte"], ["--tsk"]),
    ],
)
def test_wrong_usage(
    arguments: list[str], parts: list[str], command: Command, tmp_path: Path
) -> None:
    write_official("rte", tmp_path)
    if "--task" in arguments and "--data-dir" not in arguments and "file" not in str(arguments):
        arguments = [*arguments, *(["--data-dir", "."] if "--text-column" not in arguments else [])]
    check_refused(command("preview", *arguments), *parts)


def test_the_hub_without_a_network(command: Command) -> None:
    run = command("preview", "--task", "rte")
    check_refused(run, "nyu-mll/glue (rte, train) could not be loaded", "--data-dir DIR")


@pytest.mark.parametrize(
    ("missing", "arguments"),
    [
        ("datasets", ["--task", "rte"]),
        ("pyarrow", ["--train-file", "t.parquet", "--text-column", "text"]),
    ],
)
def test_a_missing_extra_is_named(
    missing: str,
    arguments: list[str],
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "t.parquet").touch()
    for module in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    run = command("preview", *arguments)
    check_refused(run, f"needs {missing}", "pip install 'compacter-peft[train]'")


def test_scoring_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from compacter.errors import ExtraError
    from compacter.tasks import Row, score

    for missing, task, label in (("sklearn", "rte", 1), ("scipy", "stsb", 1.0)):
        with monkeypatch.context() as patch:
            for module in [name for name in sys.modules if name.partition(".")[0] == missing]:
                patch.delitem(sys.modules, module)
            patch.setitem(sys.modules, missing, None)
            with pytest.raises(ExtraError, match=rf"needs {missing}, .*compacter-peft\[train\]"):
                score(TASKS[task], [label, 0], [Row({}, label), Row({}, 0)])

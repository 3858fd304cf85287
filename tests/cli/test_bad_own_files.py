"""A user's own files with something wrong in them. Each case is a file and options."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import Command, check_refused
from official_files import jsonl

pytestmark = pytest.mark.usefixtures("in_empty_folder")

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
    "text that is a number": (
        "t.jsonl",
        jsonl({"text": "a", "label": "yes"}, {"text": 5, "label": "no"}),
        [],
        ["line 2: 'text' is 5; expected a text"],
    ),
    "text that cannot be written": (
        "t.jsonl",
        jsonl({"text": "a\ud800", "label": "yes"}, {"text": "b", "label": "no"}),
        [],
        ["line 1: 'text' holds '\\ud800', half of a character"],
    ),
    "empty label": ("t.csv", GOOD_CSV + b"three,\n", [], ["line 4: the label is ''"]),
    "a label beyond all numbers": (
        "t.jsonl",
        b'{"text": "a", "label": 1' + 400 * b"0" + b"}\n",
        ["--regression"],
        ["line 1", "expected a number"],
    ),
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

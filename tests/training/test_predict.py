"""`compacter.predict`: texts, mappings and files, and what is neither."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import compacter
from answering import make_run, make_run_on_pairs, read_rows, without_model, write_rows
from compacter.errors import CompacterError
from compacter.tasks import TASKS, Task
from compacter.training.inference import as_row

TEXTS = ["red cat, one", "{blue} dog"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return make_run("bert", tmp_path_factory.mktemp("bert"))


@pytest.fixture
def unloadable(run, tmp_path) -> Path:
    """What is told of it is told before the model is loaded."""
    return without_model(run, tmp_path / "unloadable")


def test_a_file_is_answered_as_its_texts(run, tmp_path):
    file = write_rows(tmp_path / "x.tsv", [{"text": text, "more": "1"} for text in TEXTS])
    expected = compacter.predict(run, TEXTS)
    assert compacter.predict(run, file=file) == expected
    assert compacter.predict(run, [{"text": text} for text in TEXTS]) == expected
    assert compacter.predict(run, np.array(TEXTS)) == expected
    assert compacter.predict(run, file=str(file), output=tmp_path / "y.jsonl") == expected
    for line, found in zip(read_rows(tmp_path / "y.jsonl"), expected, strict=True):
        assert line["prediction"] == found.text
        assert line["probabilities"] == found.probabilities


def test_texts_are_written_under_the_name_of_their_column(run, tmp_path):
    found = compacter.predict(run, TEXTS, output=tmp_path / "y.parquet")
    lines = read_rows(tmp_path / "y.parquet")
    assert [line["text"] for line in lines] == TEXTS
    assert [line["score"] for line in lines] == [prediction.score for prediction in found]


def test_no_texts_have_no_answers(run, tmp_path):
    assert compacter.predict(run, [], output=tmp_path / "y.csv") == []
    assert read_rows(tmp_path / "y.csv") == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, r"texts\[1\] is None; expected a text, or an object with text"),
        (5, r"texts\[1\] is 5; expected a text"),
        (float("nan"), r"texts\[1\] is nan; expected a text"),
        (["a"], r"texts\[1\] is \['a'\]; expected a text"),
        (b"a", r"texts\[1\] is b'a'; expected a text"),
        ("", r"texts\[1\]: the text in 'text' is empty \(''\)"),
        ("\n ", r"texts\[1\]: the text in 'text' is empty"),
        ({"text": None}, r"texts\[1\]: the text in 'text' is empty \(None\)"),
        ({"text": 5}, r"texts\[1\]: 'text' is 5; expected a text"),
        ({"words": "a"}, r"texts\[1\]: custom reads text; found words, missing 'text'"),
    ],
)
def test_what_is_no_text(text, told, unloadable):
    with pytest.raises(CompacterError, match=told):
        compacter.predict(unloadable, ["red cat", text])


def test_texts_and_files_that_are_not_as_expected(unloadable, tmp_path):
    for arguments, told in (
        ({}, "texts and file: found none; expected one of them"),
        ({"texts": ["a"], "file": "x.csv"}, "texts and file: found both"),
        ({"texts": "red cat"}, "texts is 'red cat'; expected a list of texts"),
        ({"texts": {"text": "red cat"}}, "expected a list of texts or of mappings"),
        ({"file": tmp_path / "x.csv"}, "x.csv does not exist; expected a file"),
        ({"texts": ["a"], "output": "x.txt"}, "cannot be written as '.txt'"),
    ):
        with pytest.raises(CompacterError, match=told):
            compacter.predict(unloadable, **arguments)


def test_a_text_column_may_have_any_name(tmp_path):
    """Also those that tasks with candidates have."""
    run = make_run_on_pairs(tmp_path)
    row = {"question": "red cat", "answer": "two"}
    more = {"candidates": "a", "entities": 5}
    assert compacter.predict(run, [row]) == compacter.predict(run, [{**row, **more}])
    task = Task(
        "own", "custom", "classes", ("entities",), (("entities",), ()), ("a", "b"), (), "small"
    )
    assert as_row(task, "red cat").fields == {"entities": "red cat"}


def test_what_tasks_with_candidates_read():
    record = {"passage": "Ann saw Bob.", "query": "@placeholder ran.", "entities": ["Ann", "Bob"]}
    row = as_row(TASKS["record"], record)
    assert row.candidates == ("Ann", "Bob")
    assert row.fields.keys() == {"passage", "query"}
    copa = {"premise": "It rained.", "question": "effect", "choice1": "Wet.", "choice2": "Dry."}
    assert as_row(TASKS["copa"], copa).candidates == ("Wet.", "Dry.")

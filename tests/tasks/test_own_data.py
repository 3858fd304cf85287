"""A user's own files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compacter.errors import TaskError
from compacter.tasks import (
    SPLITS,
    Row,
    UserData,
    examples,
    fingerprint,
    load,
    load_split,
    pair,
    parse,
    score,
)
from compacter.tasks.splits import permutation

TEXTS = ['He said "no", twice', "two\nlines", "a\ttab, a comma", " plain ", "Grüße", "six"]
ANSWERS = ["spam", "ham", "ham", "spam", "eggs", "ham"]


def write(path: Path, texts: list[str] = TEXTS, labels: list = ANSWERS, **more: list) -> Path:
    """The same rows in any format."""
    columns = {"text": texts, **more, "label": labels}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    elif path.suffix in (".jsonl", ".ndjson"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            delimiter = "\t" if path.suffix == ".tsv" else ","
            writer = csv.DictWriter(file, list(columns), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    return path


def numbered(count: int) -> list[str]:
    return [f"row {i}" for i in range(count)]


@pytest.mark.parametrize("extension", ["csv", "tsv", "jsonl", "ndjson", "parquet", "CSV"])
def test_every_format_gives_the_same_rows(extension: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"train.{extension}")
    other = write(tmp_path / "validation.jsonl", ["x"], ["eggs"])
    task, splits = load(source=UserData(path, other, text_columns=["text"]))
    assert task.labels == ("spam", "ham", "eggs")
    assert task.metrics == ("accuracy", "f1")
    expected = [
        Row({"text": text}, task.labels.index(label), index=i)
        for i, (text, label) in enumerate(zip(TEXTS, ANSWERS, strict=True))
    ]
    assert splits.train == expected
    assert splits.validation == [Row({"text": "x"}, 2)]
    assert splits.test == []
    assert fingerprint(splits)


def test_a_byte_order_mark_and_spaces_in_the_header(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_bytes(b"\xef\xbb\xbftext, label\r\none,yes\r\n\r\ntwo,no\r\n")
    task, rows = load_split(
        None, UserData(path, path.with_name("v.csv"), text_columns=["text"]), "train"
    )
    assert task.labels == ("yes", "no")
    assert [row.fields["text"] for row in rows] == ["one", "two"]


def test_two_texts_and_a_name(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", ["A?", "C?"], ["no", "yes"], reply=["B.", "D."])
    data = UserData(path, path.with_name("v"), text_columns=("text", "reply"), name="fits")
    task, rows = load_split("fits", data, "train")
    (first, _) = examples(task, rows, train=True)
    assert (first.source, first.target) == ("fits text: A? reply: B.", "no")
    assert examples(task, rows, train=True, label_words="digits")[1].target == "1"
    assert parse(task, "yes") == 1
    found = pair(task, rows[0])
    assert (found.text_a, found.text_b) == ("A?", "B.")
    assert score(task, [0, 1], rows) == {"accuracy": 100.0, "f1": 100.0}


def test_the_f1_of_own_labels_is_the_mean_over_the_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", numbered(4), ["a", "b", "b", "b"])
    task, rows = load_split(None, UserData(path, "v", text_columns=["text"]), "train")
    assert score(task, [1, 1, 1, 1], rows)["f1"] == pytest.approx(100 * (6 / 7) / 2)


def test_labels_may_be_given(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl")
    data = UserData(path, "v", text_columns=["text"], labels=["eggs", "ham", "spam", "tea"])
    task, rows = load_split(None, data, "train")
    assert task.labels == ("eggs", "ham", "spam", "tea")
    assert [row.label for row in rows] == [2, 1, 1, 2, 0, 1]


@pytest.mark.parametrize("extension", ["csv", "jsonl", "parquet"])
def test_whole_numbers_and_truth_values_are_labels(extension: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"t.{extension}", numbered(3), [1, 0, 1])
    assert UserData(path, text_columns=["text"]).task().labels == ("1", "0")
    path = write(tmp_path / f"u.{extension}", numbered(3), [True, False, True])
    assert UserData(path, text_columns=["text"]).task().labels == ("True", "False")


def test_whole_numbers_stored_as_fractions_are_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", numbered(3), [1.0, 0.0, 1.0])
    assert UserData(path, text_columns=["text"]).task().labels == ("1", "0")


@pytest.mark.parametrize("extension", ["csv", "tsv", "jsonl", "parquet"])
def test_fractions_make_a_regression(extension: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"t.{extension}", numbered(3), [1.5, 2.0, -0.25])
    task, rows = load_split(None, UserData(path, "v", text_columns=["text"]), "train")
    assert (task.kind, task.labels, task.num_labels) == ("number", (), 1)
    assert task.metrics == ("pearson", "spearman")
    assert [row.label for row in rows] == [1.5, 2.0, -0.25]
    assert [e.target for e in examples(task, rows, train=True)] == ["1.5", "2", "-0.25"]
    assert score(task, [1.5, 2.0, -0.25], rows)["pearson"] == pytest.approx(100)


def test_asking_for_a_regression_or_for_labels(tmp_path: Path) -> None:
    whole = write(tmp_path / "w.csv", numbered(3), [1, 2, 3])
    assert UserData(whole, text_columns=["text"], regression=True).task().kind == "number"
    broken = write(tmp_path / "b.csv", numbered(3), [1.5, 2.5, 1.5])
    asked = UserData(broken, text_columns=["text"], regression=False).task()
    assert asked.labels == ("1.5", "2.5")


def test_without_a_validation_file_a_tenth_is_split_off(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", numbered(40), ["a", "b"] * 20)
    _, splits = load(source=UserData(path, text_columns=["text"]))
    assert [len(splits[name]) for name in SPLITS] == [36, 4, 0]
    order = permutation(40)
    assert [row.index for row in splits.validation] == order[:4]
    assert [row.index for row in splits.train] == order[4:]
    _, again = load(source=UserData(path, text_columns=["text"]))
    assert again == splits
    _, other = load(source=UserData(path, text_columns=["text"], seed=7, validation_share=0.5))
    assert [row.index for row in other.validation] == permutation(40, 7)[:20]


def test_a_test_file_and_fewer_training_rows(tmp_path: Path) -> None:
    train = write(tmp_path / "t.csv", numbered(40), ["a", "b"] * 20)
    test = write(tmp_path / "e.tsv", ["x", "y"], ["b", "a"])
    data = UserData(train, test=test, text_columns=["text"])
    _, splits = load(source=data, max_train_samples=5, seed=3)
    assert [len(splits[name]) for name in SPLITS] == [5, 4, 2]
    assert [row.label for row in splits.test] == [1, 0]


def test_a_very_long_text(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    path = write(tmp_path / "t.csv", ["x" * 300_000, "y"], ["a", "b"])
    _, rows = load_split(None, UserData(path, "v", text_columns=["text"]), "train")
    assert len(rows[0].fields["text"]) == 300_000
    assert csv.field_size_limit() == before


def test_odd_column_names(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"{0} %s": "A", "entities": "a"}\n{"{0} %s": "B", "entities": "b"}\n')
    data = UserData(path, "v", text_columns=["{0} %s"], label_column="entities")
    task, rows = load_split(None, data, "train")
    assert examples(task, rows, train=True)[0].source == "custom {0} %s: A"


def test_a_name_that_is_not_the_files(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv")
    with pytest.raises(TaskError, match="'rte' and your own files are called 'custom'"):
        load("rte", UserData(path, text_columns=["text"]))

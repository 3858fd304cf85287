"""`compacter predict`: what it reads, what it writes, what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from answering import (
    make_run,
    make_run_on_numbers,
    make_run_on_pairs,
    read_rows,
    without_model,
    write_rows,
)
from commands import Answer, Command, check_refused

ROWS = [
    {"id": "7", "text": "red cat, one", "label": "yes"},
    {"id": "8", "text": 'two "dog"\nblue', "label": "no"},
    {"id": "9", "text": "green\u2028cat", "label": "yes"},
]
TABLES = ("csv", "tsv", "jsonl", "parquet")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> str:
    """An encoder, which has a head over the labels."""
    return str(make_run("bert", tmp_path_factory.mktemp("bert")))


@pytest.fixture(scope="module")
def writing_run(tmp_path_factory) -> str:
    """An encoder-decoder, which writes its labels."""
    return str(make_run("t5", tmp_path_factory.mktemp("t5")))


@pytest.fixture(scope="module")
def pairs_run(tmp_path_factory) -> str:
    return str(make_run_on_pairs(tmp_path_factory.mktemp("pairs")))


def lines(answer: Answer) -> list[dict[str, Any]]:
    assert answer.code == 0, answer.err
    return [json.loads(line) for line in answer.out.split("\n")[:-1]]


def answered(found: dict[str, Any]) -> dict[str, Any]:
    """As in a table, without what was given."""
    shares = found.get("probabilities", {})
    plain = {name: found[name] for name in ("prediction", "score")}
    return plain | {f"probability_{label}": share for label, share in shares.items()}


@pytest.mark.parametrize("extension", [*TABLES, "CSV"])
def test_a_table_is_read_by_its_columns(extension, run, command, tmp_path):
    """Its header is no text, and its other columns do not matter."""
    file = write_rows(tmp_path / f"x.{extension}", ROWS)
    found = lines(command("predict", "--adapter", run, "--file", str(file)))
    assert [line["input"] for line in found] == ROWS
    expected = lines(command("predict", "--adapter", run, *(row["text"] for row in ROWS)))
    assert [line["input"] for line in expected] == [row["text"] for row in ROWS]
    assert [answered(line) for line in found] == [answered(line) for line in expected]


@pytest.mark.parametrize("extension", TABLES)
def test_a_table_of_pairs(extension, pairs_run, command, tmp_path):
    rows = [{"answer": "two", "question": "red cat"}, {"answer": "red", "question": "blue dog"}]
    file = write_rows(tmp_path / f"x.{extension}", rows)
    found = lines(command("predict", "--adapter", pairs_run, "--file", str(file)))
    expected = lines(command("predict", "--adapter", pairs_run, *map(json.dumps, rows)))
    assert found == expected
    assert found[0]["probabilities"].keys() == {"is, cat", "is, dog"}


def test_lines_end_at_line_feeds_alone(run, tmp_path):
    """Of a file as of standard input. Empty lines are passed over."""
    texts = ["red\u2028cat", "two\x0bdog", "one\x85cat\x0c", "cat\rdog", "\ufeffblue", "red red"]
    content = "\r\n\n".join(texts[:3]) + "\n \n" + "\n".join(texts[3:])
    file = tmp_path / "lines.txt"
    file.write_bytes(content.encode())
    base = [sys.executable, "-m", "compacter_cli", "predict", "--adapter", run]
    for arguments, given in (
        (["--file", str(file)], b""),
        ([], content.encode()),
        (["--file", "-"], content.encode()),
    ):
        done = subprocess.run([*base, *arguments], input=given, capture_output=True, check=True)
        found = [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]
        assert [line["input"] for line in found] == texts


def test_probabilities_of_a_head_over_the_labels(run, command):
    for line in lines(command("predict", "--adapter", run, "red cat", "dog dog", "one two")):
        shares = line["probabilities"]
        assert list(shares) == ["yes", "no"] or list(shares) == ["no", "yes"]
        assert sum(shares.values()) == pytest.approx(1, abs=1e-6)
        assert line["prediction"] == max(shares, key=shares.get)
        assert line["score"] == max(shares.values())


def test_text_and_numbers_have_no_probabilities(writing_run, command, tmp_path):
    (found,) = lines(command("predict", "--adapter", writing_run, "red cat one"))
    assert found.keys() == {"input", "prediction", "score"}
    numbers = str(make_run_on_numbers(tmp_path))
    (found,) = lines(command("predict", "--adapter", numbers, "red"))
    assert found.keys() == {"input", "prediction", "score"}
    float(found["prediction"])
    help_text = " ".join(command("predict", "--help").out.split())
    assert "probabilities of all labels" in help_text
    assert "a model that writes text has none" in help_text


@pytest.mark.parametrize("extension", TABLES)
@pytest.mark.parametrize("given", [*TABLES, "txt"])
def test_answers_are_written_beside_what_was_given(given, extension, run, command, tmp_path):
    rows, file = ROWS, tmp_path / f"x.{given}"
    if given == "txt":
        rows = [{"text": "red cat"}, {"text": "green\u2028cat"}]
        file.write_text("".join(f"{row['text']}\n" for row in rows))
    else:
        write_rows(file, rows)
    output = tmp_path / "new" / f"y.{extension}"
    told = command("predict", "--adapter", run, "--file", str(file), "--output", str(output))
    assert (told.code, told.out) == (0, "")
    assert told.err.endswith(f"compacter: wrote {len(rows)} answers to {output}\n")
    expected = [answered(x) for x in lines(command("predict", "--adapter", run, "--file", file))]
    found = read_rows(output)
    assert [{name: line[name] for name in rows[0]} for line in found] == rows
    if extension == "jsonl":
        assert [answered(line) for line in found] == expected
        assert list(found[0]) == [*rows[0], "prediction", "score", "probabilities"]
    else:
        assert list(found[0]) == [*rows[0], *expected[0]]
        for line, right in zip(found, expected, strict=True):
            same = {n: v if n == "prediction" else float(v) for n, v in line.items() if n in right}
            assert same == right
    assert [path.name for path in output.parent.iterdir()] == [output.name]


def test_a_label_with_a_comma_and_a_text_with_a_carriage_return(pairs_run, command, tmp_path):
    rows = [{"question": "red\rcat", "answer": "a\r\nb"}]
    file, output = write_rows(tmp_path / "x.jsonl", rows), tmp_path / "y.csv"
    told = command("predict", "--adapter", pairs_run, "--file", str(file), "--output", str(output))
    assert told.code == 0
    (found,) = read_rows(output)
    assert {name: found[name] for name in rows[0]} == rows[0]
    assert {"probability_is, cat", "probability_is, dog"} <= found.keys()
    assert lines(command("predict", "--adapter", pairs_run, "--file", str(file)))


def parquet_of_many_types(path: Path) -> pa.Table:
    table = pa.table(
        {
            "text": pa.array(["red cat", "blue dog"]).dictionary_encode(),
            "small": pa.array([1, None], pa.int8()),
            "when": pa.array([1_700_000_000_000_000_123, None], pa.timestamp("ns", "UTC")),
            "day": pa.array([19_000, 0], pa.date32()),
            "bytes": pa.array([b"\xff", None]),
            "nested": [{"a": [1, 2]}, {"a": []}],
        }
    )
    table = table.replace_schema_metadata({"pandas": "{}"})
    pq.write_table(table, path)
    return table


def test_columns_of_a_parquet_file_keep_their_types(run, command, tmp_path):
    table = parquet_of_many_types(tmp_path / "x.parquet")
    base = ["predict", "--adapter", run, "--file", str(tmp_path / "x.parquet")]
    assert command(*base, "--output", str(tmp_path / "y.parquet")).code == 0
    found = pq.read_table(tmp_path / "y.parquet")
    kept = found.select(table.column_names)
    assert kept.schema.equals(table.schema)
    assert kept.to_pylist() == table.to_pylist()
    assert found.schema.metadata == table.schema.metadata
    assert found.schema.field("score").type == pa.float64()


def test_values_that_json_and_csv_have_no_word_for_are_texts(run, command, tmp_path):
    table = parquet_of_many_types(tmp_path / "x.parquet")
    base = ["predict", "--adapter", run, "--file", str(tmp_path / "x.parquet")]
    first, second = lines(command(*base))
    assert first["input"]["nested"] == {"a": [1, 2]}
    assert first["input"]["day"] == str(table.to_pylist()[0]["day"])
    assert datetime.fromisoformat(first["input"]["when"][:26] + "+00:00").tzinfo == UTC
    assert second["input"]["small"] is None
    assert command(*base, "--output", str(tmp_path / "y.csv")).code == 0
    first, second = read_rows(tmp_path / "y.csv")
    assert (first["small"], second["small"]) == ("1", "")
    assert json.loads(first["nested"]) == {"a": [1, 2]}


BAD_FILES: dict[str, tuple[str, bytes, list[str]]] = {
    "no such column": (
        "x.csv",
        b"id,txt,label\n1,red cat,yes\n",
        ["x.csv: there is no column 'text' (found 'id', 'txt', 'label'); expected 'text'"],
    ),
    "no such column in Parquet": ("x.parquet", b"", ["no column 'text' (found 'words')"]),
    "no such key": ("x.jsonl", b'{"text": "a"}\n\n{"t": "b"}\n', ["x.jsonl, line 3: there is no"]),
    "header only": ("x.csv", b"text\n", ["x.csv has no rows; expected rows"]),
    "empty": ("x.csv", b"", ["x.csv is empty"]),
    "empty lines": ("x.txt", b"\n \n", ["x.txt is empty"]),
    "ragged": ("x.csv", b"text,label\na,b,c\n", ["x.csv, line 2 has 3 columns; expected 2"]),
    "empty text": (
        "x.csv",
        b'text,label\n"a\nb",yes\n  ,no\n',
        ["x.csv, line 4: the text in 'text' is empty ('  '); expected a text"],
    ),
    "null": (
        "x.jsonl",
        b'{"text": null}\n',
        ["x.jsonl, line 1: the text in 'text' is empty (None"],
    ),
    "list": ("x.jsonl", b'{"text": ["a"]}\n', ["line 1: 'text' is ['a']; expected a text"]),
    "object": ("x.jsonl", b'{"text": {"a": 1}}\n', ["'text' is {'a': 1}; expected a text"]),
    "number": (
        "x.jsonl",
        b'{"text": "a"}\n{"text": 5}\n',
        ["line 2: 'text' is 5; expected a text"],
    ),
    "truth": ("x.jsonl", b'{"text": true}\n', ["'text' is True; expected a text"]),
    "null in a line": ("x.txt", b'a\n{"text": null}\n', ["x.txt, line 2: the text in 'text' is"]),
    "no object in a line": ("x.txt", b"a\n{b\n", ["x.txt, line 2 is not a JSON object"]),
    "half of a character": ("x.jsonl", b'{"text": "a\\ud800"}\n', ["'text' holds '\\ud800', half"]),
    "not UTF-8": ("x.txt", b"a\n\xff\n", ["x.txt is not UTF-8: byte 2 is 0xff"]),
    "no text": ("x.bin", b"a\0b", ["x.bin is no text file"]),
    "no Parquet": ("y.parquet", b"text", ["y.parquet is no Parquet file"]),
}


@pytest.mark.parametrize("case", BAD_FILES)
@pytest.mark.usefixtures("in_empty_folder")
def test_what_cannot_be_answered_is_told_before_the_model_is_loaded(case, run, command, tmp_path):
    name, content, parts = BAD_FILES[case]
    if content:
        Path(name).write_bytes(content)
    elif name == "x.parquet":
        pq.write_table(pa.table({"words": ["a"]}), name)
    else:
        Path(name).touch()
    other = str(without_model(Path(run), tmp_path / "run"))
    output = ["--output", "answers.csv"]
    check_refused(command("predict", "--adapter", other, "--file", name, *output), *parts)
    assert not Path("answers.csv").exists()


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "text 2: the text in 'text' is empty ('')"),
        (" \t", "text 2: the text in 'text' is empty"),
        ('{"text": null}', "text 2: the text in 'text' is empty (None)"),
        ('{"text": 5}', "text 2: 'text' is 5; expected a text"),
        ('{"words": "a"}', "text 2: custom reads text; found words, missing 'text'"),
        ("{", "text 2 is not a JSON object"),
        (b"\xff", "text 2: 'text' holds '\\udcff', half of a character"),
    ],
)
def test_arguments_that_are_no_texts(text, part, run, command: Command, tmp_path):
    other = str(without_model(Path(run), tmp_path / "run"))
    check_refused(command("predict", "--adapter", other, "red cat", os.fsdecode(text)), part)


def test_one_text_for_a_run_on_pairs(pairs_run, command, tmp_path):
    other = str(without_model(Path(pairs_run), tmp_path / "run"))
    (tmp_path / "x.txt").write_text("one\n")
    told = command("predict", "--adapter", other, "--file", str(tmp_path / "x.txt"))
    check_refused(told, "x.txt, line 1: custom reads 2 texts (question, answer) and one was given")
    write_rows(tmp_path / "x.csv", [{"question": "a", "anwser": "b"}])
    told = command("predict", "--adapter", other, "--file", str(tmp_path / "x.csv"))
    check_refused(
        told, "no column 'answer'", "expected 'question', 'answer'; did you mean 'anwser'"
    )


def test_nothing_is_written_where_the_answers_do_not_fit(run, command, tmp_path):
    other = without_model(Path(run), tmp_path / "run")
    file = write_rows(tmp_path / "x.csv", ROWS)
    before = file.read_bytes()
    (tmp_path / "link.csv").symlink_to(file)
    (tmp_path / "folder.csv").mkdir()
    for name, part in (
        ("x.csv", "is the file that is to be answered; expected another file"),
        ("link.csv", "is the file that is to be answered"),
        ("run/../x.csv", "is the file that is to be answered"),
        ("y.txt", "cannot be written as '.txt'; expected a file that ends with .csv, .tsv, .jsonl"),
        ("y", "cannot be written as 'y'"),
        ("folder.csv", "folder.csv' is a folder; expected a file for the answers"),
        ("x.csv/y.csv", "x.csv' is a file; expected a folder to write to"),
    ):
        output = ["--output", str(tmp_path / name)]
        told = command("predict", "--adapter", str(other), "--file", str(file), *output)
        check_refused(told, part)
    assert file.read_bytes() == before
    names = {"x.csv", "link.csv", "folder.csv", "run"}
    assert {path.name for path in tmp_path.iterdir()} == names


@pytest.mark.parametrize("name", ["prediction", "score", "probabilities", "probability_no"])
def test_a_column_of_the_name_of_an_answers(name, run, command, tmp_path):
    other = without_model(Path(run), tmp_path / "run")
    file = write_rows(tmp_path / "x.csv", [{"text": "a", name: "b"}])
    output = tmp_path / "y.csv"
    arguments = ["predict", "--adapter", str(other), "--file", str(file), "--output", str(output)]
    check_refused(command(*arguments), f"there is a column {name!r} already", "another name")
    assert not output.exists()


def test_values_of_several_types_have_no_column_in_parquet(run, command, tmp_path):
    other = without_model(Path(run), tmp_path / "run")
    file = write_rows(tmp_path / "x.jsonl", [{"text": "a", "b": 1}, {"text": "a", "b": "c"}])
    output = ["--output", str(tmp_path / "y.parquet")]
    told = command("predict", "--adapter", str(other), "--file", str(file), *output)
    check_refused(told, "the column 'b' cannot be written", "expected values of one type")


def test_answers_that_are_there_stay_until_there_are_new_ones(run, command, tmp_path):
    output = tmp_path / "y.csv"
    output.write_text("text,prediction\na,b\n")
    arguments = ["red cat", "--output", str(output)]
    other = str(without_model(Path(run), tmp_path / "run"))
    assert command("predict", "--adapter", other, *arguments).code == 2
    assert output.read_text() == "text,prediction\na,b\n"
    assert command("predict", "--adapter", run, *arguments).code == 0
    assert [row["text"] for row in read_rows(output)] == ["red cat"]

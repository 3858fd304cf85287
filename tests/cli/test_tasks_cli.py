"""`compacter tasks` and `compacter preview`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from commands import Command, check_refused
from compacter.tasks import BUILTIN_TASKS, TASKS
from official_files import write_official

pytestmark = pytest.mark.usefixtures("in_empty_folder")


# compacter tasks


@pytest.mark.parametrize("arguments", [["tasks"], ["tasks", "--json"], ["preview", "--help"]])
def test_answers_without_importing_torch(arguments: list[str]) -> None:
    code = f"""
import sys
from compacter_cli import main
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
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "cola": 1}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained("m")
    arguments = ["preview", "--task", "cola", "--data-dir", "CoLA"]
    lengths = command(*arguments, "--model", "m", "--json").json["lengths"]
    assert (lengths["unit"], lengths["note"]) == ("tokens", "tokens of m")
    # cola sentence : He said " no .
    assert lengths["source"] == {"min": 7, "median": 8, "p95": 8, "max": 8}
    check_refused(
        command(*arguments, "--model", "no/such-model"),
        "the tokenizer of 'no/such-model' cannot be loaded",
    )


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

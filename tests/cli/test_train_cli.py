"""`compacter train`, `evaluate`, `predict`, `compare`, and 40 kinds of bad input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import compacter
from tiny_tasks import recipe_values

COMMAND = [sys.executable, "-m", "compacter_cli"]


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> dict[str, Any]:
    settings = {"method": "compacter", "bottleneck": 16, "seed": 1}
    return recipe_values("t5", tmp_path_factory.mktemp("base"), **settings)


@pytest.fixture(scope="module")
def finished(base, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    compacter.train(output=folder, **base)
    return folder


def flags(values: dict[str, Any], **others: Any) -> list[str]:
    found: list[str] = []
    for name, value in {**values, **others}.items():
        if name == "text_columns":
            for column in value:
                found += ["--text-column", column]
        elif value is not None:
            found += [f"--{name.replace('_', '-')}", str(value)]
    return found


def test_train_prints_parameters_first_and_a_table_last(base, tmp_path, command):
    code, out, err = command("train", *flags(base, epochs=1), "--output", str(tmp_path / "run"))
    assert code == 0
    assert err.startswith("compacter on ")
    assert "2,752 of 166,016 parameters are trained (1.6577%)" in err
    assert "steps/s" in err
    assert "accuracy" in out
    assert str(tmp_path / "run") in out


def test_train_from_a_file_with_flags_and_json(base, tmp_path, command):
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump({**base, "text_columns": ["text"], "epochs": 9}))
    more = ["--epochs", "1", "--output", str(tmp_path / "run"), "--json"]
    code, out, _ = command("train", str(file), *more)
    assert code == 0
    assert json.loads(out)["recipe"]["epochs"] == 1


def test_evaluate_and_predict(finished, command, tmp_path):
    code, out, _ = command("evaluate", "--adapter", str(finished), "--json")
    assert code == 0
    assert json.loads(out)["accuracy"] > 90
    code, out, _ = command("predict", "--adapter", str(finished), "red cat one two one")
    assert code == 0
    answer = json.loads(out)
    assert (answer["input"], answer["prediction"]) == ("red cat one two one", "yes")
    assert 0 < answer["score"] <= 1
    lines = tmp_path / "lines.txt"
    lines.write_text('red red dog one one\n{"text": "one cat two two two"}\n')
    code, out, _ = command("predict", "--adapter", str(finished), "--file", str(lines))
    assert [json.loads(x)["prediction"] for x in out.splitlines()] == ["no", "yes"]


def test_predict_from_standard_input(finished):
    result = subprocess.run(
        [*COMMAND, "predict", "--adapter", str(finished)],
        input="red red dog one one\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(result.stdout)["prediction"] == "no"


def test_compare_gives_each_method_its_own_settings(base, tmp_path, command):
    names = "full,compacter++,bitfit,prompt-tuning-r"
    code, out, _ = command("compare", *flags(base, method=None, epochs=1), "--methods", names,
        "--output", str(tmp_path), "--json",
    )  # fmt: skip
    assert code == 0
    rows = json.loads(out)
    assert [row["method"] for row in rows] == names.split(",")
    assert rows[0]["percent"] == 100.0
    assert rows[1]["recipe"]["bottleneck"] == 16
    assert rows[2]["recipe"]["bottleneck"] is None


def test_ready_recipes_are_listed(command):
    code, out, _ = command("recipes")
    assert code == 0
    assert "glue-t5-base" in out
    code, out, _ = command("recipes", "--json")
    for entry in json.loads(out):
        assert Path(entry["file"]).name == f"{entry['recipe']}.yaml"
        assert entry["about"]


BAD: dict[str, tuple[list[str], str]] = {
    "unknown flag": (["train", "--learning-rat", "1"], "No such option"),
    "flag without value": (["train", "--epochs"], "requires an argument"),
    "no number": (["train", "--epochs", "many"], "should be a valid integer"),
    "no float": (["train", "--learning-rate", "fast"], "should be a valid number"),
    "zero epochs": (["train", "--epochs", "0"], "epochs=0 does not fit"),
    "negative rate": (["train", "--learning-rate", "-1"], "learning_rate=-1.0 does not fit"),
    "zero batch": (["train", "--batch-size", "0"], "batch_size=0 does not fit"),
    "tiny length": (["train", "--max-length", "2"], "max_length=2 does not fit"),
    "negative seed": (["train", "--seed", "-3"], "seed=-3 does not fit"),
    "huge seed": (["train", "--seed", "4294967296"], "seed=4294967296 does not fit"),
    "methods twice": (["compare", "--methods", "full,full"], "method 'full' is named twice"),
    "resume and overwrite": (["train", "--resume", "--overwrite"], "are both given"),
    "bad label words": (["train", "--label-words", "runes"], "label_words='runes' does not fit"),
    "bad quantize": (["train", "--quantize", "2bit"], "quantize='2bit' does not fit"),
    "no recipe": (["train", "nothing.yaml"], "cannot be read"),
    "no ready recipe": (["train", "demos"], "did you mean 'demo'"),
    "unknown report": (["train", "--report-to", "paper"], "report_to='paper' is unknown"),
    "no jobs": (["compare", "--jobs", "0"], "--jobs"),
    "unknown task": (["train", "--task", "rtee"], "did you mean 'rte'"),
    "unknown method": (["train", "--method", "lora"], "there is no method 'lora'"),
    "data twice": (
        ["train", "--task", "rte", "--data-dir", "x", "--train-file", "y.csv"],
        "data_dir and train_file are both given",
    ),
    "no text column": (["train", "--train-file", "y.csv"], "train_file needs text_columns"),
    "stray test file": (["train", "--task", "rte", "--test-file", "y.csv"], "no train_file"),
    "no folder of data": (["train", "--task", "rte", "--data-dir", "nowhere"], "nowhere"),
    "no methods": (["compare", "--methods", " , "], "--methods is empty"),
    "compare unknown": (["compare", "--methods", "full,nope"], "there is no method 'nope'"),
    "no adapter": (["evaluate", "--adapter", "nowhere"], "holds no result.json"),
    "no adapter flag": (["evaluate"], "Missing option"),
    "predict nowhere": (["predict", "--adapter", "nowhere", "text"], "holds no result.json"),
    "predict no file": (["predict", "--adapter", "x", "--file", "none.txt"], "cannot be read"),
    "predict twice": (["predict", "--adapter", "x", "text", "--file", "y"], "both given"),
    "unknown command": (["trian"], "No such command"),
    "stray argument": (["evaluate", "--adapter", "x", "extra"], "unexpected extra argument"),
}

BAD_WITH_DATA: dict[str, tuple[dict[str, Any], str]] = {
    "no such model": ({"model": "nowhere/at-all"}, "cannot be loaded"),
    "no such gguf": ({"model": "nowhere.gguf"}, "there is no file 'nowhere.gguf'"),
    "builtin model": ({"model": "builtin/maxilm"}, "builtin/minilm"),
    "n that divides nothing": ({"n": 3}, "n=3 does not divide"),
    "too many layers dropped": ({"drop_layers": 5}, "drop_layers=5 does not fit"),
    "setting of another method": ({"num_tokens": 5}, "compacter has no setting 'num_tokens'"),
    "rank of a dense adapter": ({"method": "adapter", "rank": 2}, "has no setting 'rank'"),
    "unknown activation": ({"activation": "gelou"}, "activation='gelou' is unknown"),
    "small intrinsic dim": (
        {"method": "intrinsic-said", "bottleneck": None, "intrinsic_dim": 9},
        "intrinsic_dim=9 is too small",
    ),
    "missing column": ({"text_columns": ["words"]}, "words"),
    "missing label": ({"label_column": "class"}, "class"),
    "same column": ({"text_columns": ["text", "text"]}, "twice"),
    "text is label": ({"text_columns": ["label"]}, "both as a text column and as the label"),
    "full and quantised": (
        {"method": "full", "bottleneck": None, "quantize": "8bit"},
        "quantize='8bit' freezes the base model, and the method is 'full'",
    ),
    "dropout of one": ({"dropout": 1}, "dropout=1.0 does not fit"),
    "three columns": ({"text_columns": ["a", "b", "c"]}, "one or two"),
    "name of a task": ({"task": "rte"}, "is a task of its own benchmark"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.usefixtures("in_empty_folder")
def test_bad_input(case, command, tmp_path):
    arguments, message = BAD[case]
    code, out, err = command(*arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert out == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("case", BAD_WITH_DATA)
@pytest.mark.usefixtures("in_empty_folder")
def test_bad_input_with_good_data(case, base, command, tmp_path):
    settings, message = BAD_WITH_DATA[case]
    code, _, err = command("train", *flags({**base, **settings}))
    assert code == 2
    assert message in err.splitlines()[-1]
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("in_empty_folder")
def test_quantising_without_its_library(base, command, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    code, _, err = command("train", *flags({**base, "quantize": "8bit"}))
    assert code == 2
    assert err.splitlines()[-1].endswith(
        "quantize='8bit' needs bitsandbytes, part of the extra 'quantised': "
        "pip install 'compacter-peft[quantised]'"
    )
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()


BAD_FILES: dict[str, tuple[str, str]] = {
    "empty": ("", "empty"),
    "header only": ("text,label\n", "no rows"),
    "one label": ("text,label\nred cat,yes\nred cat,yes\n", "holds only the label 'yes'"),
    "ragged": ("text,label\nred cat,yes,no\n", "2"),
    "empty text": ("text,label\n,yes\nred dog,no\n", "empty"),
}


@pytest.mark.parametrize("case", BAD_FILES)
@pytest.mark.usefixtures("in_empty_folder")
def test_bad_files(case, base, command, tmp_path):
    content, message = BAD_FILES[case]
    (tmp_path / "bad.csv").write_text(content)
    code, _, err = command("train", *flags({**base, "train_file": "bad.csv"}))
    assert code == 2
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()


def test_at_least_forty_kinds():
    assert len(BAD) + len(BAD_WITH_DATA) + len(BAD_FILES) >= 40


def test_existing_folders_are_kept(base, finished, command, tmp_path):
    code, _, err = command("train", *flags(base), "--output", str(finished))
    assert code == 2
    assert "holds a finished run" in err
    code, _, err = command("evaluate", "--adapter", str(finished), "--split", "dev")
    assert code == 2
    assert "split 'dev' is unknown; choose one of train, validation, test" in err


def test_an_exit_code_of_a_real_process(tmp_path):
    result = subprocess.run(
        [*COMMAND, "train", "--epochs", "0"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert result.returncode == 2
    assert result.stderr.startswith("compacter: epochs=0 does not fit")

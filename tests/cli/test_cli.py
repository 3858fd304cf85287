"""The command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import BertConfig

import compacter
from commands import Answer, Command, check_refused
from compacter.methods import METHODS
from compacter.paper import counts, tables


def real_command(*arguments: str) -> Answer:
    """Run the installed `compacter` as a person would."""
    result = subprocess.run(
        [Path(sys.executable).with_name("compacter"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    return Answer(result.returncode, result.stdout, result.stderr)


# Commands that must be quick


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--version"], f"compacter {compacter.__version__}\n"),
        (["--help"], "params"),
        (["params", "--help"], "--breakdown"),
        (["report", "--help"], "--best-of-seeds"),
        (["methods"], "compacter++"),
        (["methods", "--json"], '"compacter++"'),
    ],
)
def test_answers_without_importing_torch(arguments: list[str], expected: str) -> None:
    code = f"""
import sys
from compacter_cli import main
sys.argv = ["compacter", *{arguments}]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
heavy = {{"torch", "peft", "transformers", "numpy"}} & set(sys.modules)
assert not heavy, heavy
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert expected in result.stdout


def test_methods_as_json(command: Command) -> None:
    rows = command("methods", "--json").json
    assert [row["method"] for row in rows] == list(METHODS)
    for row in rows:
        assert set(row) == {"method", "title", "trains", "settings", "paper_percent_t5_base"}
    paper = {row["method"]: row["trained_percent"] for row in tables()["glue_t5_base"]}
    assert {row["method"]: row["paper_percent_t5_base"] for row in rows} == paper


def test_methods_as_a_table(command: Command) -> None:
    lines = command("methods").out.splitlines()
    for row in tables()["glue_t5_base"]:
        (line,) = (line for line in lines if f" {row['method']} " in line)
        assert line.rstrip(" │").endswith(f" {row['trained_percent']:g}")


# Counts


def _label(row: dict[str, Any]) -> str:
    return f"{row['method']} n={row['n']}" if "n" in row else row["method"]


def _check_against_paper_counts(rows: list[dict[str, Any]], model: str, tasks: int) -> None:
    expected = counts()["models"][model]
    assert {_label(row) for row in rows} == set(expected["methods"])
    assert len(rows) == len(expected["methods"])
    for row in rows:
        figures = expected["methods"][_label(row)]
        assert row["tasks"] == tasks
        assert row["base"] == expected["base"], row
        assert row["trainable"] == figures["trainable"], row
        assert row["percent"] == figures["percent"], row
        assert row["total_multiple"] == figures[f"total_multiple_{tasks}_tasks"], row
        if METHODS[row["method"]].family == "adapter":
            assert row["bottleneck"] == expected["bottleneck"]


@pytest.mark.parametrize("tasks", [8, 6])
def test_params_of_t5_small_are_those_of_the_paper(command: Command, tasks: int) -> None:
    rows = command("params", "--model", "t5-small", "--tasks", str(tasks), "--json").json
    _check_against_paper_counts(rows, "t5-small", tasks)


def test_params_of_t5_base_are_those_of_the_paper_for_superglue(command: Command) -> None:
    rows = command("params", "--model", "google-t5/t5-base", "--tasks", "6", "--json").json
    _check_against_paper_counts(rows, "t5-base", tasks=6)
    paper = {_label(row): row for row in tables()["superglue_t5_base"]}
    for row in rows:
        if _label(row) in paper:
            assert row["paper"] == {
                key: paper[_label(row)][key] for key in ("trained_percent", "total_multiple")
            }


def test_breakdown_of_t5_base(command: Command) -> None:
    """Appendix B's shares and section 4's formulas, beside the counts (t5-base is the default)."""
    answer = command("params", "--breakdown", "--json").json
    assert set(answer) == {"methods", "formulas"}
    _check_against_paper_counts(answer["methods"], "t5-base", tasks=8)

    rows = {_label(row): row for row in answer["methods"]}
    norms = counts()["models"]["t5-base"]["layer_norms"]
    for label, shares in {
        "compacter n=4": (28.49, 23.51),
        "compacter++ n=4": (44.01, 18.15),
        "phm-adapter n=4": (8.63, 7.12),
    }.items():
        parts = rows[label]["breakdown"]
        assert (parts["layer_norms_percent"], parts["biases_percent"]) == shares
    for row in answer["methods"]:
        if parts := row.get("breakdown"):
            assert parts["layer_norms"] == norms
            names = ("layer_norms", "biases", "weights", "slow_weights")
            assert sum(parts[name] for name in names) == row["trainable"], row
        else:
            assert METHODS[row["method"]].family != "adapter"
    assert rows["compacter n=8"]["breakdown"]["slow_weights"] == 8**3
    assert rows["phm-adapter n=4"]["breakdown"]["slow_weights"] == 24 * 2 * 2 * 4**3
    assert rows["adapter"]["breakdown"]["slow_weights"] == 0

    k, d, layers = 768, 24, 24
    assert [f["n"] for f in answer["formulas"]] == [4, 8, 12]
    assert [f["kd > n^4"] for f in answer["formulas"]] == [True, True, False]
    for formulas in answer["formulas"]:
        n = formulas["n"]
        assert (formulas["k"], formulas["d"], formulas["L"]) == (k, d, layers)
        assert formulas["adapter"] == 2 * layers * 2 * k * d
        assert formulas["phm-adapter"] == 4 * layers * (k * d // n + n**3)
        assert formulas["compacter"] == 4 * layers * (k + d) + n**3
        # the formulas are what the methods have, without norms and biases
        for name in ("adapter", "phm-adapter", "compacter"):
            parts = rows[name if name == "adapter" else f"{name} n={n}"]["breakdown"]
            assert formulas[name] == parts["weights"] + parts["slow_weights"]


def test_tables_have_the_figures_of_the_paper_beside_ours(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, in a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    text = command("params", "--model", "t5-base", "--breakdown").out
    expected = {
        "compacter++ 4 24 104,704 0.0470 0.047 1.0020x 1.002",
        "phm-adapter 12 24 398,976 0.1790 0.179 1.0126x 1.013",
        "intrinsic-said 20,000 0.0090 0.009 1.0007x 1.001",
        "full 222,882,048 100.0000 100 8.0000x 8",
        "compacter++ 4 47,616 44.01 19,008 18.15 38,016 64",
        "12 1,769,472 313,344 77,760 no: 18,432 and 20,736",
        "4 1,769,472 448,512 76,096 yes: 18,432 and 256",
    }
    assert expected <= {" ".join(line.split()) for line in text.splitlines()}
    assert "t5-base: 222,882,048 parameters" in text
    assert "total for" in text
    assert "8 tasks" in text


@pytest.mark.parametrize(
    ("model", "base"),
    [("t5-large", 737_639_424), ("t5-3b", 2_851_569_664), ("t5-11b", 11_307_292_672)],
)
def test_params_of_the_large_models(
    command: Command, monkeypatch: pytest.MonkeyPatch, model: str, base: int
) -> None:
    monkeypatch.setattr("compacter.methods.counting.N_CHOICES", (4,))  # one n, to save time
    rows = {_label(row): row for row in command("params", "--model", model, "--json").json}
    assert {row["method"] for row in rows.values()} == set(METHODS)
    assert {row["base"] for row in rows.values()} == {base}
    assert rows["intrinsic-said"]["trainable"] == 20_000
    assert rows["prompt-tuning-r"]["trainable"] == 100 * 1024
    norms = (2 * 24 + 3 * 24 + 2) * 1024
    one = 2 * (1024 + 32) + 1024 + 32  # s and t of down and up, and their biases
    assert rows["compacter++ n=4"]["trainable"] == norms + 48 * one + 4**3
    assert rows["compacter++ n=4"]["paper"] is None


def test_params_of_a_folder(command: Command, tmp_path: Path) -> None:
    """A folder that holds a configuration and no weights; five layers cannot be dropped of two."""
    BertConfig(
        vocab_size=96,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
        num_labels=3,
        architectures=["BertForSequenceClassification"],
    ).save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]

    run = command("params", "--model", str(tmp_path), "--json")
    rows = {row["method"]: row for row in run.json}
    assert set(rows) == set(METHODS) - {"adapter-drop"}
    assert {row["paper"] for row in rows.values()} == {None}
    # d = 32 / 32 = 1; norms: embeddings and two per layer, each a weight and a bias
    adapters = 4 * (2 * 32 + 1 + 32)
    assert rows["adapter"]["trainable"] == 5 * 2 * 32 + adapters
    assert rows["adapter"]["head"] == 3 * 32 + 3
    assert rows["full"]["trainable"] == rows["full"]["base"]
    table = command("params", "--model", str(tmp_path))
    assert table.code == 0
    assert f"{rows['full']['base']:,}" in table.out


# Bad input: one line, exit code 2


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["params", "--tasks", "0"], ["--tasks", "1", "--help"]),
        (["params", "--tasks", "many"], ["--tasks", "integer"]),
        (["params", "--modle", "t5-base"], ["--modle"]),
        (["params", "t5-base"], ["t5-base", "unexpected"]),
        (["parms"], ["parms", "--help"]),
    ],
)
def test_wrong_usage(command: Command, arguments: list[str], parts: list[str]) -> None:
    check_refused(command(*arguments), *parts)


def test_a_folder_without_a_configuration(command: Command, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    run = command("params", "--model", str(tmp_path), "--json")
    check_refused(run, str(tmp_path), "no config.json", "notes.txt", "save_pretrained")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('{"model_type": "abacus"}', "abacus"),
        ("5", "does not describe a model"),
        ('{"model_type": "gpt2", "n_embd": -3}', "cannot be built from the configuration"),
    ],
)
def test_a_configuration_that_is_none(
    command: Command, tmp_path: Path, text: str, part: str
) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    check_refused(command("params", "--model", str(tmp_path)), part)


def test_an_unknown_model_of_a_real_command() -> None:
    check_refused(real_command("params", "--model", "t5-bse"), "'t5-bse'", "did you mean 't5-base'")


def test_an_unknown_command_of_a_real_command() -> None:
    check_refused(real_command("trian"), "trian")


def test_an_unknown_option_of_a_real_command() -> None:
    check_refused(real_command("methods", "--jsn"), "--jsn")


def test_no_arguments_show_the_help(command: Command) -> None:
    run = command()
    assert "Usage: compacter" in run.out + run.err
    assert "Traceback" not in run.err

"""`compacter bench`: JSON, tables, figures, and bad input."""

from __future__ import annotations

import errno
import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from commands import Command
from compacter.bench import measure
from compacter.methods import METHODS
from tiny_models import TINY

QUICK = [
    "--batch", "2", "--length", "6", "--target-length", "3", "--new-tokens", "2", "--rounds", "1",
    "--device", "cpu", "--intrinsic-dim", "300", "--num-tokens", "5",
]  # fmt: skip
FEW = ["--methods", "compacter++,bitfit"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The configuration of a tiny T5."""
    folder = tmp_path_factory.mktemp("t5")
    tiny = TINY["t5"]()
    tiny.config.architectures = [type(tiny).__name__]
    tiny.config.save_pretrained(folder)
    return str(folder)


def test_json_has_the_parameters_of_params(model: str, command: Command):
    """The same settings, so the same column: bench and params count one thing in one way."""
    code, out, err = command("bench", "--model", model, *QUICK, "--json")
    assert code == 0
    assert err.startswith("compacter: left out adapter-drop: ")
    rows = json.loads(out)["methods"]
    assert [row["method"] for row in rows] == [n for n in METHODS if n != "adapter-drop"]
    code, out, _ = command("params", "--model", model, "--json")
    params = {(row["method"], row.get("n")): row for row in json.loads(out)}
    for row in rows:
        if row["method"] not in ("intrinsic-said", "prompt-tuning-r", "prompt-tuning-t"):
            same = params[row["method"], row["n"]]
            assert (row["trainable"], row["percent"]) == (same["trainable"], same["percent"])


def test_tables_for_people(model: str, command: Command, monkeypatch: pytest.MonkeyPatch):
    """Nothing is cut in a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = command("bench", "--model", model, *QUICK, *FEW)
    assert (code, err) == (0, "")
    assert "\N{HORIZONTAL ELLIPSIS}" not in out
    lines = [line for line in out.splitlines() if "compacter++" in line]
    assert len(lines) == 4  # steps, epochs, memory, batches
    assert lines[0].endswith("-26.5")  # Table 3's time of Compacter++
    assert lines[3].endswith("-29.6")  # and its memory, divided by full fine-tuning's
    assert "optimiser" in out
    assert "fits 24 GB" in out


def test_a_smaller_budget_gives_a_smaller_batch(model: str, command: Command):
    batches = []
    for budget in ("2MB", "4MB"):
        more = ["--memory-budget", budget, "--json"]
        code, out, _ = command("bench", "--model", model, *QUICK, *FEW, *more)
        assert code == 0
        batches.append([row["memory"]["largest_batch"] for row in json.loads(out)["methods"]])
    assert all(0 < small < large for small, large in zip(*batches, strict=True))


def test_flags_win_over_a_preset(model: str, command: Command, monkeypatch: pytest.MonkeyPatch):
    seen = []

    def measured(settings: Any, **others: Any) -> Any:
        seen.append(settings)
        return measure(settings, **others)

    monkeypatch.setattr("compacter.bench.measure", measured)
    flags = ["--preset", "table3", "--model", model, "--bottleneck", "8", "--json"]
    code, out, _ = command("bench", *QUICK, *FEW, *flags)
    assert code == 0
    settings = {"bottleneck": 8, "n": 4, "num_tokens": 5, "intrinsic_dim": 300}
    assert json.loads(out)["settings"] == settings
    assert (seen[0].model, seen[0].task, seen[0].memory_budget) == (model, "mnli", 24 * 10**9)


@pytest.mark.parametrize("ending", ["svg", "html", "png"])
def test_figures(model: str, command: Command, tmp_path: Path, ending: str):
    scores = tmp_path / "scores.json"
    rows = [{"method": "compacter++", "score": 86.47}, {"method": "bitfit", "score": 84.97}]
    scores.write_text(json.dumps([*rows, {"method": "full", "score": None}]))
    file = tmp_path / f"figure.{ending}"
    flags = ["--figure", str(file), "--scores", str(scores), "--json"]
    code, out, err = command("bench", "--model", model, *QUICK, *FEW, *flags)
    assert code == 0
    assert err == f"compacter: wrote {file}\n"
    assert len(json.loads(out)["methods"]) == 3
    if ending == "png":
        assert file.read_bytes().startswith(b"\x89PNG")
        return
    text = file.read_text(encoding="utf-8")
    if ending == "svg":
        ElementTree.fromstring(text)
    assert "Compacter++" in text
    assert "BitFit" in text
    assert "Full fine-tuning" not in text  # which has no score


BAD: dict[str, tuple[list[str], str]] = {
    "unknown method": (["--methods", "full,compactor"], "did you mean 'compacter'?"),
    "no methods": (["--methods", " , "], "--methods is empty; expected names"),
    "malformed budget": (["--memory-budget", "24 gigs"], "'24 gigs' does not fit; expected"),
    "budget without unit": (["--memory-budget", "24"], "such as 24GB"),
    "budget of nothing": (["--memory-budget", "0GB"], "expected a number above 0"),
    "unknown preset": (["--preset", "table4"], "no preset 'table4'; expected table3"),
    "unknown task": (["--task", "mnlli"], "mnli"),
    "no rows": (["--batch", "0"], "batch=0 does not fit; expected a whole number from 1"),
    "no rounds": (["--rounds", "0"], "rounds=0 does not fit"),
    "no number": (["--length", "long"], "--length"),
    "unknown model": (["--model", "t5-smal"], "did you mean 't5-small'?"),
    "unknown class": (["--head", "T5ForDancing"], "no model class of transformers"),
    "no loss": (["--model", "t5-small", "--head", "T5EncoderModel"], "has no loss over text"),
    "unknown device": (["--device", "abacus", "--methods", "bitfit"], "'abacus' cannot be used"),
    "device without numbers": (["--device", "meta", "--methods", "bitfit"], "'meta' cannot be"),
    "picture of no kind": (["--figure", "figure.gif"], "ends with .svg, .png, .html"),
    "picture in no folder": (["--figure", "nowhere/figure.svg"], "no folder 'nowhere'"),
    "picture in place of a folder": (["--figure", "folder.svg"], "'folder.svg' is a folder"),
    "no scores": (["--figure", "f.svg", "--scores", "none.json"], "'none.json' cannot be read"),
    "scores for nothing": (["--scores", "scores.json"], "without --figure"),
    "n that does not fit": (
        ["--n", "5", "--methods", "compacter"],
        "n=5 does not divide width=512; n could be 1, 2, 4, 8, 16, 32,",
    ),
    "unknown flag": (["--memory", "24GB"], "No such option"),
    "stray argument": (["t5-small"], "unexpected extra argument"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.usefixtures("in_empty_folder")
def test_bad_input(case: str, command: Command, tmp_path: Path):
    (tmp_path / "scores.json").write_text("[]")
    (tmp_path / "folder.svg").mkdir()
    arguments, message = BAD[case]
    code, out, err = command("bench", *arguments)
    assert code == 2
    assert message in err
    assert err.startswith("compacter: ")
    assert err.count("\n") == 1
    assert out == ""
    assert {path.name for path in tmp_path.iterdir()} == {"scores.json", "folder.svg"}


BAD_WITH_MODEL: dict[str, tuple[list[str], str]] = {
    "a budget nothing fits": (["--memory-budget", "1KB"], "one row takes 0.2 MB with"),
    "too few layers": (["--methods", "adapter-drop"], "drop_layers=5 does not fit"),
}


@pytest.mark.parametrize("case", BAD_WITH_MODEL)
def test_bad_input_with_a_good_model(case: str, model: str, command: Command):
    arguments, message = BAD_WITH_MODEL[case]
    code, out, err = command("bench", "--model", model, *QUICK, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


NO_SCORES = [
    *("{", "[1]", '{"method": "full"}', '[{"method": "full"}]', "[[]]", "[" * 100_000),
    '[{"method": "bitfit", "score": NaN}]',
    '[{"method": "bitfit", "score": Infinity}]',
    f'[{{"method": "bitfit", "score": {"9" * 400}}}]',
    '[{"method": "bitfit", "score": 1}, {"method": "bitfit", "score": 2}]',
]


@pytest.mark.parametrize("text", NO_SCORES, ids=lambda text: text[:40])
def test_a_file_that_holds_no_scores(text: str, model: str, command: Command, tmp_path: Path):
    file = tmp_path / "scores.json"
    file.write_text(text)
    flags = ["--figure", str(tmp_path / "figure.svg"), "--scores", str(file)]
    code, _, err = command("bench", "--model", model, *QUICK, *flags)
    assert code == 2
    assert "does not hold scores; expected what 'compacter compare --json' prints" in err


def test_scores_of_other_methods(
    model: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Said before anything is measured."""
    monkeypatch.setattr("compacter.bench.measure", lambda *a, **k: pytest.fail("measured"))
    file = tmp_path / "scores.json"
    file.write_text('[{"method": "adapter", "score": 1}]')
    flags = ["--figure", str(tmp_path / "figure.svg"), "--scores", str(file)]
    code, _, err = command("bench", "--model", model, *QUICK, *FEW, *flags)
    assert code == 2
    assert "none of the measured methods has a score" in err
    assert not (tmp_path / "figure.svg").exists()


def test_a_figure_that_cannot_be_written_costs_nothing_else(
    model: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What was measured is printed, and what stood in the file stays there."""
    file = tmp_path / "figure.svg"
    file.write_text("an older figure")

    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    flags = ["--figure", str(file), "--json"]
    code, out, err = command("bench", "--model", model, *QUICK, *FEW, *flags)
    assert code == 2
    assert err == f"compacter: '{file}' cannot be written: No space left on device\n"
    assert len(json.loads(out)["methods"]) == 3
    assert file.read_text() == "an older figure"
    assert list(tmp_path.iterdir()) == [file]


def test_progress_is_taken_back_on_a_terminal(
    model: str, command: Command, monkeypatch: pytest.MonkeyPatch
):
    """Also where an error ends it."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    code, _, err = command("bench", "--model", model, *QUICK, *FEW, "--json")
    assert code == 0
    assert "timing" in err
    assert err.endswith("\r\033[K")
    code, _, err = command("bench", "--model", model, *QUICK, "--memory-budget", "1KB")
    assert code == 2
    assert "\r\033[Kcompacter: no method fits" in err


def test_a_figure_without_matplotlib(
    model: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Said before anything is measured."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("compacter.bench.measure", lambda *a, **k: pytest.fail("measured"))
    flags = ["--figure", str(tmp_path / "figure.svg")]
    code, _, err = command("bench", "--model", model, *flags)
    assert code == 2
    assert "--figure needs matplotlib" in err
    assert "pip install 'compacter-peft[bench]'" in err

"""The table of abilities: what a verdict means, and a few probes."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from compacter.errors import AdapterError

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def abilities(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("abilities", "probes"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return import_module("abilities")


def test_verdicts(abilities: ModuleType):
    def raising(error: Exception):
        def probe(method: str) -> None:
            raise error

        return abilities.probe(probe, "compacter")

    assert abilities.probe(lambda method: None, "compacter").word == "yes"
    assert raising(AdapterError("cannot be merged")) == abilities.Verdict(
        "refused", "cannot be merged"
    )
    assert raising(AssertionError("other numbers")).word == "no"
    assert raising(TypeError("no such setting")).says == "TypeError: no such setting"
    assert raising(abilities.NotTriedError("not installed")).word == "not tried"


@pytest.mark.parametrize(
    ("title", "method", "word"),
    [
        ("disable", "compacter", "yes"),
        ("merge into the base model", "compacter", "refused"),
        ("merge into the base model", "bitfit", "yes"),
        ("merge into a base model without biases", "bitfit", "refused"),
        ("several adapters in one batch (`adapter_names`)", "compacter", "yes"),
        ("`layers_to_transform`", "compacter", "yes"),
        ("convert to LoRA", "compacter", "no"),
    ],
)
def test_probes(abilities: ModuleType, title: str, method: str, word: str):
    assert abilities.probe(abilities.PROBES[title], method).word == word


def test_a_probe_sees_an_adapter_that_changes_nothing(
    abilities: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(import_module("probes"), "moved", lambda model, seed=1: model)
    verdict = abilities.probe(abilities.PROBES["disable"], "compacter")
    assert verdict == abilities.Verdict("no", "AssertionError: the adapter changes nothing")


def test_equal_messages_share_a_note(abilities: ModuleType):
    refused = abilities.Verdict("refused", "cannot be merged")
    page = abilities.markdown({"merge": {"compacter": refused, "adapter": refused}})
    assert "| merge | refused[^1] | refused[^1] |" in page
    assert page.count("[^1]: cannot be merged") == 1


def test_some_probes_are_printed_and_not_written(
    abilities: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
):
    monkeypatch.setattr(abilities, "PAGE", tmp_path / "abilities.md")
    monkeypatch.setattr(sys, "argv", ["abilities.py", "--only", "unload", "--methods", "bitfit"])
    abilities.main()
    assert "| unload | yes |" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())

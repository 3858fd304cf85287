"""The scripts in benchmarks/: what they compare with, their verdicts, their table."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from compacter.bench import Timing
from compacter.errors import AdapterError
from compacter.experiments.store import Store
from compacter.models import layer_norms
from compacter.models.loading import T5_VOCABULARY
from compacter.report.runs import read_folder
from made_runs import make_run
from tiny_models import TINY

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a script as it is found when it is run."""
    for folder in ("benchmarks", "benchmarks/peers"):
        monkeypatch.syspath_prepend(str(ROOT / folder))

    def find(name: str) -> ModuleType:
        monkeypatch.delitem(sys.modules, name, raising=False)
        return import_module(name)

    return find


def test_layer_norms_alone(script: Any):
    bare = TINY["t5"]().requires_grad_(False)
    model = script("subjects").make(bare, "layer norms")
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {f"{path}.weight" for path in layer_norms(bare)}
    shared = {p.data_ptr() for p in bare.parameters()} & {p.data_ptr() for p in model.parameters()}
    assert len(shared) == len(list(bare.parameters())) - len(trained)


@pytest.mark.parametrize(
    ("low", "value", "high", "verdict"),
    [
        (None, 1.03, None, "pass"),
        (None, 1.0301, None, "FAIL"),
        (0.9, 1.0, 1.03, "pass"),
        (1.0, 1.02, 1.04, "undecided"),
        (1.0, 1.035, 1.04, "undecided"),
        (1.04, 1.05, 1.06, "FAIL"),
    ],
)
def test_verdicts(script: Any, low: float | None, value: float, high: float | None, verdict: str):
    assert script("promises").Check("name", value, 1.03, low, high).verdict == verdict


def test_a_figure_has_the_interval_of_other_rounds(script: Any):
    promises = script("promises")
    steady = Timing(tuple((1.0,) for _ in range(20)))
    wavering = Timing(tuple((1.0 + 0.1 * (number % 3),) for number in range(20)))
    found = {"a": wavering, "b": steady}
    check = promises.compared("name", found, lambda m: m["a"] / m["b"], 1.15)
    assert check.value == pytest.approx(1.1)
    assert check.low <= check.value <= check.high
    assert check.high > check.low


def test_a_broken_promise_is_the_exit_code(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
):
    promises = script("promises")
    check = promises.Check
    parts = {
        "good": lambda plan: iter([check("kept", 1.0, 1.0), check("close", 1.0, 1.0, 0.9, 1.1)]),
        "bad": lambda plan: iter([check("broken", 2.0, 1.0, note="a note")]),
    }
    monkeypatch.setattr(promises, "PARTS", parts)
    file = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["promises.py", "--only", "good", "--output", str(file)])
    assert promises.main() == 0
    assert '"verdict": "undecided"' in file.read_text()
    monkeypatch.setattr(sys, "argv", ["promises.py", "--only", "good,bad"])
    assert promises.main() == 1
    assert "FAIL         2.000 <= 1     broken (a note)" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["promises.py", "--only", "good,bad", "--quick"])
    assert promises.main() == 0  # tiny models promise nothing
    assert "tried        2.000" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["promises.py", "--only", "good,worse"])
    with pytest.raises(SystemExit) as end:
        promises.main()
    assert end.value.code == 2
    assert "unknown parts worse; expected good, bad" in capsys.readouterr().err


def test_a_mixed_batch_that_fails_breaks_the_promise(script: Any, monkeypatch: pytest.MonkeyPatch):
    promises = script("promises")

    def refused(*arguments: Any, **settings: Any) -> None:
        raise AdapterError("cannot be mixed")

    monkeypatch.setattr(promises.Plan, "times", refused)
    with pytest.raises(AdapterError, match="cannot be mixed"):
        list(promises.mixed(promises.Plan(quick=True, rounds=1)))


@pytest.mark.parametrize("quick", [True, False])
def test_quick_results_are_kept_apart(
    script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quick: bool
):
    run, orders = script("run"), []

    def measured(python: Path, name: str, order: Any) -> Any:
        orders.append(order)
        return {"versions": {}, "threads": 1, "figures": {}}

    monkeypatch.setattr(run, "HERE", tmp_path)
    monkeypatch.setattr(run, "environment", lambda *_: Path("python"))
    monkeypatch.setattr(run, "measure", measured)
    monkeypatch.setattr(sys, "argv", ["run.py", "--rounds", "2", *(["--quick"] if quick else [])])
    run.main()
    assert (tmp_path / "results.json").is_file() is not quick
    assert (tmp_path / "results.quick" / "results.json").is_file() is quick
    assert orders[0]["rounds"]["step 8 x 128"] == (2 if quick else 16)
    assert orders[0]["rounds"].keys() == run.WORK.keys()


def test_the_exact_promises_can_be_measured(script: Any):
    """Those that are counts need no quiet machine."""
    promises = script("promises")
    plan = promises.Plan(quick=True, rounds=1)
    (saved,) = promises.activations(plan)
    assert saved.value == pytest.approx(1.0, abs=0.05)
    assert "+ 98,304" in saved.note  # 24 adapters, 2 k d numbers each: k = 128, d = 4
    (size,) = promises.disk(plan)
    assert 1.0 < size.value < 1.1  # the header of a file for a tiny model
    seconds, held = promises.pool(plan)
    assert seconds.value > 0
    assert held.value == pytest.approx(1.0)


def test_scaling_measures_each_point(script: Any, tmp_path: Path):
    scaling = script("scaling")
    point = scaling.Point(layers=1, width=64, length=4, batch=2, bottleneck=8)
    found = scaling.measure(point, rounds=1)
    assert found["bottleneck"] == 8
    assert set(found["methods"]) == set(scaling.METHODS)
    assert found["methods"]["adapter"]["saved_bytes"] > 0
    scaling.plot({"layers": [found]}, tmp_path / "scaling.svg")
    assert "compacter++" in (tmp_path / "scaling.svg").read_text(encoding="utf-8")
    row = scaling.markdown({"layers": [found]}).splitlines()[-1].split(" | ")
    assert row[0] == "| layers 1"
    adapter = found["methods"]["adapter"]
    assert row[1] == f"{100 * adapter['milliseconds'] / found['reference_milliseconds']:+.1f}%"
    assert float(row[4]) == round(adapter["saved_bytes"] / 1e6, 2)
    assert scaling.measure(point, rounds=1) is found
    with pytest.raises(TypeError):
        scaling.Point(depth=3)


def test_what_a_step_adds_is_told_by_name_and_shapes(script: Any):
    tool = script("operators")
    x, W = torch.ones(8, 4), torch.ones(4, 4)
    steps = {
        "plain": lambda: x @ W,
        "more": lambda: torch.tanh(x @ W @ W) @ W[:, :2],
    }
    found = tool.profiled(steps, rounds=3)
    own = tool.added(found["more"], found["plain"])
    calls = {(o.name, o.shapes): o.calls for o in own}
    assert calls["aten::mm", "8x4, 4x4"] == 1
    assert calls["aten::mm", "8x4, 4x2"] == 1
    assert calls["aten::tanh", "8x4"] == 1
    assert not tool.added(found["plain"], found["plain"])
    both = found["more"]["aten::mm", "8x4, 4x4"]
    one = next(o for o in own if (o.name, o.shapes) == ("aten::mm", "8x4, 4x4"))
    assert one.milliseconds == both.milliseconds / 2 > 0
    assert tool.net(found["more"], found["plain"]) == pytest.approx(tool.total(own))
    assert tool.net(found["plain"], found["more"]) == pytest.approx(-tool.total(own))


def test_the_peers_table_has_a_cell_for_what_was_measured(script: Any):
    run = script("run")
    figure = {"ratio_of_medians": 1.25, "ratio_interval": [1.125, 1.5]}
    results = {
        "order": {
            "rounds": {"step 8 x 128": 12, "decode": 9, "step 1 x 16": 30},
            "vocabulary": T5_VOCABULARY,
        },
        "ours": {
            "versions": {"torch": "1", "peft": "2"},
            "threads": 2,
            "figures": {work: {"compacter": figure} for work in run.WORK if work != "mixed"},
        },
        "theirs": {"versions": {"adapters": "3"}, "figures": {"mixed": {"compacter": figure}}},
    }
    lines = run.markdown(results).splitlines()
    assert len(lines) == 2 + len(run.WORK) + 2
    assert [line.count("1.250 (1.125 to 1.500)") for line in lines[2:6]] == [1, 1, 1, 1]
    assert lines[5].endswith("| 1.250 (1.125 to 1.500) |")  # the last column is theirs
    assert lines[-1].endswith("9 to 30 turns, 2 threads. torch 1, peft 2; adapters 3.")
    results["order"]["vocabulary"] = 256
    assert "A trial with tiny models" in run.markdown(results)


def test_an_environment_is_made_once(script: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    run = script("run")
    made: list[Any] = []
    monkeypatch.setattr(run.venv, "create", lambda folder, **k: folder.mkdir(exist_ok=True))
    monkeypatch.setattr(run.subprocess, "run", lambda command, **k: made.append(command))
    for _ in range(2):
        python = run.environment(tmp_path / "env", None, None)
        assert python == tmp_path / "env" / "bin" / "python"
    (command,) = made
    assert command[-3:] == [f"torch=={torch.__version__.partition('+')[0]}", *run.PINS[1:]]
    monkeypatch.setattr(run, "PINS", ("other==1",))
    run.environment(tmp_path / "env", None, None)
    assert len(made) == 2


def test_runs_are_multiplied_into_a_sweep(script: Any, tmp_path: Path):
    kinds = [tmp_path / method for method in ("full", "compacter")]
    for kind in kinds:
        make_run(kind, method=kind.name, predictions=[0, 1], labels=[0, 1])
    script("many_runs").multiply(kinds, tmp_path / "sweep", 5)
    found = Store.open(tmp_path / "sweep").runs()
    assert [(run.state, run.method) for run in found] == [
        ("done", method) for method in ("full", "compacter", "full", "compacter", "full")
    ]
    assert len(read_folder(tmp_path / "sweep").runs) == 5

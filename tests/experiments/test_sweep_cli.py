"""`compacter sweep` and `compacter runs`: real processes, what they print, and bad input."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from compacter.experiments.first_steps import timed
from compacter.experiments.grid import Grid
from compacter.experiments.overview import Overview
from compacter.experiments.pace import Pace, clock
from compacter.experiments.plan import given, make_plan
from compacter.experiments.store import Run, Store
from compacter_cli.sweep import _picture
from sweeping import results, small_grid

COMMAND = [sys.executable, "-m", "compacter_cli"]


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("grid")
    path = folder / "grid.yaml"
    path.write_text(yaml.safe_dump(small_grid(folder).plain()))
    return path


def test_kill_9_and_the_same_command_again(file, tmp_path, command):
    """As people do it; tests/experiments/test_sweeps.py does it more often, in warm processes."""
    output = tmp_path / "sweep"
    arguments = ["sweep", str(file), "--output", str(output), "--methods", "compacter"]
    process = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(output.glob("runs/*/checkpoints/checkpoint-10")):  # so the one before is whole
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    code, out, _ = command("runs", str(output), "--json")
    assert code == 0
    assert json.loads(out)["counts"]["done"] == 0
    code, out, err = command(*arguments)
    assert code == 0
    assert out.splitlines()[-1].startswith("2 done; everything is in ")
    assert err.count("done     ") == 2
    assert err.splitlines()[0] == f"2 runs: 2 waiting; all in {output}"
    assert len(results(output)) == 2
    for log in output.glob("runs/*/train.log"):
        assert log.read_text().count("step 5: validation") == 1, "it began anew"
    begun = [log.read_text().count("are trained") for log in output.glob("runs/*/train.log")]
    assert sorted(begun) == [1, 2]
    code, out, _ = command(*arguments, "--dry-run")
    assert out.splitlines()[0] == "2 runs: 2 done, 0 to do"
    code, out, _ = command(*arguments, "--dry-run", "--axis", "seed=1,2,3", "--json")
    answer = json.loads(out)
    assert (answer["runs"], answer["done"], answer["left"]) == (3, 2, 1)
    seconds = [json.loads(p.read_text())["seconds"] for p in output.glob("runs/*/result.json")]
    assert answer["seconds"] == pytest.approx(sum(seconds) / 2)
    code, out, _ = command("runs", str(output))
    assert out.splitlines()[-1] == "2 done"
    assert len(out.splitlines()) == 3


def test_a_sweep_with_failures_says_so(file, tmp_path, command):
    output = str(tmp_path / "s")
    flags = ["--methods", "compacter", "--seed", "1", "--n", "3", "--output", output]
    code, out, _ = command("sweep", str(file), *flags)
    assert code == 1
    assert out.splitlines()[0] == f"1 failed; everything is in {output}"
    assert "n=3 does not divide" in out
    assert "--retry-failed" in out
    code, out, _ = command("runs", output)
    assert code == 0
    assert out.startswith("failed ")
    (log,) = (tmp_path / "s" / "logs").iterdir()
    assert "Traceback" in log.read_text()


@pytest.mark.usefixtures("in_empty_folder")
def test_dry_runs_count_and_write_nothing(tmp_path, command):
    cases = {
        ("glue",): 1760,
        ("glue", "--tasks", "rte,mrpc", "--methods", "full,compacter++"): 2 * (5 + 45),
        ("glue", "--learning-rate", "0.001", "--model", "t5-small"): 352,
        ("low-resource", "--tasks", "cola", "--max-train-samples", "100"): 10,
        ("--axis", "learning_rate=1e-3,1e-2", "--axis", "seed=1,2,3"): 6,
        ("--methods", "full,bitfit", "--tasks", "builtin/roles"): 2,
    }
    for arguments, count in cases.items():
        code, out, _ = command("sweep", *arguments, "--dry-run")
        assert code == 0
        assert out.splitlines()[0] == f"{count} runs: 0 done, {count} to do", arguments
        assert out.splitlines()[1].startswith("time: unknown")
    assert not list(tmp_path.iterdir())


def test_a_dry_run_knows_what_the_sweep_would_skip(tmp_path, command):
    """Also by another name of the data, after another grid, and what has failed."""
    (tmp_path / "data").mkdir()
    grid = small_grid(tmp_path / "data")
    plan = make_plan(grid)
    store = Store.create(tmp_path / "s")
    store.write({"axes": {"seed": [7]}}, [])
    for run, status in zip(plan[:2], ("finished", "diverged"), strict=True):
        store.run_folder(run.id).mkdir()
        content = {"status": status, "method": "full", "seconds": 4.0, "recipe": run.recipe}
        (store.run_folder(run.id) / "result.json").write_text(json.dumps(content))
    store.fail(plan[2], "why", "ValueError", 1)
    elsewhere = str(tmp_path / "data" / ".." / "data" / Path(grid.plain()["train_file"]).name)
    file = tmp_path / "grid.yaml"
    file.write_text(yaml.safe_dump(grid.with_values({"train_file": elsewhere}).plain()))
    arguments = ["sweep", str(file), "--output", str(store.folder), "--dry-run"]
    code, out, _ = command(*arguments)
    assert code == 0
    assert out.splitlines() == [
        "4 runs: 2 done, 1 failed, 1 to do",
        "time: about 0:04 with 1 at a time, by the finished runs' speed",
    ]
    code, out, _ = command(*arguments, "--retry-failed", "--jobs", "2", "--json")
    assert json.loads(out) == {"runs": 4, "done": 2, "failed": 0, "left": 2, "seconds": 4.0}
    assert store.plan() == [], "nothing is written"


def test_the_time_left_is_that_of_the_same_method_where_the_recipe_was_filled_in(tmp_path, command):
    """What the grid leaves open is the same in what an earlier grid has left."""
    (tmp_path / "data").mkdir()
    axes = {"method": ["compacter", "full"], "seed": [1, 2]}
    values = small_grid(tmp_path / "data", **axes).plain()
    del values["epochs"]
    plan = make_plan(Grid.make(values))
    store = Store.create(tmp_path / "s")
    store.write({"axes": {"seed": [7]}}, [])
    for run, seconds in zip(plan[::2], (4.0, 60.0), strict=True):
        store.run_folder(run.id).mkdir()
        content = {"status": "finished", "seconds": seconds, "recipe": run.recipe}
        (store.run_folder(run.id) / "result.json").write_text(json.dumps(content))
    file = tmp_path / "grid.yaml"
    file.write_text(yaml.safe_dump(values | {"axes": {"method": ["full"], "seed": [3]}}))
    arguments = ["sweep", str(file), "--output", str(store.folder), "--dry-run", "--json"]
    _, out, _ = command(*arguments)
    assert json.loads(out) == {"runs": 1, "done": 0, "failed": 0, "left": 1, "seconds": 60.0}


def test_a_dry_run_may_time_a_few_steps(file, tmp_path, command):
    output = tmp_path / "s"
    arguments = ["sweep", str(file), "--output", str(output), "--dry-run", "--time-steps", "2"]
    code, out, err = command(*arguments, "--methods", "compacter", "--save-steps", "4")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "2 runs: 0 done, 2 to do"
    assert re.match(
        r"time: about \d+:\d\d with 1 at a time, by finished runs and", out.splitlines()[1]
    )
    code, out, err = command(*arguments, "--n", "3")
    assert (code, out) == (2, "")
    assert "n=3 does not divide" in err
    assert not output.exists()


def test_one_run_of_each_kind_is_timed(file):
    made = [given(recipe) for recipe in Grid.read(file).recipes()]
    runs = [Run(str(index), "waiting", "", values) for index, values in enumerate(made)]
    found = timed(runs, 2, 1)
    assert sorted(run.recipe["method"] for run in found) == ["compacter", "full"]
    assert all(run.seconds > 0 for run in found)
    pace = Pace(found)
    assert all(pace.knows(run.recipe) for run in runs)
    assert not pace.knows({**runs[0].recipe, "epochs": 9})


def test_runs_that_no_plan_names_take_no_time(tmp_path, command):
    store = Store.create(tmp_path / "s")
    store.write({"axes": {"seed": [1]}}, [])
    recipe = {"method": "bitfit", "task": "cola", "seed": 1}
    for name in ("finished", "interrupted"):
        store.run_folder(name).mkdir()
    content = {"status": "finished", **recipe, "score": 5.0, "seconds": 4.0, "recipe": recipe}
    (store.run_folder("finished") / "result.json").write_text(json.dumps(content))
    (store.run_folder("interrupted") / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    _, out, _ = command("runs", str(store.folder))
    assert out.splitlines() == [
        "done     finished bitfit cola seed=1: 5.00 in 0:04",
        "stopped  interrupted bitfit cola seed=1",
        "1 done, 1 stopped",
    ]


BAD: dict[str, tuple[list[str], str]] = {
    "nothing": ([], "there is nothing to vary"),
    "unknown grid": (["gleu"], "there is no grid 'gleu', nor a file of that name; did you mean"),
    "unknown axis": (["--axis", "sede=1"], "there is no axis 'sede'; did you mean 'seed'?"),
    "axis without values": (["--axis", "seed"], "expected KEY=VALUE"),
    "axis of wrong values": (["--axis", "seed=a"], "seed='a' does not fit"),
    "value out of range": (["--axis", "epochs=1,0"], "epochs=0 does not fit"),
    "axis and value": (["--axis", "seed=1,2", "--seed", "3"], "seed is given once and as an axis"),
    "axis twice": (["--axis", "n=4", "--axis", "n=8"], "the axis n is given twice; expected all"),
    "tasks twice": (["--axis", "task=rte", "--tasks", "cola"], "the axis task is given twice"),
    "unknown method": (["--methods", "full,compactor"], "there is no method 'compactor'"),
    "unknown task": (["--tasks", "rtee"], "rtee"),
    "unknown engine": (["glue", "--engine", "rey"], "engine 'rey' is unknown; choose one of local"),
    "address of local": (["glue", "--address", "x"], "--address is not for the engine 'local'"),
    "jobs of ray": (["glue", "--engine", "ray", "--jobs", "2"], "--jobs is not for the engine"),
    "steps of a sweep": (["glue", "--time-steps", "5"], "--time-steps is for --dry-run; expected"),
    "no jobs": (["glue", "--jobs", "0"], "greater than or equal to 1"),
    "not a list": (["bad.yaml"], "axis 'seed' holds 3; expected a list"),
    "missing values": (
        ["low-resource", "--max-train-samples", "300"],
        "axis 'epochs' has no values for max_train_samples=300; it has some for 100, 500",
    ),
    "a file": (["glue", "--output", "bad.yaml"], "'bad.yaml' is a file; expected a folder"),
    "a full folder": (["glue", "--output", "."], "'.' is not empty and holds no sweep"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.usefixtures("in_empty_folder")
def test_bad_input(case, command, tmp_path):
    Path("bad.yaml").write_text("axes: {seed: 3}\n")
    arguments, message = BAD[case]
    code, out, err = command("sweep", *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]


def test_a_folder_that_is_no_sweep(command, tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        code, out, err = command("runs", str(folder))
        assert (code, out) == (2, "")
        assert f"{str(folder)!r} is no sweep: found " in err
        assert "expected the --output of 'compacter sweep'" in err


# What people see


def run(name: str, state: Any, **values: Any) -> Run:
    given = {"method": name, **values.pop("given", {})}
    return Run(name, state, name, given, name, "rte", **values)


def test_time_left_is_that_of_the_runs_most_alike():
    pace = Pace([run("full", "done", seconds=30.0), run("bitfit", "done", seconds=10.0)])
    assert pace.seconds({"method": "full"}) == 30
    assert pace.seconds({"method": "compacter"}) == 20
    assert pace.seconds({"method": "full", "model": "other"}) == 20
    assert Pace().seconds({"method": "full"}) is None
    assert [clock(seconds) for seconds in (5, 65, 3661)] == ["0:05", "1:05", "1:01:01"]
    runs = [
        run("full", "running", step=5, steps=10),
        run("bitfit", "waiting"),
        run("adapter", "done", seconds=1.0),
    ]
    overview = Overview({found.id: found for found in runs}, slots=2, pace=pace)
    assert overview.seconds_left() == (30 / 2 + 10) / 2
    picture = str(_picture(overview)).splitlines()
    assert picture[0].startswith("[######..............] 1/3, about 0:12 left; 1 done, 1 running")
    assert picture[1] == "running  full full: step 5/10"


def test_a_summary_is_the_result_without_its_curve(tmp_path):
    from compacter.training.result import Result, read_result, read_summary

    numbers = {"trainable": 1, "head_trainable": 0, "percent": 0.1, "seed": 1, "score": 50.0}
    result = Result(
        **{"method": "full", "task": "rte", "model": "m", "recipe": {"n": None}, **numbers},
        validation={"accuracy": 50.0},
        test={},
        status="finished",
        warnings=['one with "curve": ['],
        best_checkpoint=None,
        seconds=1.0,
        samples_per_second=1.0,
        peak_memory_bytes=1,
        versions={},
        data_fingerprint="f",
        curve=[{"step": 1, "loss": 0.5}],
    )
    result.write(tmp_path)
    whole = json.loads((tmp_path / "result.json").read_text())
    assert read_result(tmp_path) == result
    del whole["curve"]
    assert read_summary(tmp_path) == whole
    assert read_summary(tmp_path / "nowhere") == {}


def test_a_thousand_runs_are_all_listed(tmp_path, command):
    store = Store.create(tmp_path / "s")
    store.write({"axes": {"seed": [1]}}, [])
    for index in range(1000):
        folder = store.run_folder(f"{index:04d}")
        folder.mkdir()
        content = {"status": "finished", "method": "full", "task": "rte", "score": 1.0}
        (folder / "result.json").write_text(json.dumps(content))
    code, out, _ = command("runs", str(store.folder))
    assert code == 0
    assert out.count("done     ") == 1000
    assert out.splitlines()[-1] == "1000 done"

"""Sweeps: never twice, never lost, and one that fails fails alone."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from compacter.errors import CompacterError, ExperimentError
from compacter.experiments.engines.local import Local, one_device
from compacter.experiments.grid import Grid
from compacter.experiments.plan import make_plan
from compacter.experiments.store import Store
from compacter.experiments.sweep import sweep
from compacter.report import write_report
from sweeping import Inline, results, small_grid, start_sweep

DEADLINE = 120


@pytest.fixture(scope="module")
def grid(tmp_path_factory) -> Grid:
    return small_grid(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def undisturbed(grid, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("undisturbed") / "sweep"
    runs = sweep(grid, output, jobs=2)
    assert [run.state for run in runs] == ["done"] * 4
    return output


def trainings(output: Path) -> list[int]:
    """How often each run was begun, by its log."""
    logs = output.glob("runs/*/train.log")
    return [log.read_text().count("parameters are trained") for log in logs]


def test_what_a_sweep_leaves(undisturbed, grid):
    found = results(undisturbed)
    assert len(found) == 4
    assert {(run["method"], run["seed"]) for run in found.values()} == {
        (method, seed) for method in ("compacter", "full") for seed in (1, 2)
    }
    assert sorted(path.name for path in undisturbed.iterdir()) == [
        "logs",
        "plan.json",
        "running",
        "runs",
        "sweep.yaml",
    ]
    assert not list((undisturbed / "logs").iterdir())
    assert not list((undisturbed / "running").iterdir())
    assert Grid.read(undisturbed / "sweep.yaml") == grid
    for run in Store.open(undisturbed).plan():
        result = json.loads((undisturbed / "runs" / run.id / "result.json").read_text())
        assert result["recipe"] == run.recipe
        assert result["data_fingerprint"] == run.data_fingerprint


def test_finished_runs_are_skipped_and_a_grid_may_grow(undisturbed, grid):
    before = trainings(undisturbed)
    engine = Inline()
    runs = sweep(grid, undisturbed, engine=engine)
    assert [run.state for run in runs] == ["done"] * 4
    assert engine.made == []
    runs = sweep(grid, undisturbed, engine=engine, seed=[1, 2, 3], method="compacter")
    assert len(engine.made) == 1, "of the three, two are there"
    assert len(Store.open(undisturbed).runs()) == 5, "runs of the earlier grid are still listed"
    assert trainings(undisturbed) == [1] * 5
    assert before == [1] * 4
    Store(undisturbed).remove(engine.made[0])
    sweep(grid, undisturbed, engine=engine)


def test_a_grid_that_is_cut_down_starts(tmp_path):
    grid = small_grid(
        tmp_path,
        method=["compacter", "full"],
        epochs={"compacter": [2, 3], "full": [4]},
        train_file=[str(tmp_path / "missing.csv")],
    )
    (run,) = sweep(grid, tmp_path / "s", engine=Inline(), method=["full"])
    assert (run.state, run.recipe["epochs"]) == ("failed", 4), "planned, and its data looked for"
    assert [r.epochs for r in Grid.read(tmp_path / "s" / "sweep.yaml").recipes()] == [4]


def marks(output: Path) -> set[Path]:
    """What tells that runs have come further."""
    return {*output.glob("runs/*/checkpoints/*"), *output.glob("runs/*/result.json")}


def test_kill_9_of_a_sweep_at_ten_random_moments(undisturbed, grid, tmp_path):
    """Every other time after some run has come further, so that there is something to lose."""
    draw = random.Random(5)
    output = tmp_path / "sweep"
    (first,) = sweep(grid, output, method="compacter", seed=[1])
    known = marks(output)
    seen = {first.id: (output / "runs" / first.id / "result.json").stat().st_mtime_ns}
    for kill in range(10):
        process = start_sweep(grid, output)
        deadline = time.monotonic() + DEADLINE
        while kill % 2 and marks(output) <= known:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.join(draw.uniform(0, 0.1 if kill % 2 else 0.4))
        assert process.exitcode is None, "the sweep ended before it could be killed"
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        known |= marks(output)
        for path in output.glob("runs/*/result.json"):
            written = path.stat().st_mtime_ns
            assert seen.setdefault(path.parent.name, written) == written, "it ran twice"
    assert len(seen) < 4, "nothing was left to resume"
    assert len(known) > 1 + 4, "no run was cut off in its middle"
    process = start_sweep(grid, output)
    process.join(DEADLINE)
    assert process.exitcode == 0
    assert results(output) == results(undisturbed)
    for name, written in seen.items():
        assert (output / "runs" / name / "result.json").stat().st_mtime_ns == written


def test_kill_9_of_workers(undisturbed, grid, tmp_path):
    """The runs of killed workers are begun again, by the same sweep, and the others go on."""
    output = tmp_path / "sweep"
    killed: set[int] = set()

    def kill(overview, ended):
        for path in (output / "running").glob("*.json"):
            try:
                held = json.loads(path.read_text())
            except (OSError, ValueError):
                continue
            if held["step"] and len(killed) < 2 and held["pid"] not in killed:
                killed.add(held["pid"])
                os.kill(held["pid"], signal.SIGKILL)

    runs = sweep(grid, output, jobs=2, watch=kill)
    assert len(killed) == 2
    assert [run.state for run in runs] == ["done"] * 4
    assert results(output) == results(undisturbed)
    assert sum(trainings(output)) == 4 + 2


def test_two_sweeps_on_one_folder_share_the_runs(undisturbed, grid, tmp_path):
    output = tmp_path / "sweep"
    both = [start_sweep(grid, output, jobs=1) for _ in range(2)]
    for process in both:
        process.join(DEADLINE)
    assert [process.exitcode for process in both] == [0, 0]
    assert results(output) == results(undisturbed)
    assert trainings(output) == [1] * 4


def test_workers_end_with_their_sweep(grid, tmp_path):
    """By themselves they would train for longer than this test waits."""
    output = tmp_path / "sweep"
    process = start_sweep(grid.with_values({"epochs": 100_000}), output)
    deadline = time.monotonic() + DEADLINE
    while not (held := list((output / "running").glob("*.json"))):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    store = Store(output)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    while any(store.progress(path.stem) for path in held):
        assert time.monotonic() < deadline, "a worker lives on and holds its claim"
        time.sleep(0.05)


# What fails


def test_a_result_that_was_cut_off_is_made_again(undisturbed, grid, tmp_path):
    output = tmp_path / "sweep"
    shutil.copytree(undisturbed, output)
    cut = sorted(output.glob("runs/*/result.json"))[0]
    cut.write_text(cut.read_text()[:100])
    engine = Inline()
    runs = sweep(grid, output, engine=engine)
    assert [run.state for run in runs] == ["done"] * 4
    assert engine.made == [cut.parent.name]
    assert results(output) == results(undisturbed)


def test_a_failure_that_cannot_be_written_down_does_not_stop_the_others(tmp_path, monkeypatch):
    """As on a disk that is full for some time."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    good = small_grid(tmp_path).plain()["train_file"]
    files = [str(tmp_path / "missing.csv"), good]
    grid = small_grid(tmp_path, train_file=files, method=["compacter"], epochs=[1])
    monkeypatch.setattr(Store, "fail", full)
    runs = sweep(grid, tmp_path / "sweep", engine=Inline())
    assert [run.state for run in runs] == ["failed", "done"]
    assert re.search(r"missing.csv.* could not be written down: .*No space left", runs[0].error)


def test_training_sizes_above_what_own_data_has_are_left_out(tmp_path):
    grid = small_grid(tmp_path, max_train_samples=[100, 160, 10_000], method=["compacter"])
    rows = [run.recipe["max_train_samples"] for run in make_plan(grid)]
    assert rows == [100, 160]
    assert (
        len(
            make_plan(
                small_grid(tmp_path, method=["full"]).with_values({"max_train_samples": 10_000})
            )
        )
        == 1
    )
    with pytest.raises(ExperimentError, match="every training size is above what its task has"):
        make_plan(small_grid(tmp_path, max_train_samples=[10_000]))


def test_runs_that_fail_do_not_stop_the_others(tmp_path):
    """Data that is not there, a setting that does not fit the model, a loss that is no number."""
    good = small_grid(tmp_path).plain()["train_file"]
    missing = str(tmp_path / "missing.csv")
    grid = small_grid(
        tmp_path,
        train_file=[good, missing],
        n=[4, 3],
        learning_rate=[0.01, 1e30],
        method=["compacter"],
    )
    output = tmp_path / "sweep"
    states = {}
    for run in sweep(grid, output, jobs=2):
        data = "good" if run.recipe["train_file"] == good else "missing"
        states[data, run.recipe["n"], run.recipe["learning_rate"]] = (run.state, run.error or "")
    assert states["good", 4, 0.01][0] == "done"
    assert states["good", 4, 1e30][0] == "diverged"
    for rate in (0.01, 1e30):
        assert states["good", 3, rate][0] == "failed"
        assert "n=3 does not divide" in states["good", 3, rate][1]
        for n in (3, 4):
            assert states["missing", n, rate][0] == "failed"
            assert "missing.csv" in states["missing", n, rate][1]
    failures = [json.loads(p.read_text()) for p in output.glob("runs/*/failed.json")]
    assert len(failures) == 6
    for failure in failures:
        assert set(failure) == {"recipe", "error", "kind", "when", "attempts"}
        assert failure["attempts"] == 1
        assert failure["kind"] == ("TaskError" if "missing" in failure["error"] else "SettingError")
    page = write_report(output)[0].read_text(encoding="utf-8")
    for expected in ("n=3 does not divide", "missing.csv", "diverged: the loss was no number"):
        assert expected in page
    store = Store.open(output)
    engine = Inline()
    assert {run.state for run in sweep(grid, output, engine=engine)} == {
        "done",
        "diverged",
        "failed",
    }
    assert engine.made == [], "failed runs are left as they are"
    sweep(grid, output, engine=engine, retry_failed=True)
    assert len(engine.made) == 2, "what cannot be read is not even begun"
    for run in engine.made:
        assert json.loads((store.run_folder(run) / "failed.json").read_text())["attempts"] == 2
    Path(missing).write_text(Path(good).read_text())
    repaired = sweep(grid, output, jobs=2, n=4, learning_rate=0.01)
    assert [run.state for run in repaired] == ["done"], "the same rows in another file"
    assert len(list(output.glob("runs/*/failed.json"))) == 6 - 1, "its failure is gone"


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("a\nb")])
def test_any_error_is_recorded_and_a_second_try_may_do(error, grid, tmp_path, monkeypatch):
    def fail(*arguments):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("compacter.training.run.make_trainer", fail)
        runs = sweep(grid, tmp_path / "s", engine=Inline(), method="compacter", seed=[1])
    assert [run.state for run in runs] == ["failed"]
    assert runs[0].error is not None
    assert "the memory is not enough" in runs[0].error or runs[0].error == "a b"
    logs = tmp_path / "s" / "logs"
    assert "Traceback" in (logs / f"{runs[0].id}.log").read_text()
    again = partial(sweep, grid, tmp_path / "s", method="compacter", seed=[1])
    assert [run.state for run in again(engine=Inline())] == ["failed"]
    assert [run.state for run in again(engine=Inline(), retry_failed=True)] == ["done"]
    assert not list((tmp_path / "s").glob("runs/*/failed.json"))
    assert not list(logs.iterdir())


def test_a_run_whose_process_is_lost_every_time_fails(grid, tmp_path):
    engine = Inline(lost=True)
    runs = sweep(grid, tmp_path / "s", engine=engine, method="compacter", seed=[1])
    assert [(run.state, run.error) for run in runs] == [("failed", "gone")]
    assert len(engine.made) == 3
    (failure,) = (tmp_path / "s").glob("runs/*/failed.json")
    assert json.loads(failure.read_text())["attempts"] == 3


def test_what_a_run_prints_is_in_its_log_and_what_others_print_is_not(
    grid, tmp_path, monkeypatch, capfd
):
    def fail(*arguments):
        print("by Python")
        os.write(1, b"below it\n")
        raise KeyError("x")

    monkeypatch.setattr("compacter.training.run.make_trainer", fail)
    (run,) = sweep(grid, tmp_path / "s", engine=Inline(), method="compacter", seed=[1])
    log = tmp_path / "s" / "logs" / f"{run.id}.log"
    assert log.read_text().startswith("by Python\nbelow it\nTraceback")
    print("afterwards")
    os.write(1, b"below it\n")
    assert capfd.readouterr().out == "afterwards\nbelow it\n"


def test_data_that_changes_while_a_sweep_goes_on(tmp_path):
    grid = small_grid(tmp_path, seed=[1])
    test_file = Path(grid.plain()["test_file"])

    class Changing(Inline):
        def ended(self, timeout):
            test_file.write_text("text,label\nred cat,yes\nred dog,no\n")
            return super().ended(timeout)

    (run,) = sweep(grid, tmp_path / "s", engine=Changing())
    assert run.state == "failed"
    assert "is not what it was when the sweep started" in run.error
    (run,) = sweep(grid, tmp_path / "s", engine=Inline())
    assert run.state == "done", "another run by now, since its data is"


# The engine


def _kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _exit() -> None:
    os._exit(3)


def _raise() -> None:
    raise CompacterError("what was wrong")


def _crash() -> None:
    raise KeyError("x")


def _value(value: int) -> int:
    print("a line", flush=True)
    return value


def test_the_local_engine(capfd):
    engine = Local(2)
    calls = {"killed": _kill_itself, "exit": _exit, "raised": _raise, "crashed": _crash}
    try:
        for name, call in {**calls, "value": partial(_value, 7)}.items():
            engine.submit(name, call)
        found = {}
        while len(found) < 5:
            assert len(engine.started) <= 2
            found |= {ended.key: ended for ended in engine.ended(1)}
    finally:
        engine.close()
    assert "ended by SIGKILL" in found["killed"].lost
    assert "exit code 3" in found["exit"].lost
    assert isinstance(found["raised"].error, CompacterError)
    assert str(found["crashed"].error) == "KeyError: 'x'"
    assert (found["value"].value, found["value"].error, found["value"].lost) == (7, None, None)
    shown = capfd.readouterr()
    assert shown.out == "a line\n"
    assert "Traceback" in shown.err


def test_each_place_has_one_device():
    assert [one_device(slot, {"CUDA_VISIBLE_DEVICES": "4, 6"}) for slot in range(3)] == [
        "4",
        "6",
        "4",
    ]
    assert one_device(0, {"CUDA_VISIBLE_DEVICES": ""}) is None

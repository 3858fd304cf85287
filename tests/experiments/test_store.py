"""The folder of a sweep: names, states, claims."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from compacter.errors import CompacterError, ExperimentError
from compacter.experiments.store import Planned, Store, run_id

RECIPE = {"method": "full", "task": "rte", "seed": 1, "n": None}


def planned(name: str) -> Planned:
    return Planned(name, f"run {name}", {"method": "full", "task": "rte"}, RECIPE, "f00", "u")


@pytest.fixture
def store(tmp_path) -> Store:
    made = Store.create(tmp_path / "sweep")
    made.write({"axes": {"seed": [1, 2]}}, [planned("a"), planned("b")])
    return made


def finish(store: Store, run: str, status: str = "finished", **values: Any) -> None:
    folder = store.run_folder(run)
    folder.mkdir(parents=True, exist_ok=True)
    content = {"status": status, "method": "full", "task": "rte", "score": 70.0, "seconds": 2.0}
    content |= values
    (folder / "result.json").write_text(json.dumps(content))


def test_a_run_is_named_by_its_recipe_and_its_data():
    name = run_id(RECIPE, "f00")
    assert name == run_id(dict(reversed(RECIPE.items())), "f00")
    assert name != run_id({**RECIPE, "seed": 2}, "f00")
    assert name != run_id(RECIPE, "f01")
    assert name == run_id({**RECIPE, "data_dir": "moved"}, "f00"), "the same data elsewhere"
    assert run_id({**RECIPE, "data_dir": "x"}, None) != run_id({**RECIPE, "data_dir": "y"}, None)


def test_states(store):
    def states():
        return {run.id: run.state for run in store.runs()}

    assert states() == {"a": "waiting", "b": "waiting"}
    with store.claim("a") as claim:
        claim.tell(3, 10)
        assert states() == {"a": "running", "b": "waiting"}
        found = store.look("a", planned("a"))
        assert (found.step, found.steps) == (3, 10)
    assert states() == {"a": "waiting", "b": "waiting"}
    store.fail(planned("a"), "two\n lines", "ValueError", 2)
    assert states() == {"a": "failed", "b": "waiting"}
    failure = json.loads((store.run_folder("a") / "failed.json").read_text())
    assert failure["recipe"] == RECIPE
    assert (failure["error"], failure["kind"]) == ("two lines", "ValueError")
    assert failure["attempts"] == 2
    assert failure["when"][:2] == "20"
    finish(store, "a")
    finish(store, "b", "diverged")
    finish(store, "of-an-earlier-plan")
    assert states() == {"a": "done", "b": "diverged", "of-an-earlier-plan": "done"}


def test_runs_that_no_plan_names_tell_what_they_are(store):
    finish(store, "finished", recipe=RECIPE | {"n": 4})
    store.fail(planned("failed"), "why", "ValueError", 1)
    store.run_folder("interrupted").mkdir()
    (store.run_folder("interrupted") / "recipe.yaml").write_text("method: bitfit\ntask: cola\n")
    store.run_folder("empty").mkdir()
    found = {run.id: (run.state, run.label, run.method, run.task) for run in store.runs()[2:]}
    assert found == {
        "finished": ("done", "full rte n=4 seed=1", "full", "rte"),
        "failed": ("failed", "full rte seed=1", "full", "rte"),
        "interrupted": ("stopped", "bitfit cola", "bitfit", "cola"),
        "empty": ("stopped", "", None, None),
    }
    assert [run.state for run in store.runs()[:2]] == ["waiting"] * 2
    assert store.runs([planned("failed")])[0].label == "run failed", "by another plan"


def test_a_cut_off_result_is_no_result(store):
    finish(store, "a")
    path = store.run_folder("a") / "result.json"
    path.write_text(path.read_text()[:20])
    assert store.look("a", planned("a")).state == "waiting"
    assert not store.is_finished("a")


def test_a_disk_that_is_full(store, monkeypatch):
    """Nothing is held by somebody who could not say so, and the reason is told."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space left"):
            store.claim("a")
        patch.setattr("compacter.experiments.store.write_atomically", full)
        with pytest.raises(ExperimentError, match=r"cannot be written to .* No space left"):
            store.write({"axes": {"seed": [1]}}, [])
    with store.claim("a") as claim:
        assert claim is not None


def test_tidying_keeps_the_run(store):
    finish(store, "a")
    folder = store.run_folder("a")
    (folder / "checkpoints" / "checkpoint-5").mkdir(parents=True)
    (folder / ".result.json.123").write_text("{")
    (folder / "failed.json").write_text("{}")
    (folder / "adapter").mkdir()
    store.tidy("a")
    assert sorted(path.name for path in folder.iterdir()) == ["adapter", "result.json"]


HOLD = """
import sys, time
from compacter.experiments.store import Store
claim = Store(sys.argv[1]).claim("a")
print(claim is not None, flush=True)
time.sleep(60)
"""


def holder(store: Store) -> tuple[subprocess.Popen[str], bool]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(store.folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip() == "True"


def test_a_claim_is_held_once_and_ends_with_its_process(store):
    first, held = holder(store)
    assert held
    try:
        assert store.claim("a") is None
        assert store.claim("b") is not None
        assert store.look("a", planned("a")).state == "running"
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.communicate()
    assert store.look("a", planned("a")).state == "waiting"
    with store.claim("a") as claim:
        assert claim is not None
    assert not (store.folder / "running" / "a.json").exists()


def test_looking_does_not_keep_others_from_claiming(store):
    """A look holds the lock for a moment; who claims in that moment tries again."""
    look = "import sys; from compacter.experiments.store import Store\n"
    look += "while True: Store(sys.argv[1]).progress('a')"
    process = subprocess.Popen([sys.executable, "-c", look, str(store.folder)])
    try:
        time.sleep(0.5)
        for _ in range(200):
            with store.claim("a") as claim:
                assert claim is not None
    finally:
        process.kill()
        process.communicate()


def test_folders_that_are_no_sweep(tmp_path):
    with pytest.raises(ExperimentError, match="is no sweep: found no such folder; expected"):
        Store.open(tmp_path / "nowhere")
    with pytest.raises(ExperimentError, match=r"found a folder without plan\.json"):
        Store.open(tmp_path)
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(ExperimentError, match="found a file"):
        Store.open(file)
    for path in (file, file / "inside"):
        with pytest.raises(CompacterError, match="file' is a file; expected a folder"):
            Store.create(path)
    with pytest.raises(ExperimentError, match="is not empty and holds no sweep"):
        Store.create(tmp_path)


def test_a_sweep_that_was_killed_while_it_began_can_begin_again(tmp_path, monkeypatch):
    def killed(path, text):
        path.with_name(f".{path.name}.123").write_text(text[:1])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("compacter.experiments.store.write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            Store.create(tmp_path / "s").write({"seed": 1}, [])
    assert len(list((tmp_path / "s").iterdir())) == 4
    Store.create(tmp_path / "s").write({"seed": 1}, [])
    assert Store.open(tmp_path / "s").runs() == []


def test_a_folder_with_somebodys_runs_is_no_sweep(tmp_path):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    with pytest.raises(ExperimentError, match="is not empty and holds no sweep"):
        Store.create(tmp_path)


def test_a_damaged_plan(store):
    (Path(store.folder) / "plan.json").write_text("{")
    with pytest.raises(ExperimentError, match="is not the plan of a sweep"):
        store.runs()


def test_reading_a_sweep_imports_no_torch(store):
    code = "import sys, compacter_cli; from compacter.experiments.store import Store\n"
    code += "Store.open(sys.argv[1]).runs(); print('torch' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code, str(store.folder)], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "False"

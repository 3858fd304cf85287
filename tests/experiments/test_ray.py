"""The engine for many machines, on a real Ray cluster of this machine."""

from __future__ import annotations

import json
import os
import signal
from functools import partial

import pytest

from compacter.errors import ExperimentError
from compacter.experiments.sweep import sweep
from sweeping import results, small_grid

pytest.importorskip("ray")

from compacter.experiments.engines.ray import Ray


@pytest.fixture(scope="module")
def engine():
    made = Ray(cpus=1)
    yield made
    made.close()


def test_the_same_grid_gives_the_same_scores_on_either_engine(engine, tmp_path):
    grid = small_grid(tmp_path, method=["compacter", "full"], seed=[1])
    killed: list[int] = []

    def kill_one(overview, ended):
        """One worker is lost on the way, and its run is begun again."""
        for path in (tmp_path / "ray" / "running").glob("*.json"):
            try:
                held = json.loads(path.read_text())
            except (OSError, ValueError):
                continue
            if held["step"] and not killed:
                killed.append(held["pid"])
                os.kill(held["pid"], signal.SIGKILL)

    by_ray = sweep(grid, tmp_path / "ray", engine=engine, watch=kill_one)
    assert len(killed) == 1
    by_local = sweep(grid, tmp_path / "local", jobs=2)
    assert [run.state for run in by_ray] == [run.state for run in by_local] == ["done"] * 2
    assert results(tmp_path / "ray") == results(tmp_path / "local")
    logs = (tmp_path / "ray").glob("runs/*/train.log")
    assert sum(log.read_text().count("parameters are trained") for log in logs) == 2 + 1


def test_a_run_that_fails_leaves_what_it_printed(engine, tmp_path):
    """Also one whose worker has had a run before."""
    grid = small_grid(tmp_path, method=["compacter"], n=[3], seed=[1, 2, 3])
    runs = sweep(grid, tmp_path / "s", engine=engine)
    assert [run.state for run in runs] == ["failed"] * 3
    for run in runs:
        text = (tmp_path / "s" / "logs" / f"{run.id}.log").read_text()
        assert text.count("Traceback") == 1
        assert "n=3 does not divide" in text


def test_what_becomes_of_calls(engine):
    calls = {"raised": partial(int, "x"), "lost": partial(os._exit, 3), "value": partial(int, "7")}
    for name, call in calls.items():
        engine.submit(name, call)
    found = {}
    while len(found) < 3:
        found |= {ended.key: ended for ended in engine.ended(1)}
    assert "invalid literal for int()" in str(found["raised"].error)
    assert "Ray lost the worker of the run" in found["lost"].lost
    assert found["value"].value == 7
    assert engine.ended(0.01) == []


def test_no_dashboard_and_no_statistics(engine):
    from ray._common.usage.usage_lib import usage_stats_enabled

    assert not usage_stats_enabled()
    assert not engine.ray.worker.global_worker.node.address_info["webui_url"]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:port", "ray://127.0.0.1:1"])
def test_no_cluster_at_an_address(address):
    with pytest.raises(ExperimentError, match=f"there is no Ray cluster at '{address}': "):
        Ray(address)


def test_shares_that_do_not_fit(engine):
    with pytest.raises(ExperimentError, match="cpus=0 and gpus=0 do not fit"):
        Ray(cpus=0)
    with pytest.raises(ExperimentError, match="above 1, Ray takes whole numbers"):
        Ray(cpus=1.5)
    assert engine.slots >= 1


def test_a_share_must_fit_one_machine(engine, monkeypatch):
    machines = [{"CPU": 4.0}, {"CPU": 4.0}, {"CPU": 2.0, "GPU": 1.0}]
    nodes = [{"Alive": True, "Resources": m} for m in machines]
    nodes.append({"Alive": False, "Resources": {"CPU": 64.0}})
    closed = []
    monkeypatch.setattr(engine.ray, "nodes", lambda: nodes)
    monkeypatch.setattr(engine, "close", lambda: closed.append(True))
    monkeypatch.setattr(engine, "share", {"CPU": 2.0, "GPU": 0})
    engine._check_share()
    assert engine.slots == 2 + 2 + 1
    for share in ({"CPU": 8.0, "GPU": 0}, {"CPU": 4.0, "GPU": 1.0}):
        monkeypatch.setattr(engine, "share", share)
        with pytest.raises(ExperimentError, match="no machine of the Ray cluster has as much"):
            engine._check_share()
    assert len(closed) == 2

"""The folder of a run: what is refused, what is taken away, and with what a run goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from transformers import TrainerCallback

import compacter
from compacter.errors import TrainingError
from compacter.experiments.compare import compare
from compacter.training import Recipe, read_result, train
from compacter.training.folder import check_folder
from tiny_tasks import recipe_values


class Interrupt(TrainerCallback):
    """Ends a run as Ctrl-C would, after some steps or while its best checkpoint is tested."""

    def __init__(self, step: int | None = None) -> None:
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KeyboardInterrupt

    def on_train_end(self, args, state, control, **kwargs):
        if self.step is None:
            raise KeyboardInterrupt


@pytest.fixture
def values(tmp_path):
    settings = {"method": "compacter", "bottleneck": 16, "epochs": 2, "save_steps": 4}
    return recipe_values("t5", tmp_path, **settings)


def interrupted(values, folder: Path, step: int | None = 9) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(Recipe.make(values), folder, callbacks=[Interrupt(step)])


def test_overwrite_replaces_a_run_and_nothing_else(values, tmp_path):
    folder = tmp_path / "run"
    train(Recipe.make({**values, "epochs": 1}), folder)
    (folder / "notes.txt").write_text("mine")
    result = train(Recipe.make({**values, "epochs": 1, "seed": 1}), folder, overwrite=True)
    assert read_result(folder) == result
    assert result.seed == 1
    assert (folder / "notes.txt").read_text() == "mine"


def test_overwrite_needs_a_run(values, tmp_path):
    """The folder of the data, or the current one, is not a run."""
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(TrainingError, match="holds no run that could be overwritten"):
        train(Recipe.make(values), tmp_path, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    with pytest.raises(TrainingError, match="resume and overwrite are both given"):
        train(Recipe.make(values), tmp_path / "run", overwrite=True, resume=True)


def test_a_folder_that_cannot_be_made(values, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    with pytest.raises(TrainingError, match="file' is a file; expected a folder to write to"):
        train(Recipe.make(values), tmp_path / "file" / "run")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(TrainingError, match="nothing can be written into"):
        check_folder(tmp_path / "new")


def test_a_run_goes_on_with_its_own_recipe_alone(values, tmp_path):
    folder = tmp_path / "run"
    interrupted(values, folder)
    before = (folder / "recipe.yaml").read_text()
    for settings, told in (
        ({"learning_rate": 1e-3}, "begun with learning_rate=0.01 and learning_rate=0.001 is asked"),
        ({"seed": 7}, "begun with seed=42 and seed=7"),
        ({"method": "bitfit", "bottleneck": None}, "begun with method='compacter'"),
    ):
        with pytest.raises(TrainingError, match=told):
            train(Recipe.make({**values, **settings}), folder, resume=True)
    assert (folder / "recipe.yaml").read_text() == before
    moved = tmp_path / "moved.csv"
    Path(values["test_file"]).rename(moved)
    resumed = train(Recipe.make({**values, "test_file": str(moved)}), folder, resume=True)
    assert resumed.status == "finished"


def test_a_run_is_resumed_by_its_folder(values, tmp_path):
    straight = train(Recipe.make(values), tmp_path / "straight")
    interrupted(values, tmp_path / "cut")
    resumed = compacter.train(output=tmp_path / "cut", resume=True)
    assert resumed.recipe == straight.recipe
    assert resumed.curve == straight.curve


@pytest.mark.parametrize("step", [9, None])
def test_time_and_memory_before_an_interruption_count(step, values, tmp_path):
    interrupted(values, tmp_path / "run", step)
    last = max((tmp_path / "run" / "checkpoints").iterdir(), key=lambda path: path.stat().st_mtime)
    spent = json.loads((last / "spent.json").read_text())
    assert 0 < spent["seconds"] < 60
    assert spent["peak_memory_bytes"] > 1e8
    (last / "spent.json").write_text(json.dumps({"seconds": 1000, "peak_memory_bytes": 10**15}))
    result = train(Recipe.make(values), tmp_path / "run", resume=True)
    assert 1000 < result.seconds < 1100
    assert result.peak_memory_bytes == 10**15
    rows = len(Path(values["train_file"]).read_text().splitlines()) - 1
    assert result.samples_per_second == round(2 * rows / result.seconds, 2)


@pytest.mark.parametrize("patience", [2, None])
def test_a_run_that_was_moved_tests_its_best_checkpoint(patience, values, tmp_path):
    """And not the last one, or none, though Trainer's path to the best leads nowhere."""
    settings = {**values, "epochs": 12, "early_stopping": patience, "save_steps": 4}
    straight = train(Recipe.make(settings), tmp_path / "straight")
    last = max(entry["step"] for entry in straight.curve)
    assert straight.best_checkpoint < last, "the best is the last"
    interrupted(settings, tmp_path / "begun", None)
    (tmp_path / "begun").rename(tmp_path / "moved")
    resumed = train(Recipe.make(settings), tmp_path / "moved", resume=True)
    assert (resumed.test, resumed.best_checkpoint) == (straight.test, straight.best_checkpoint)
    name = "adapter/adapter_model.safetensors"
    assert (tmp_path / "moved" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()


def test_a_run_that_was_moved_may_have_had_gradients_that_are_no_numbers(values, tmp_path):
    """Trainer writes NaN into its state, which JSON does not have."""
    interrupted(values, tmp_path / "begun", 9)
    (tmp_path / "begun").rename(tmp_path / "moved")
    for path in (tmp_path / "moved" / "checkpoints").glob("*/trainer_state.json"):
        state = json.loads(path.read_text())
        state["log_history"][0]["grad_norm"] = float("nan")
        path.write_text(json.dumps(state))
    result = train(Recipe.make(values), tmp_path / "moved", resume=True)
    assert result.status == "finished"
    assert "grad_norm" not in result.curve[0]
    text = (tmp_path / "moved" / "result.json").read_text()
    assert "NaN" not in text
    assert json.loads(text)["best_checkpoint"] == result.best_checkpoint


def test_a_best_checkpoint_that_is_gone(values, tmp_path):
    interrupted(values, tmp_path / "run", None)
    last = max((tmp_path / "run" / "checkpoints").iterdir(), key=lambda path: path.stat().st_mtime)
    state = json.loads((last / "trainer_state.json").read_text())
    state["best_global_step"] = 3
    (last / "trainer_state.json").write_text(json.dumps(state))
    with pytest.raises(TrainingError, match="checkpoint-3' is missing, the best checkpoint"):
        train(Recipe.make(values), tmp_path / "run", resume=True)


@pytest.mark.parametrize("step", [17, None])
def test_early_stopping_stops_where_it_would_have(step, values, tmp_path):
    """Cut off between two checkpoints without gain, and after the last of them."""
    settings = {**values, "epochs": 12, "early_stopping": 2, "save_steps": 4}
    straight = train(Recipe.make(settings), tmp_path / "straight")
    steps = [entry["step"] for entry in straight.curve if "eval_score" in entry]
    scores = [entry["eval_score"] for entry in straight.curve if "eval_score" in entry]
    assert steps[-1] < 120, "it did not stop early"
    assert scores.index(max(scores)) == len(scores) - 3
    cut = None if step is None else steps[-1] - 1
    interrupted(settings, tmp_path / "cut", cut)
    resumed = train(Recipe.make(settings), tmp_path / "cut", resume=True)
    assert resumed.curve == straight.curve
    assert (resumed.test, resumed.best_checkpoint) == (straight.test, straight.best_checkpoint)
    name = "adapter/adapter_model.safetensors"
    assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()


def test_a_diverged_run_leaves_plain_json(tmp_path):
    values = recipe_values("t5", tmp_path, method="full", epochs=1, learning_rate=1e30)
    result = train(Recipe.make(values), tmp_path / "run")
    assert result.status == "diverged"

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    json.loads((tmp_path / "run" / "result.json").read_text(), parse_constant=refuse)
    for line in (tmp_path / "run" / "predictions.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)


def test_a_comparison_goes_on(values, tmp_path):
    settings = {**values, "bottleneck": None, "epochs": 1}
    methods = ("bitfit", "compacter")
    first = compare(methods=methods[:1], output=tmp_path / "both", **settings)
    written = (tmp_path / "both" / "bitfit" / "result.json").stat().st_mtime_ns
    found = compare(methods=methods, output=tmp_path / "both", resume=True, **settings)
    assert found[0] == first[0]
    assert (tmp_path / "both" / "bitfit" / "result.json").stat().st_mtime_ns == written
    with pytest.raises(TrainingError, match="holds a finished run with epochs=1, and 2 is asked"):
        compare(methods=methods, output=tmp_path / "both", resume=True, **{**settings, "epochs": 2})
    with pytest.raises(TrainingError, match="'bitfit' is named twice"):
        compare(methods=("bitfit", "bitfit"), output=tmp_path / "twice", **settings)

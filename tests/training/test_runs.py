"""Runs on tiny models that really learn a small task: what they leave, repeat and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import TrainerCallback

from compacter.errors import CompacterError, TrainingError
from compacter.training import Recipe, evaluate, predict, read_result, train
from compacter.training.inference import load_run
from tiny_tasks import recipe_values

WAYS = {
    "t5": {"method": "compacter", "bottleneck": 16},
    "bert": {"method": "full", "learning_rate": 1e-3},
    "llama": {"method": "full", "learning_rate": 3e-3},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One finished run of each kind of model."""
    found = {}
    for kind, settings in WAYS.items():
        folder = tmp_path_factory.mktemp(kind)
        recipe = Recipe.make(recipe_values(kind, folder, **settings))
        found[kind] = (folder / "run", recipe, train(recipe, folder / "run"))
    return found


@pytest.mark.parametrize("kind", WAYS)
def test_the_task_is_learned(runs, kind):
    folder, _, result = runs[kind]
    assert result.status == "finished"
    assert result.warnings == []
    assert result.test["accuracy"] > 95
    assert result.score == pytest.approx(sum(result.test.values()) / len(result.test))
    assert read_result(folder) == result


@pytest.mark.parametrize("kind", WAYS)
def test_what_a_run_leaves(runs, kind):
    folder, recipe, result = runs[kind]
    weights = "model" if recipe.method == "full" else "adapter"
    assert {p.name for p in folder.iterdir()} == {
        weights,
        "result.json",
        "predictions.jsonl",
        "recipe.yaml",
    }
    lines = [json.loads(x) for x in (folder / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == 80
    right = sum(line["answer"] == line["label"] for line in lines)
    assert 100 * right / len(lines) == pytest.approx(result.test["accuracy"])
    filled = Recipe.read(folder / "recipe.yaml")
    assert filled.warmup_steps is not None
    assert filled.max_length is not None
    assert [entry["step"] for entry in result.curve] == sorted(e["step"] for e in result.curve)
    if weights == "adapter":
        card = (folder / "adapter" / "README.md").read_text()
        assert "import compacter" in card
        assert f"{result.trainable:,}" in card


def test_parameters_of_method_and_head_are_counted_apart(runs, tmp_path):
    values = recipe_values("bert", tmp_path, method="compacter", epochs=1)
    result = train(Recipe.make(values), tmp_path / "run")
    assert result.head_trainable == 2 * 64 + 2
    assert result.trainable > 0
    assert evaluate(tmp_path / "run") == pytest.approx(result.test, abs=1e-3)
    assert runs["t5"][2].head_trainable == 0
    assert runs["llama"][2].percent == 100.0


@pytest.mark.parametrize("kind", WAYS)
def test_a_loaded_run_answers_as_the_run_did(runs, kind):
    folder, recipe, result = runs[kind]
    assert evaluate(folder) == pytest.approx(result.test, abs=1e-3)
    assert evaluate(folder, split="validation") == pytest.approx(result.validation, abs=1e-3)
    cat, dog = predict(folder, ["red cat one two blue", "dog red red one one"])
    assert (cat.text, dog.text) == ("yes", "no")
    assert 0 < cat.score <= 1
    inner = folder / ("model" if recipe.method == "full" else "adapter")
    assert isinstance(load_run(inner).model, PeftModel) == (recipe.method != "full")


def test_texts_that_do_not_fit_the_task(runs):
    with pytest.raises(TrainingError, match="reads text; found words, missing 'text'"):
        predict(runs["t5"][0], [{"words": "red cat"}])


def test_a_finished_run_is_not_overwritten(runs):
    folder, recipe, result = runs["t5"]
    before = (folder / "result.json").read_bytes()
    with pytest.raises(TrainingError, match="holds a finished run; choose another folder, or say"):
        train(recipe, folder)
    with pytest.raises(TrainingError, match="holds a finished run"):
        train(recipe, folder, resume=True)
    assert (folder / "result.json").read_bytes() == before
    assert result.status == "finished"


def same_run(values, folder: Path, **settings):
    return train(Recipe.make({**values, "epochs": 2, **settings}), folder)


@pytest.fixture
def values(tmp_path):
    return recipe_values("t5", tmp_path, method="compacter", bottleneck=16)


def test_runs_repeat_bit_for_bit(values, tmp_path):
    first, second = (same_run(values, tmp_path / name) for name in ("one", "two"))
    assert first.curve == second.curve
    weights = "adapter/adapter_model.safetensors"
    assert (tmp_path / "one" / weights).read_bytes() == (tmp_path / "two" / weights).read_bytes()
    other = same_run(values, tmp_path / "three", seed=1)
    assert other.curve != first.curve


def test_gradient_accumulation_changes_nothing(values, tmp_path):
    """Targets have one token or two; the mean is over tokens of the whole step, not of batches."""
    settings = {"batch_size": 32, "max_train_samples": 64, "label_words": "words"}
    whole = same_run(values, tmp_path / "whole", **settings)
    parts = same_run(
        values, tmp_path / "parts", **{**settings, "batch_size": 8, "gradient_accumulation": 4}
    )
    losses = [[e["loss"] for e in r.curve if "loss" in e] for r in (whole, parts)]
    norms = [[e["grad_norm"] for e in r.curve if "loss" in e] for r in (whole, parts)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)


class Interrupt(TrainerCallback):
    """Ends a run as Ctrl-C would, after some steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KeyboardInterrupt


def test_an_interrupted_run_goes_on_to_the_same_result(values, tmp_path):
    straight = same_run(values, tmp_path / "straight", save_steps=4)
    recipe = Recipe.make({**values, "epochs": 2, "save_steps": 4})
    for step in (3, 9, 14):
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tmp_path / "cut", resume=step > 3, callbacks=[Interrupt(step)])
        with pytest.raises(TrainingError, match="was interrupted; say resume"):
            train(recipe, tmp_path / "cut")
    resumed = train(recipe, tmp_path / "cut", resume=True)
    assert resumed.test == straight.test
    assert resumed.validation == straight.validation
    assert resumed.curve == straight.curve
    name = "adapter/adapter_model.safetensors"
    assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()


def test_a_run_that_diverges_says_so(values, tmp_path):
    result = same_run(values, tmp_path / "run", method="full", bottleneck=None, learning_rate=1e30)
    assert result.status == "diverged"
    assert any("diverged; try a smaller learning rate" in warning for warning in result.warnings)


def test_a_run_that_learns_nothing_says_so(values, tmp_path):
    result = same_run(values, tmp_path / "run", method="full", bottleneck=None, learning_rate=1e-12)
    assert result.warnings
    assert any("every answer is" in w or "none of the task's" in w for w in result.warnings)


def test_head_only(tmp_path):
    values = recipe_values("bert", tmp_path, method="head-only")
    result = same_run(values, tmp_path / "run")
    assert (result.trainable, result.head_trainable) == (0, 130)
    t5 = recipe_values("t5", tmp_path, method="head-only")
    with pytest.raises(TrainingError, match="needs a model with a classification head"):
        same_run(t5, tmp_path / "other")


def test_out_of_memory_is_advice(values, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("compacter.training.trainer.TaskTrainer.train", fail)
    with pytest.raises(TrainingError, match="make batch_size smaller and gradient_accumulation"):
        same_run(values, tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "compactor"}, "no method 'compactor'; did you mean 'compacter'"),
        ({"n": 3}, "n=3 does not divide"),
        ({"method": "adapter", "n": 4}, "adapter has no setting 'n'"),
        ({"model": "no/such/folder/here"}, "cannot be loaded"),
        ({"train_file": "nothing.csv"}, "nothing.csv"),
        ({"text_columns": ("words",)}, "words"),
        ({"label_column": "class"}, "class"),
        ({"drop_layers": 2}, "drop_layers=2 does not fit"),
        ({"model": "x.gguf"}, "there is no file 'x.gguf'; expected a GGUF model"),
        ({"quantize": "4bit"}, "quantize='4bit' needs bitsandbytes"),
    ],
)
def test_nothing_is_written_when_something_does_not_fit(values, settings, message, tmp_path):
    with pytest.raises(CompacterError, match=message):
        train(Recipe.make({**values, **settings}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_with_other_things_is_left_alone(values, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("years of work")
    with pytest.raises(TrainingError, match="is not empty and holds no run"):
        train(Recipe.make(values), tmp_path / "full")
    (tmp_path / "file").write_text("x")
    with pytest.raises(TrainingError, match="is a file; expected a folder"):
        train(Recipe.make(values), tmp_path / "file")

"""Recipes: from files and flags, with one clear line for what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from compacter.errors import TrainingError
from compacter.methods import METHODS
from compacter.methods.attach import settings_of
from compacter.paper import tables
from compacter.tasks import TASKS, OfficialFiles, UserData, find_task
from compacter.training import Recipe
from compacter.training.defaults import (
    defaults_for,
    learning_rate,
    model_size,
    usual_warmup,
    warmup_steps,
)
from compacter.training.recipe import ready_recipes


def test_a_file_and_flags_where_flags_win(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text("model: t5-base\ntask: rte\nmethod: compacter\nn: 8\nlearning_rate: 0.003\n")
    recipe = Recipe.read(path, {"n": 4})
    assert (recipe.model, recipe.n, recipe.learning_rate) == ("t5-base", 4, 0.003)
    recipe.write(tmp_path / "again.yaml")
    assert Recipe.read(tmp_path / "again.yaml") == recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rat: 0.1", "no setting 'learning_rat' .* did you mean 'learning_rate'"),
        ("epochs: three", "epochs='three' does not fit: input should be a valid integer"),
        ("epochs: 0", "epochs=0 does not fit: input should be greater than or equal to 1"),
        ("epochs: 1.5", "epochs=1.5 does not fit"),
        ("learning_rate: -1", "learning_rate=-1.* does not fit"),
        ("learning_rate: .inf", "learning_rate=inf does not fit: input should be a finite number"),
        ("weight_decay: .nan", "weight_decay=nan does not fit: input should be a finite number"),
        ("label_words: numbers", "label_words='numbers' does not fit: input should be 'words' or"),
        ("quantize: 3bit", "quantize='3bit' does not fit"),
        ("bf16: 'yes'", "bf16='yes' does not fit"),
        ("- a\n- b", "holds a list; expected lines of 'key: value'"),
        ("a: [", "is not YAML"),
        ("just words", "holds a str; expected"),
        ("seed: -1", "seed=-1 does not fit"),
    ],
)
def test_what_does_not_fit(text, message, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(TrainingError, match=message):
        Recipe.read(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(TrainingError, match="cannot be read"):
        Recipe.read(tmp_path / "nothing.yaml")


def test_ready_recipes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ready = ready_recipes()
    assert {"demo", "glue-t5-base", "superglue-t5-base", "glue-t5-small", "low-resource"} <= set(
        ready
    )
    for name, path in ready.items():
        recipe = Recipe.read(name)
        assert path.read_text().startswith("# ")
        find_task(recipe.task)
        for method in METHODS.values():  # "choose with --method"
            assert recipe.method_settings().keys() <= settings_of(method), (name, method.name)
    assert Recipe.read("demo", {"method": "full"}).method == "full"
    assert Recipe.make({}).task_name() == "builtin/roles"
    Path("demo").write_text("method: bitfit")
    assert Recipe.read("demo").method == "bitfit", "a file comes before a ready recipe"


def test_a_recipe_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrainingError, match=r"no recipe 'dmo', .* did you mean 'demo'"):
        Recipe.read("dmo")
    with pytest.raises(TrainingError, match=r"no recipe 'xyz', .*; ready ones: demo, glue"):
        Recipe.read("xyz")


def test_sources():
    assert Recipe.make({"task": "rte"}).source() is None
    assert isinstance(Recipe.make({"task": "rte", "data_dir": "x"}).source(), OfficialFiles)
    own = {"train_file": "x.csv", "text_columns": ["a", "b"]}
    assert isinstance(Recipe.make(own).source(), UserData)
    with pytest.raises(TrainingError, match="data_dir and train_file are both given"):
        Recipe.make({**own, "data_dir": "x"}).source()
    with pytest.raises(TrainingError, match="train_file needs text_columns"):
        Recipe.make({"train_file": "x.csv"}).source()
    with pytest.raises(TrainingError, match="test_file is for your own files"):
        Recipe.make({"task": "rte", "test_file": "x.csv"}).source()


@pytest.mark.parametrize("method", METHODS)
def test_learning_rates_are_the_papers(method):
    def table(name):
        return tables()[f"learning_rates_{name}"]

    assert learning_rate(method, "glue", "t5-base") == table("glue_t5_base")[method]
    assert learning_rate(method, "glue", "t5-small") == table("glue_t5_small")[method]
    assert learning_rate(method, "superglue", "t5-base") == table("superglue_t5_base")[method]
    assert learning_rate(method, "glue", "other") == table("glue_t5_base")[method]
    tuned = table("output_layer_tuned")
    if method in tuned:
        assert learning_rate(method, "glue", "t5-base", True) == tuned[method]


@pytest.mark.parametrize(
    ("task", "epochs", "batch", "length", "warmup"),
    [
        ("mrpc", 20, 100, 128, 500),
        ("cola", 20, 100, 128, 500),
        ("stsb", 20, 100, 128, 500),
        ("rte", 20, 100, 128, 500),
        ("sst2", 3, 100, 128, 500),
        ("mnli", 3, 100, 128, 500),
        ("boolq", 20, 32, 256, 0),
        ("wic", 20, 32, 256, 0),
        ("multirc", 3, 32, 256, 0),
        ("record", 3, 16, 512, 0),
    ],
)
def test_schedules_are_the_papers(task, epochs, batch, length, warmup):
    found = defaults_for(TASKS[task], "compacter", "t5-base", rows=1)
    assert (found.epochs, found.batch_size, found.max_length) == (epochs, batch, length)
    assert found.warmup_steps == warmup
    small = defaults_for(TASKS[task], "compacter", "t5-small", rows=1)
    assert small.warmup_steps == 0


def test_what_the_paper_does_not_cover():
    roles = find_task("builtin/roles")
    found = defaults_for(roles, "compacter++", "other", rows=5_000)
    assert (found.epochs, found.batch_size, found.dropout) == (1, 16, 0.0)
    assert found.learning_rate == learning_rate("compacter++", "glue", "t5-base")
    assert defaults_for(roles, "full", "other", rows=5_000).learning_rate == 1e-4
    assert model_size("t5", 768) == "t5-base"
    assert model_size("t5", 512) == "t5-small"
    assert model_size("bert", 768) == "other"
    assert warmup_steps("glue", "other") is None
    assert warmup_steps("custom", "t5-base") is None
    assert [usual_warmup(steps) for steps in (1, 300, 1_500, 9_000)] == [0, 60, 300, 500]

"""Runs on tiny models that really learn a small task: what they leave, repeat and refuse."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import TrainerCallback

from compacter.errors import CompacterError, TrainingError
from compacter.experiments.compare import compare
from compacter.training import Recipe, evaluate, predict, read_result, train
from compacter.training.inference import load_run
from compacter.training.memory import peak_memory, reset_peak_memory
from compacter.training.prepare import for_method, prepare
from compacter.training.run import make_trainer
from official_files import write_official
from tiny_tasks import recipe_values

WAYS = {
    # From another seed this small a T5 may not learn the task
    "t5": {"method": "compacter", "bottleneck": 16, "seed": 1},
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
        "train.log",
    }
    log = (folder / "train.log").read_text().splitlines()
    assert f"{result.trainable:,} of" in log[0]
    assert sum("validation accuracy" in line for line in log) == recipe.epochs
    assert f"finished: test {result.test}" in log[-1]
    lines = [json.loads(x) for x in (folder / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == 80
    right = sum(line["answer"] == line["label"] for line in lines)
    assert 100 * right / len(lines) == pytest.approx(result.test["accuracy"])
    filled = Recipe.read(folder / "recipe.yaml")
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


def write_test_file(path: Path, rows: list[tuple[str, str]], columns=("text", "label")) -> str:
    path.write_text("\n".join(map(",".join, [columns, *rows])) + "\n")
    return str(path)


def test_a_run_is_scored_on_other_files(runs, tmp_path):
    folder = runs["t5"][0]
    rows = [("red cat one", "yes"), ("blue dog", "no"), ("two cat", "no"), ("dog dog one", "no")]
    other = write_test_file(tmp_path / "other.csv", rows)
    assert evaluate(folder, test_file=other)["accuracy"] == 75.0
    named = write_test_file(tmp_path / "named.csv", rows, columns=("words", "class"))
    columns = {"text_columns": ("words",), "label_column": "class"}
    assert evaluate(folder, test_file=named, **columns)["accuracy"] == 75.0
    strange = write_test_file(tmp_path / "strange.csv", [("red cat", "perhaps")])
    with pytest.raises(CompacterError, match="'perhaps'"):
        evaluate(folder, test_file=strange)


def test_a_run_is_not_scored_on_a_task_with_other_answers(runs, tmp_path):
    write_official("cb", tmp_path)
    with pytest.raises(TrainingError, match=r"the run answers .*, and cb asks for entailment, "):
        evaluate(runs["bert"][0], task="cb", data_dir=str(tmp_path))


def test_a_run_of_a_benchmark_is_scored_on_files_of_ones_own(tmp_path):
    values = recipe_values("bert", tmp_path, method="compacter", epochs=1)
    benchmark = {k: v for k, v in values.items() if not k.endswith(("_file", "columns"))}
    write_official("rte", tmp_path)
    run = tmp_path / "run"
    train(Recipe.make({**benchmark, "task": "rte", "data_dir": str(tmp_path)}), run)
    rows = [("red cat", "a cat", "entailment"), ("blue dog", "a cat", "not_entailment")]
    own = write_test_file(tmp_path / "own.csv", rows, columns=("one", "two", "label"))
    found = evaluate(run, test_file=own, text_columns=("one", "two"))
    assert set(found) == {"accuracy", "f1"}
    assert evaluate(run, task="rte", split="validation").keys() == {"accuracy"}


def test_a_run_answers_where_its_training_file_is_gone(tmp_path):
    values = recipe_values("t5", tmp_path, method="compacter", epochs=1)
    train(Recipe.make(values), tmp_path / "run")
    for split in ("train", "validation"):
        Path(values[f"{split}_file"]).unlink()
    assert len(predict(tmp_path / "run", ["red cat"])) == 1
    assert evaluate(tmp_path / "run").keys() == {"accuracy", "f1"}


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
    lines = (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()
    assert {json.loads(line, parse_constant=pytest.fail)["score"] for line in lines} == {None}
    with pytest.raises(TrainingError, match=r"numbers of .* are NaN or infinite, as a run"):
        predict(tmp_path / "run", ["red cat one two one"])


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
        ({"method": "adapter", "A_learning_rate": 0.1}, "'adapter' has no A"),
        ({"model": "x.gguf"}, "there is no file 'x.gguf'; expected a GGUF model"),
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


def test_dropout_of_the_model_is_set(tmp_path):
    values = recipe_values("bert", tmp_path, method="compacter", dropout=0.25)
    model = prepare(Recipe.make(values)).model
    dropouts = [m.p for m in model.modules() if isinstance(m, torch.nn.Dropout)]
    assert set(dropouts) == {0.25}
    assert model.config.attention_probs_dropout_prob == 0.25


@pytest.mark.parametrize(("method", "slow"), [("compacter", 1), ("phm-adapter", 2)])
def test_A_has_a_learning_rate_of_its_own(method, slow, tmp_path):
    values = recipe_values("t5", tmp_path, method=method, learning_rate=0.5, A_learning_rate=0.125)
    ready = prepare(Recipe.make(values))
    optimizer = make_trainer(ready, tmp_path / "run", None, ()).create_optimizer()
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0}
    names = {n: p for n, p in ready.model.named_parameters() if p.requires_grad}
    of_A = {name for name in names if name.rpartition(".")[2] in ("A", "down_A", "up_A")}
    assert len(of_A) == slow
    assert {n: rates[id(p)] for n, p in names.items()} == {
        name: 0.125 if name in of_A else 0.5 for name in names
    }


def test_methods_without_A_have_no_rate_for_it():
    shared = Recipe.make({"A_learning_rate": 0.1, "n": 4})
    for method, rate in (
        ("compacter", 0.1),
        ("phm-adapter", 0.1),
        ("adapter", None),
        ("full", None),
    ):
        assert for_method(shared, method).A_learning_rate == rate


def test_batches_of_like_lengths_have_less_padding(tmp_path):
    values = recipe_values("t5", tmp_path, method="compacter")
    draw = random.Random(0)
    rows = [
        (" ".join(["cat"] * draw.randint(1, 40)), draw.choice(["yes", "no"])) for _ in range(200)
    ]
    values["train_file"] = write_test_file(tmp_path / "lengths.csv", rows)

    def width(group_by_length: bool) -> int:
        recipe = Recipe.make({**values, "batch_size": 10, "group_by_length": group_by_length})
        loader = make_trainer(prepare(recipe), tmp_path, None, []).get_train_dataloader()
        assert sum(len(batch["input_ids"]) for batch in loader) == 200
        return sum(batch["input_ids"].numel() for batch in loader)

    assert width(True) < 0.75 * width(False)


def test_bfloat16_computes_in_it_and_keeps_float32(values, tmp_path):
    result = same_run(values, tmp_path / "run", bf16=True)
    plain = same_run(values, tmp_path / "plain")
    assert result.curve[0]["loss"] != plain.curve[0]["loss"]
    assert result.curve[0]["loss"] == pytest.approx(plain.curve[0]["loss"], rel=0.02)
    saved = load_file(tmp_path / "run" / "adapter" / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}


def test_reports(values, tmp_path, monkeypatch):
    recipe = Recipe.make({**values, "epochs": 1})
    with pytest.raises(TrainingError, match="'paper' is unknown; choose one of tensorboard, wandb"):
        train(recipe, tmp_path / "run", report_to="paper")
    monkeypatch.setattr("compacter.training.run.find_spec", lambda name: None)
    with pytest.raises(TrainingError, match="is not installed: pip install trackio"):
        train(recipe, tmp_path / "run", report_to="trackio")
    assert not (tmp_path / "run").exists()


# Several runs


def test_runs_at_the_same_time_give_what_they_give_one_after_the_other(values, tmp_path, capfd):
    methods = ("compacter", "bitfit", "full")
    settings = {**values, "epochs": 1, "bottleneck": None}
    torch.set_num_threads(1)
    alone = compare(methods=methods, output=tmp_path / "alone", **settings)
    together = compare(
        methods=methods, output=tmp_path / "together", jobs=2, watched=True, **settings
    )
    assert [result.method for result in together] == list(methods)
    assert [result.curve for result in together] == [result.curve for result in alone]
    lines = capfd.readouterr().err.splitlines()
    for name in methods:
        assert any(line.startswith(f"{name}: step ") for line in lines)
    with pytest.raises(TrainingError, match="together/bitfit' holds a finished run"):
        compare(methods=("prompt-tuning-r", "bitfit"), output=tmp_path / "together", **settings)
    assert not (tmp_path / "together" / "prompt-tuning-r").exists()
    with pytest.raises(TrainingError, match="jobs=0 does not fit"):
        compare(methods=methods, output=tmp_path / "none", jobs=0, **settings)


def test_a_run_that_fails_in_a_process_of_its_own_says_why(values, tmp_path):
    with pytest.raises(CompacterError, match="n=3 does not divide"):
        compare(methods=("compacter", "compacter++"), output=tmp_path, jobs=2, **{**values, "n": 3})


def test_memory_of_an_earlier_run_does_not_count():
    reset_peak_memory()
    before = peak_memory()
    torch.ones(30_000_000)
    assert peak_memory() > before + 100_000_000
    reset_peak_memory()
    assert peak_memory() < before + 60_000_000

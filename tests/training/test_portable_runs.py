"""What a run leaves is all that it takes to use it elsewhere: heads, tokenizers, recipes, cards."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
)

import compacter
from compacter.errors import ArchitectureError, TrainingError
from compacter.models.pretrained import load_tokenizer
from compacter.tasks import TASKS
from compacter.training import Recipe, predict, train
from compacter.training.inference import as_row, load_run
from compacter.training.prepare import prepare
from tiny_tasks import recipe_values, save_model

TEXTS = ["red cat one two blue", "dog red red one one", "blue dog two"]


def answers(folder: Path) -> list[tuple[str, float]]:
    return [(found.text, round(found.score, 5)) for found in predict(folder, TEXTS)]


@pytest.mark.parametrize(("kind", "method"), [("t5", "compacter"), ("bert", "full")])
def test_weights_can_be_copied_away(kind, method, tmp_path):
    values = recipe_values(kind, tmp_path, method=method, epochs=1, learning_rate=1e-3)
    train(Recipe.make(values), tmp_path / "run")
    expected = answers(tmp_path / "run")
    (weights,) = (p for p in (tmp_path / "run").iterdir() if p.name in ("adapter", "model"))
    shutil.copytree(weights, tmp_path / "copy")
    shutil.rmtree(tmp_path / "run")
    assert answers(tmp_path / "copy") == expected
    recipe = (tmp_path / "copy" / "recipe.yaml").read_text()
    assert "train_file: train.csv" in recipe, "names, and no places of this machine"


def test_a_model_is_saved_with_its_tokenizer(tmp_path):
    values = recipe_values("bert", tmp_path, method="full", epochs=1)
    train(Recipe.make(values), tmp_path / "run")
    model = str(tmp_path / "run" / "model")
    assert load_tokenizer(model).get_vocab() == load_tokenizer(values["model"]).get_vocab()
    again = Recipe.make({**values, "model": model, "method": "compacter"})
    assert train(again, tmp_path / "again").status == "finished"


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    """Transformers makes one of special tokens alone, to which every word is unknown."""
    values = recipe_values("bert", tmp_path, method="compacter")
    for file in Path(values["model"]).glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ArchitectureError, match=r"tokenizer of '.*' knows \d tokens and no words"):
        train(Recipe.make(values), tmp_path / "run")


def save_deberta(folder: Path) -> str:
    """Its pooler is beside the model and not in it, and new for every task."""
    save_model("bert", folder)
    config = DebertaV2Config(
        vocab_size=18,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=0,
        pooler_hidden_size=64,
    )
    DebertaV2ForSequenceClassification(config).deberta.save_pretrained(folder)
    return str(folder)


def save_without_pooler(folder: Path) -> str:
    """As those who pretrain on masked words alone save it."""
    save_model("bert", folder)
    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if "pooler" not in name}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


@pytest.mark.parametrize("save", [save_deberta, save_without_pooler])
def test_what_the_base_model_lacks_is_the_same_after_loading(save, tmp_path):
    model = save(tmp_path / "base")
    values = recipe_values("bert", tmp_path, method="compacter", epochs=1, model=model)
    train(Recipe.make({**values, "seed": 3}), tmp_path / "run")
    first, second = answers(tmp_path / "run"), answers(tmp_path / "run")
    assert first == second
    lines = (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()
    run = load_run(tmp_path / "run")
    rows = [line.partition(",")[0] for line in Path(values["test_file"]).read_text().splitlines()]
    found = run.predict([as_row(run.task, text) for text in rows[1:]])
    expected = [json.loads(line)["score"] for line in lines]
    assert [prediction.score for prediction in found] == pytest.approx(expected, abs=1e-5)


def pooler_of(model) -> torch.Tensor:
    """The weights that a model's pooler computes with."""
    (found,) = (
        value.clone()
        for name, value in model.state_dict().items()
        if "pooler" in name and name.endswith("dense.weight") and "original_module" not in name
    )
    return found


@pytest.mark.parametrize("method", ["compacter", "bitfit", "prompt-tuning-r", "head-only", "full"])
def test_a_pooler_that_the_base_model_lacks_is_trained_with_the_head(method, tmp_path):
    values = recipe_values("bert", tmp_path, method=method, epochs=1)
    values["model"] = save_without_pooler(tmp_path / "base")
    if method == "prompt-tuning-r":
        values["num_tokens"] = 4
    before = pooler_of(prepare(Recipe.make(values)).model)
    result = train(Recipe.make(values), tmp_path / "run")
    assert result.head_trainable == (64 * 64 + 64) + (2 * 64 + 2)
    (file,) = (tmp_path / "run").glob("*/*model.safetensors")
    (saved,) = (t for name, t in load_file(file).items() if name.endswith("pooler.dense.weight"))
    assert not torch.equal(before, saved)
    assert torch.equal(pooler_of(load_run(tmp_path / "run").model), saved)


def test_weights_that_do_not_fit_their_configuration(tmp_path):
    values = recipe_values("t5", tmp_path, method="compacter")
    file = Path(values["model"], "model.safetensors")
    tensors = {name.replace(".wo.", ".out."): value for name, value in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    told = r"4 of \d+ tensors are missing .*wo.weight.*; 4 have no place in the model"
    with pytest.raises(ArchitectureError, match=told):
        train(Recipe.make(values), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_trained_model_whose_head_is_gone(tmp_path):
    values = recipe_values("bert", tmp_path, method="full", epochs=1)
    train(Recipe.make(values), tmp_path / "run")
    file = tmp_path / "run" / "model" / "model.safetensors"
    tensors = {k: v for k, v in load_file(file).items() if not k.startswith("classifier")}
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ArchitectureError, match=r"2 of 41 tensors are missing \(classifier.bias"):
        predict(tmp_path / "run", TEXTS)


def test_a_head_for_other_labels_gives_way(tmp_path):
    folder = tmp_path / "three"
    save_model("bert", folder)
    config = BertForSequenceClassification.from_pretrained(folder).config
    config.num_labels = 3
    BertForSequenceClassification(config).save_pretrained(folder)
    values = recipe_values("bert", tmp_path, method="compacter", epochs=1, model=str(folder))
    result = train(Recipe.make(values), tmp_path / "run")
    assert result.head_trainable == 2 * 64 + 2
    assert len(answers(tmp_path / "run")) == 3


@pytest.mark.parametrize("kind", ["t5", "bert", "llama"])
def test_the_card_says_how_to_load_it(kind, tmp_path):
    """Its lines are run as they stand, with the folder's name put in."""
    values = recipe_values(kind, tmp_path, method="compacter", epochs=1, bottleneck=16)
    result = train(Recipe.make(values), tmp_path / "run")
    adapter = tmp_path / "run" / "adapter"
    card = (adapter / "README.md").read_text()
    assert "[More Information Needed]" not in card
    assert f"| trained parameters | {result.trainable:,} ({result.percent:g}%) |" in card
    assert "| bottleneck | 16 |" in card
    assert f"| test accuracy | {result.test['accuracy']:.2f} |" in card
    parts = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(parts) == 2
    names = {"texts": TEXTS}
    for part in parts:
        exec(part.replace("path/of/this/folder", str(adapter)), names)
    expected = load_run(adapter)
    assert [found.text for found in names["answers"]] == [text for text, _ in answers(adapter)]
    state = expected.model.state_dict()
    for name, value in names["model"].state_dict().items():
        if "compacter" in name or "modules_to_save" in name:
            assert torch.equal(value, state[name]), name


def test_the_base_model_of_the_package_has_no_path(tmp_path):
    values = {k: v for k, v in recipe_values("t5", tmp_path).items() if k != "model"}
    ready = {**values, "method": "bitfit", "max_train_samples": 16, "epochs": 1}
    result = train(Recipe.make(ready), tmp_path / "run")
    assert result.model == "builtin/minilm"
    for name in ("adapter_config.json", "README.md"):
        text = (tmp_path / "run" / "adapter" / name).read_text()
        assert "builtin/minilm" in text
        assert "site-packages" not in text
    part = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[1]
    names = {}
    exec(part.replace("path/of/this/folder", str(tmp_path / "run" / "adapter")), names)
    assert isinstance(
        names["base"], AutoModelForSequenceClassification._model_mapping[type(names["base"].config)]
    )


def test_settings_as_they_were_used(tmp_path):
    values = recipe_values("bert", tmp_path, method="compacter++", epochs=1)
    result = train(Recipe.make(values), tmp_path / "run")
    used = {name: result.settings[name] for name in ("n", "bottleneck", "rank")}
    assert result.recipe["n"] is None
    assert used == {"n": 4, "bottleneck": 4, "rank": 1}
    adapter = {**values, "method": "adapter"}
    assert "n" not in train(Recipe.make(adapter), tmp_path / "adapter").settings
    prompt = {**values, "method": "prompt-tuning-r", "num_tokens": 3}
    assert train(Recipe.make(prompt), tmp_path / "prompt").settings == {"num_tokens": 3}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"max_length": 513}, "max_length=513 is more than the 512 positions"),
        (
            {"max_length": 450, "method": "prompt-tuning-r"},
            "max_length=450 after a prompt of 100 is more than the 512 .* at most 412",
        ),
    ],
)
def test_texts_longer_than_the_model_reads(settings, told, tmp_path):
    values = recipe_values("bert", tmp_path, method="compacter")
    with pytest.raises(TrainingError, match=told):
        prepare(Recipe.make({**values, **settings}))
    prepare(Recipe.make({**values, "max_length": 512}))


def test_batches_of_the_paper_are_shared_out(tmp_path, monkeypatch):
    values = {**recipe_values("bert", tmp_path, method="compacter"), "batch_size": None}
    assert prepare(Recipe.make(values)).recipe.batch_size == 32
    monkeypatch.setenv("WORLD_SIZE", "2")
    shared = prepare(Recipe.make({**values, "gradient_accumulation": 4}))
    assert shared.recipe.batch_size == 4


def test_a_warm_up_where_the_paper_has_none(tmp_path):
    """A fifth of the 60 steps, unless it is given."""
    values = recipe_values("bert", tmp_path, method="compacter")
    assert prepare(Recipe.make({**values, "warmup_steps": None})).recipe.warmup_steps == 12
    assert prepare(Recipe.make({**values, "warmup_steps": 0})).recipe.warmup_steps == 0


def test_memory_that_is_not_enough_is_advice(tmp_path, monkeypatch):
    """Really too much, on a CPU, while the model is made."""
    values = recipe_values("bert", tmp_path, method="compacter")
    monkeypatch.setattr(
        "compacter.training.prepare.load_model",
        lambda *_, **__: torch.empty(2**60, dtype=torch.int8),
    )
    with pytest.raises(TrainingError, match="make batch_size smaller"):
        train(Recipe.make(values), tmp_path / "run")


def test_tensorboard_files_stay(tmp_path):
    pytest.importorskip("tensorboard")
    values = recipe_values("bert", tmp_path, method="compacter", epochs=1)
    train(Recipe.make(values), tmp_path / "run", report_to="tensorboard")
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_watched_run_tells_its_progress(tmp_path, capfd):
    values = recipe_values("bert", tmp_path, method="compacter", epochs=1)
    compacter.train(output=tmp_path / "quiet", **values)
    assert "step" not in capfd.readouterr().err
    compacter.train(output=tmp_path / "watched", watched=True, **values)
    assert "steps/s" in capfd.readouterr().err


@pytest.mark.parametrize("entities", [5, "Ann, Bob", ["Ann", 5]])
def test_entities_that_are_no_list_of_texts(entities):
    text = {"passage": "Ann saw Bob.", "query": "@placeholder ran.", "entities": entities}
    with pytest.raises(TrainingError, match="expected a list of texts"):
        as_row(TASKS["record"], text)
    with pytest.raises(TrainingError, match="expected a list of 'entities'"):
        as_row(TASKS["record"], {**text, "entities": []})

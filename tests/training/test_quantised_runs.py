"""Runs on base models that are loaded in 8 or 4 bits."""

from __future__ import annotations

import csv
import json

import pytest
import torch

import compacter
from adapting import logits
from compacter.errors import ArchitectureError
from compacter.models.pretrained import load_model
from compacter.training import Recipe, evaluate, predict, train
from quantised_models import batch_of, float_model, gradients
from tiny_tasks import recipe_values

pytest.importorskip("bitsandbytes", reason="pip install 'compacter-peft[quantised]'")

BITS = ("8bit", "4bit")


def run_of(kind, folder, **settings):
    folder.mkdir(exist_ok=True)
    values = recipe_values(kind, folder, bottleneck=16, method="compacter", **settings)
    return train(Recipe.make(values), folder / "run")


def check_loading(folder, result):
    """The run, loaded again, gives the answers of its test, just as sure."""
    with (folder / "test.csv").open(encoding="utf-8") as file:
        texts = [line["text"] for line in csv.DictReader(file)]
    lines = (folder / "run" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    expected = [json.loads(line)["score"] for line in lines]
    found = [answer.score for answer in predict(folder / "run", texts)]
    assert found == pytest.approx(expected, rel=0.01)
    assert evaluate(folder / "run", split="test") == pytest.approx(result.test, abs=0.01)


@pytest.mark.parametrize("quantize", BITS)
def test_the_task_is_learned_and_the_run_loads_again(quantize, tmp_path):
    result = run_of("t5", tmp_path, quantize=quantize)
    assert result.test["accuracy"] > 70  # guessing gets 50
    assert result.warnings == []
    check_loading(tmp_path, result)


@pytest.mark.parametrize("quantize", BITS)
@pytest.mark.parametrize(("kind", "head"), [("bert", 2 * 64 + 2), ("llama", 0)])
def test_runs_of_other_kinds(kind, head, quantize, tmp_path):
    """Of an encoder the head is trained, which transformers would quantise."""
    result = run_of(kind, tmp_path, quantize=quantize, epochs=1)
    assert result.status == "finished"
    assert result.head_trainable == head
    not_quantised = run_of(kind, tmp_path / "float", epochs=1)
    assert result.percent == pytest.approx(not_quantised.percent, abs=0.01)
    check_loading(tmp_path, result)


def test_intrinsic_said_is_refused_before_anything_is_written(tmp_path):
    values = recipe_values("t5", tmp_path, method="intrinsic-said", intrinsic_dim=500)
    with pytest.raises(ArchitectureError, match=r"Intrinsic-SAID moves every weight"):
        train(Recipe.make({**values, "quantize": "8bit"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("quantize", BITS)
def test_validation_leaves_the_gradients_alone(quantize, tmp_path):
    """bitsandbytes packs 4-bit weights anew in eval mode on some CPUs, without a backward pass."""
    float_model("t5").save_pretrained(tmp_path)
    inputs = batch_of("t5")
    model = compacter.attach(
        load_model(str(tmp_path), "encoder-decoder", quantize=quantize).model, "compacter"
    )
    before = gradients(model, inputs)
    logits(model.eval(), **inputs)
    after = gradients(model, inputs)
    assert all(torch.equal(after[name], gradient) for name, gradient in before.items())

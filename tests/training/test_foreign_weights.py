"""A run answers with the weights that it trained, or not at all."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM

import compacter
from commands import check_refused
from compacter.errors import CompacterError, TrainingError
from compacter.models.pretrained import load_model, load_tokenizer
from compacter.tasks import TASKS
from compacter.training import Recipe, evaluate, predict
from compacter.training.inference import TrainedRun, as_row
from compacter.training.pipelines import make_pipeline
from tiny_tasks import recipe_values, save_model

TEXTS = ["red cat one two blue", "dog red red one one"]
RUNS: dict[str, dict[str, Any]] = {
    "compacter": {"kind": "t5", "bottleneck": 16},
    "bitfit": {"kind": "bert"},
    "intrinsic-said": {"kind": "bert", "intrinsic_dim": 64},
    "prompt-tuning-r": {"kind": "bert", "num_tokens": 4},
    "full": {"kind": "bert"},
}

Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A run of each method, trained once; its base model is beside it."""
    folders: dict[str, Path] = {}

    def make(method: str) -> Path:
        if method not in folders:
            folder = folders[method] = tmp_path_factory.mktemp(method)
            values = recipe_values(folder=folder, method=method, epochs=1, **RUNS[method])
            compacter.train(output=folder / "run", **values)
        return folders[method] / "run"

    return make


@pytest.fixture
def run(trained: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a run, to change."""
    return lambda method: shutil.copytree(trained(method), tmp_path / "run")


def edit(folder: Path, **values: Any) -> None:
    path = folder / "adapter" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def move_base(folder: Path, base: Path) -> None:
    """Have a run look for its base model in another place."""
    path = folder / "result.json"
    result = json.loads(path.read_text())
    result["recipe"]["model"] = str(base)
    path.write_text(json.dumps(result))


def change(folder: Path, make: Callable[[Tensors], Tensors]) -> None:
    (path,) = folder.glob("*/*model.safetensors")
    save_file(make(load_file(path)), path, metadata={"format": "pt"})


def refused(folder: Path, *told: str) -> None:
    """By both ways to use a run, from Python."""
    for use in (lambda: predict(folder, TEXTS), lambda: evaluate(folder)):
        with pytest.raises(CompacterError) as error:
            use()
        for part in told:
            assert part in str(error.value)


@pytest.mark.parametrize("method", RUNS)
def test_a_run_is_used_without_a_warning(method: str, run: Any) -> None:
    folder = run(method)
    base = Path(json.loads((folder / "result.json").read_text())["recipe"]["model"])
    moved = shutil.copytree(base, folder / "base")
    move_base(folder, moved)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(predict(folder, TEXTS)) == 2
        assert evaluate(folder)["accuracy"] >= 0


# Adapters of another kind


@pytest.mark.parametrize("method", [method for method in RUNS if method != "full"])
def test_a_type_that_the_run_did_not_train(method: str, run: Any) -> None:
    folder = run(method)
    edit(folder, peft_type="LORA")
    refused(folder, "of the type 'LORA', and the run trained " + method, "expected the type")
    refused(folder / "adapter", "of the type 'LORA'")


def test_a_real_lora_adapter_in_the_place_of_the_runs_own(run: Any, command: Any) -> None:
    folder = run("compacter")
    recipe = json.loads((folder / "result.json").read_text())["recipe"]
    base = AutoModelForSeq2SeqLM.from_pretrained(recipe["model"])
    lora = get_peft_model(base, LoraConfig(target_modules=["q"], task_type="SEQ_2_SEQ_LM"))
    lora.save_pretrained(folder / "adapter")
    refused(folder, "of the type 'LORA', and the run trained compacter")
    for arguments in (["predict", TEXTS[0]], ["evaluate"]):
        answer = command(arguments[0], "--adapter", str(folder), *arguments[1:])
        check_refused(answer, "of the type 'LORA', and the run trained compacter")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"projection": "dense"}, ["projection='dense'", "compacter with projection='lphm'"]),
        ({"activation": "relu"}, ["has activation='relu'", "activation='gelu_new'"]),
        ({"bottleneck": 8}, ["has bottleneck=8", "bottleneck=16"]),
        ({"positions": 5}, ["is not the configuration of an adapter"]),
    ],
)
def test_settings_that_the_run_did_not_have(values: Any, told: list[str], run: Any) -> None:
    folder = run("compacter")
    edit(folder, **values)
    refused(folder, *told)


def test_another_method_of_the_same_type(run: Any) -> None:
    folder = run("compacter")
    result = json.loads((folder / "result.json").read_text())
    result["recipe"]["method"] = "compacter++"
    (folder / "result.json").write_text(json.dumps(result))
    refused(folder, "the run trained compacter++ with positions=['feed_forward']")


def test_settings_of_a_prompt(run: Any) -> None:
    folder = run("prompt-tuning-r")
    edit(folder, num_virtual_tokens=5)
    refused(folder, "has num_tokens=5", "with num_tokens=4")


def test_a_run_of_another_method(run: Any, trained: Any) -> None:
    """The adapter of one run in the folder of another."""
    folder = run("bitfit")
    shutil.rmtree(folder / "adapter")
    shutil.copytree(trained("prompt-tuning-r") / "adapter", folder / "adapter")
    refused(folder, "of the type 'PROMPT_TUNING', and the run trained bitfit")


@pytest.mark.parametrize(
    ("content", "told"),
    [("{", "is not the configuration of an adapter"), ("[]", "is not"), ("{}", "is not")],
)
def test_a_configuration_that_is_no_adapters(content: str, told: str, run: Any) -> None:
    folder = run("bitfit")
    (folder / "adapter" / "adapter_config.json").write_text(content)
    refused(folder, told)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.parametrize("method", ["bitfit", "prompt-tuning-r"])
def test_a_file_that_is_missing(method: str, name: str, run: Any) -> None:
    folder = run(method)
    (folder / "adapter" / name).unlink()
    refused(folder, name)


# Tensors


@pytest.mark.parametrize("method", [method for method in RUNS if method != "full"])
def test_every_tensor_must_be_loaded(method: str, run: Any) -> None:
    folder = run(method)
    (path,) = folder.glob("adapter/*.safetensors")
    name = sorted(load_file(path))[-1]
    change(folder, lambda tensors: tensors | {"another": torch.zeros(1)})
    refused(folder, "another has no place in this model")
    change(folder, lambda tensors: {k: v for k, v in tensors.items() if k not in (name, "another")})
    refused(folder, f"{name} is missing")
    change(folder, lambda tensors: tensors | {name: torch.zeros(3, 1, 3)})
    refused(folder, f"{name} has shape [3, 1, 3], expected")


def test_a_base_model_that_has_lost_its_pooler(run: Any, tmp_path: Path) -> None:
    folder = run("bitfit")
    base = Path(save_model("bert", tmp_path / "base"))
    weights = {k: v for k, v in load_file(base / "model.safetensors").items() if "pooler" not in k}
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    move_base(folder, base)
    refused(folder, "the base model has no weights for bert.pooler, nor has the adapter in")


# Numbers that are none


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("method", RUNS)
def test_weights_that_are_not_finite(method: str, value: float, run: Any, command: Any) -> None:
    folder = run(method)
    (path,) = folder.glob("*/*model.safetensors")
    name = sorted(load_file(path))[0]

    def spoil(tensors: Tensors) -> Tensors:
        tensors[name].view(-1)[0] = value
        return tensors

    change(folder, spoil)
    count = load_file(path)[name].numel()
    told = f"1 of {count} numbers of {name} are NaN or infinite"
    refused(folder, told)
    check_refused(command("predict", "--adapter", str(folder), TEXTS[0]), told)


@pytest.mark.parametrize("method", ["compacter", "bitfit"])
def test_answers_that_are_no_numbers(method: str, run: Any, command: Any, tmp_path: Path) -> None:
    """A base model that is spoilt after the training."""
    folder = run(method)
    base = Path(save_model(RUNS[method]["kind"], tmp_path / "base"))
    weights = load_file(base / "model.safetensors")
    for name in weights:
        if "embeddings.word" in name or name == "shared.weight":
            weights[name][:] = torch.nan
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    move_base(folder, base)
    refused(folder, "the model computes NaN or infinite numbers for text 1 of ")
    for arguments in (["predict", *TEXTS], ["evaluate", "--json"]):
        answer = command(arguments[0], "--adapter", str(folder), *arguments[1:])
        check_refused(answer, "the model computes NaN or infinite numbers for text 1 of ")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["stsb", "copa", "rte"])
def test_every_kind_of_answer_is_checked(name: str, value: float, tmp_path: Path) -> None:
    task, folder = TASKS[name], save_model("bert", tmp_path / "bert")
    pipeline = make_pipeline(task, load_tokenizer(folder), "encoder", 16)
    model: Any = load_model(folder, "encoder", **pipeline.head).model  # type: ignore[union-attr]
    fields = dict.fromkeys(task.fields, "red cat") | {"question": "cause"}
    rows = [as_row(task, fields)] * 2
    ready = TrainedRun(Recipe.make({"batch_size": 2}), task, model.eval(), pipeline)
    assert len(ready.predict(rows)) == 2
    with torch.no_grad():
        model.classifier.bias[0] = value
    with pytest.raises(TrainingError, match="NaN or infinite numbers for text 1 of 2"):
        ready.predict(rows)

"""What is told of an adapter's files is what models, tensors and runs say when they are counted
independently."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from peft import get_peft_model
from safetensors.torch import load_file
from torch import nn
from transformers.models.t5.modeling_t5 import T5LayerNorm

import compacter
from adapting import ADAPTED_METHODS, SMALL_ENOUGH, TUNER_METHODS, attach_tiny, save
from compacter.methods import METHODS
from compacter.training import read_result
from compacter.training.inspection import Inspection, in_short
from made_runs import make_run
from tiny_models import TINY
from tiny_tasks import recipe_values

MADE = [
    *(("t5", method, {}) for method in ADAPTED_METHODS),
    *(("t5", method, {"tune_output_layer": True}) for method in ("compacter", "bitfit")),
    ("t5", "compacter", {"use_bias": False, "train_layer_norms": False}),
    ("bert", "compacter", {}),
    ("roberta", "bitfit", {}),
    ("distilbert", "compacter++", {}),
    ("deberta", "intrinsic-said", {}),
    ("bert", "prompt-tuning-r", {}),
    ("llama", "phm-adapter", {}),
]


@pytest.fixture(
    params=MADE, ids=["-".join([family, method, *more]) for family, method, more in MADE]
)
def made(request, tmp_path):
    family, method, settings = request.param
    model = attach_tiny(family, method, **settings)
    return model, compacter.inspect(save(model, tmp_path / "adapter"))


def trained(model: nn.Module, *, heads: bool) -> int:
    return sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and (".modules_to_save." in name) == heads
    )


def places(found: Inspection) -> dict[str, int]:
    return {place.kind: place.count for place in found.places}


def test_the_counts_are_those_of_the_model(made):
    model, found = made
    assert found.trainable == trained(model, heads=False)
    assert found.head_trainable == trained(model, heads=True)


def test_the_tensors_are_those_of_the_file(made):
    _, found = made
    path = Path(found.folder) / "adapter_model.safetensors"
    tensors = load_file(path)
    assert {tensor.name: tensor.shape for tensor in found.tensors} == {
        name: tuple(tensor.shape) for name, tensor in tensors.items()
    }
    assert {tensor.dtype for tensor in found.tensors} == {"F32"}
    for tensor in found.tensors:
        assert tensor.numbers == tensors[tensor.name].numel()
    assert found.parameter_bytes == sum(t.numel() * t.element_size() for t in tensors.values())
    assert found.file_bytes == path.stat().st_size


def test_types_of_two_bytes_are_told_and_counted(tmp_path):
    model = get_peft_model(
        TINY["t5"]().bfloat16(), compacter.BitFitConfig(), autocast_adapter_dtype=False
    ).bfloat16()
    found = compacter.inspect(save(model, tmp_path))
    assert {tensor.dtype for tensor in found.tensors} == {"BF16"}
    assert found.parameter_bytes == 2 * found.trainable


@pytest.mark.parametrize("method", ADAPTED_METHODS)
def test_the_method_is_known_by_its_settings(method, tmp_path):
    found = compacter.inspect(save(attach_tiny("t5", method), tmp_path))
    if METHODS[method].family == "prompt":  # both are saved alike
        assert found.method is None
        assert found.nearest == ("prompt-tuning-r", "prompt-tuning-t")
        assert "prompt-tuning-r or prompt-tuning-t\n" in str(found)
    else:
        assert (found.method, found.nearest) == (method, (method,))
    sizes = {"n", "bottleneck"} & found.settings.keys()
    assert {n: v for n, v in found.settings.items() if n not in sizes} == SMALL_ENOUGH.get(
        method, {}
    )
    hypercomplex = method in ("phm-adapter", "compacter", "compacter++")
    is_adapter = METHODS[method].family == "adapter"
    assert sizes == ({"n"} if hypercomplex else set()) | ({"bottleneck"} if is_adapter else set())


@pytest.mark.parametrize(
    ("settings", "nearest"),
    [
        ({"share_A": False}, ("compacter",)),
        ({"share_A": False, "positions": ("feed_forward",)}, ("compacter++",)),
        ({"positions": ("attention",)}, ("compacter", "compacter++")),
        ({"drop_layers": 1}, ("compacter",)),
        ({"projection": "phm"}, ("phm-adapter",)),
        ({"projection": "low-rank", "positions": ("attention",)}, ("adapter-lowrank",)),
        ({"projection": "dense", "positions": ("feed_forward",)}, ("adapter", "pfeiffer-adapter")),
    ],
)
def test_no_method_of_the_paper(settings, nearest, tmp_path):
    config = compacter.CompacterConfig(bottleneck=8, **settings)
    found = compacter.inspect(save(get_peft_model(TINY["t5"](), config), tmp_path))
    assert found.method is None
    assert found.nearest == nearest
    assert f"no method of the paper; nearest: {' or '.join(nearest)}\n" in str(found)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("compacter", {"n": 2, "bottleneck": 6, "rank": 2, "tune_output_layer": True}),
        ("compacter++", {"n": 4, "bottleneck": 4, "activation": "relu", "use_bias": False}),
        (
            "adapter",
            {"bottleneck": 3, "exclude_modules": ["SelfAttention.o"], "layers_to_transform": [1]},
        ),
        ("bitfit", {"biases": "added"}),
        ("intrinsic-said", {"intrinsic_dim": 300, "projection_seed": 7}),
    ],
)
def test_settings_that_differ_are_told(method, settings, tmp_path):
    found = compacter.inspect(save(attach_tiny("t5", method, **settings), tmp_path))
    assert (found.method, found.settings) == (method, settings)


T5_PLACES = {
    "attention": (
        "encoder.block.{0-1}.layer.0.SelfAttention.o",
        "decoder.block.{0-1}.layer.0.SelfAttention.o",
    ),
    "feed_forward": (
        "encoder.block.{0-1}.layer.1.DenseReluDense.wo",
        "decoder.block.{0-1}.layer.2.DenseReluDense.wo",
    ),
}


@pytest.mark.parametrize("method", TUNER_METHODS)
def test_places_in_t5(method, tmp_path):
    bare = TINY["t5"]()
    found = compacter.inspect(save(attach_tiny("t5", method), tmp_path))
    if METHODS[method].family == "adapter":
        positions = METHODS[method].settings.get("positions", T5_PLACES)
        paths = {path for position in positions for path in T5_PLACES[position]}
        if method == "adapter-drop":
            paths = {path.replace("{0-1}", "1") for path in paths}
        adapters, norms = found.places
        assert {*adapters.paths} == paths
        layers = 1 if method == "adapter-drop" else 2
        assert adapters.count == layers * len(paths)
        assert norms.count == sum(isinstance(m, T5LayerNorm) for m in bare.modules())
        assert "decoder.block.{0-1}.layer.{0-2}.layer_norm" in norms.paths
        assert [place.kind for place in found.places] == ["adapters", "norms"]
    elif method == "bitfit":
        inside = (nn.Linear, T5LayerNorm)
        blocks = [block for stack in (bare.encoder, bare.decoder) for block in stack.block]
        modules = [m for block in blocks for m in block.modules() if isinstance(m, inside)]
        assert places(found) == {"biases": len(modules) + 1}  # and the output layer
        assert "lm_head" in found.places[0].paths
    else:
        assert found.places == ()


def test_places_that_have_no_bias_or_norm(tmp_path):
    model = attach_tiny("t5", "compacter", use_bias=False, train_layer_norms=False)
    assert places(compacter.inspect(save(model, tmp_path))) == {"adapters": 8}


@pytest.mark.parametrize(
    ("family", "method", "heads"),
    [
        ("bert", "compacter", {"classifier": 2}),
        ("roberta", "bitfit", {"classifier": 2}),
        ("distilbert", "compacter++", {"classifier": 2, "pre_classifier": None}),
        ("deberta", "intrinsic-said", {"classifier": 2, "pooler": None}),
        ("bert", "prompt-tuning-t", {"classifier": 2}),
        ("t5", "compacter", {}),
    ],
)
def test_heads_and_their_labels(family, method, heads, tmp_path):
    found = compacter.inspect(save(attach_tiny(family, method), tmp_path))
    assert found.heads == heads
    assert ("classifier, 2 labels" in str(found)) == bool(heads)


def test_copies_of_embeddings_are_not_counted_as_trained(tmp_path):
    model = attach_tiny("t5", "compacter")
    model.save_pretrained(str(tmp_path), save_embedding_layers=True)
    found = compacter.inspect(tmp_path)
    assert found.trainable == trained(model, heads=False)
    assert found.head_trainable == 0
    assert found.parameter_bytes > 4 * found.trainable


@pytest.mark.parametrize(
    ("paths", "short"),
    [
        (["a.0.b", "a.1.b", "a.2.b"], ("a.{0-2}.b",)),
        (["a.0.b", "a.1.c"], ("a.0.b", "a.1.c")),
        (["a.0.1", "a.0.2", "a.3.1", "a.3.2", "a.5.1", "a.5.2"], ("a.{0,3,5}.{1-2}",)),
        (["a.0.1", "a.0.2", "a.1.1"], ("a.{0-1}.1", "a.0.2")),
        (["h.9.wo", "h.10.wo", "h.11.wo", "wo", "h2.1"], ("h.{9-11}.wo", "wo", "h2.1")),
        (["0.x", "1.x", "1"], ("{0-1}.x", "1")),
        ([], ()),
    ],
)
def test_paths_in_short(paths, short):
    assert in_short(paths) == short


# Runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A run of bert with an adapter, one with a prompt, and one of full fine-tuning."""
    folder = tmp_path_factory.mktemp("runs")
    values: dict[str, Any] = {"epochs": 1, "max_train_samples": 64}
    for method in ("compacter", "prompt-tuning-t", "full"):
        recipe = recipe_values("bert", folder, method=method, **values)
        if method == "prompt-tuning-t":
            recipe["num_tokens"] = 5
        compacter.train(output=folder / method, **recipe)
    return folder


@pytest.mark.parametrize("method", ["compacter", "prompt-tuning-t", "full"])
@pytest.mark.parametrize("inside", [False, True], ids=["run", "weights"])
def test_a_run_says_what_its_result_says(runs, method, inside):
    run = runs / method
    weights = run / ("model" if method == "full" else "adapter")
    result = read_result(run)
    found = compacter.inspect(weights if inside else run)
    assert (found.method, found.nearest) == (method, (method,))
    assert found.folder == str(weights)
    assert found.base_model == result.model
    assert (found.trainable, found.head_trainable) == (result.trainable, result.head_trainable)
    assert (found.task, found.status) == (result.task, result.status)
    assert (found.score, found.split, found.metrics) == (result.score, "test", result.test)
    assert found.versions.items() >= result.versions.items()
    text = str(found)
    for part in (method, result.model, result.task, f"{result.score:.2f} on test (accuracy "):
        assert part in text
    assert ("a whole model" in text) == (method == "full")


def test_a_score_of_validation_is_told_as_such(tmp_path):
    run = make_run(tmp_path / "run", method="bitfit", test={}, validation={"accuracy": 71.5})
    save(attach_tiny("bert", "bitfit"), run / "adapter")
    found = compacter.inspect(run)
    assert (found.split, found.metrics) == ("validation", {"accuracy": 71.5})
    assert "71.50 on validation (accuracy 71.50)" in str(found)


def test_full_fine_tuning_is_a_model_and_its_sizes(runs):
    found = compacter.inspect(runs / "full")
    assert found.peft_type is None
    assert (found.tensors, found.places, found.format_version) == ((), (), None)
    (path,) = (runs / "full" / "model").glob("*.safetensors")
    assert found.file_bytes == path.stat().st_size
    tensors = load_file(path).values()
    assert found.parameter_bytes == sum(t.numel() * t.element_size() for t in tensors)


def test_a_copy_of_an_adapter_is_known_by_its_settings_alone(runs, tmp_path):
    """Also where it is put beside the result of another run."""
    shutil.copytree(runs / "compacter" / "adapter", tmp_path / "mine")
    shutil.copy(runs / "full" / "result.json", tmp_path)
    found = compacter.inspect(str(tmp_path / "mine"))
    whole = compacter.inspect(runs / "compacter")
    assert (found.method, found.task, found.score) == ("compacter", None, None)
    assert (found.tensors, found.places, found.heads) == (whole.tensors, whole.places, whole.heads)
    assert found.base_model == whole.base_model
    assert found.versions == {"peft": whole.versions["peft"]}


def test_the_version_of_the_format_is_told(tmp_path):
    found = compacter.inspect(save(attach_tiny("t5", "bitfit"), tmp_path))
    saved = json.loads((tmp_path / "adapter_config.json").read_text())
    assert found.format_version == saved["format_version"] == 1
    assert found.versions == {"peft": saved["peft_version"]}

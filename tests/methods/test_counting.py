"""Parameter counts, which are exact: each equals the paper's figure or reproduces it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from compacter import attach
from compacter.methods import METHODS
from compacter.methods.counting import Count, count, count_all
from compacter.models import skeleton
from compacter.paper import counts, tables
from tiny_models import TINY

MODELS = ("t5-base", "t5-small")


@pytest.fixture(scope="module")
def bones() -> dict[str, nn.Module]:
    """The models without weights. Each count takes off again what it attaches."""
    return {name: skeleton(name) for name in MODELS}


def _label(counted: Count) -> str:
    return f"{counted.method} n={counted.n}" if counted.n else counted.method


@pytest.fixture(scope="module")
def all_counts(bones: dict[str, nn.Module]) -> dict[str, dict[str, Count]]:
    """Every method with every n that fits, by the labels of counts.json."""
    return {name: {_label(c): c for c in count_all(model)} for name, model in bones.items()}


def _golden() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for model in MODELS:
        for label, figures in counts()["models"][model]["methods"].items():
            yield model, label, figures


@pytest.mark.parametrize(("model", "label", "figures"), _golden())
def test_counts_are_those_of_the_paper(
    all_counts: dict[str, dict[str, Count]], model: str, label: str, figures: dict[str, Any]
) -> None:
    found = all_counts[model][label]
    expected = counts()["models"][model]
    assert found.trainable == figures["trainable"]
    assert found.base == expected["base"]
    assert round(found.percent, 4) == figures["percent"]
    for tasks in (6, 8):
        assert round(found.total_multiple(tasks), 4) == figures[f"total_multiple_{tasks}_tasks"]
    if METHODS[found.method].family == "adapter":
        assert found.bottleneck == expected["bottleneck"]
        assert found.breakdown is not None
        assert found.breakdown.layer_norms == expected["layer_norms"]
    else:
        assert found.breakdown is None


@pytest.mark.parametrize("model", MODELS)
def test_all_methods_are_counted_with_every_n_that_fits(
    all_counts: dict[str, dict[str, Count]], model: str
) -> None:
    assert set(all_counts[model]) == set(counts()["models"][model]["methods"])


def _printed() -> Iterator[tuple[str, int, dict[str, Any]]]:
    for name, model, tasks in (
        ("glue_t5_base", "t5-base", 8),
        ("superglue_t5_base", "t5-base", 6),
        ("glue_t5_small", "t5-small", 8),
    ):
        for row in tables()[name]:
            yield model, tasks, row


def test_counts_agree_with_every_printed_figure(
    all_counts: dict[str, dict[str, Count]],
) -> None:
    """The paper prints three decimals, some rounded and some cut off."""
    for model, tasks, row in _printed():
        label = f"{row['method']} n={row['n']}" if "n" in row else row["method"]
        ours = all_counts[model][label]
        assert ours.percent == pytest.approx(row["trained_percent"], abs=0.001), row
        assert ours.total_multiple(tasks) == pytest.approx(row["total_multiple"], abs=0.001), row


@pytest.mark.parametrize(
    "row",
    tables()["glue_t5_base_output_layer_tuned"],
    ids=lambda row: f"{row['method']} n={row.get('n')}",
)
def test_a_tuned_output_layer_is_added_exactly(
    bones: dict[str, nn.Module], row: dict[str, Any]
) -> None:
    golden = counts()["models"]["t5-base"]
    model = bones["t5-base"]
    settings = {"n": row["n"]} if "n" in row else {}
    label = f"{row['method']} n={row['n']}" if "n" in row else row["method"]

    adapted = attach(model, row["method"], tune_output_layer=True, **settings)
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    adapted.unload()
    assert trained == golden["methods"][label]["trainable"] + golden["output_layer"]
    assert round(100 * trained / golden["base"], 2) == row["trained_percent"]

    counted = count(model, row["method"], tune_output_layer=True, **settings)
    assert counted.trainable == trained
    assert counted.output_layer == golden["output_layer"]
    # the paper leaves the output layer out of the total
    assert counted.total_multiple(8) == pytest.approx(row["total_multiple"], abs=0.001)


@pytest.mark.parametrize("intrinsic_dim", [400, 1400, 2500, 10_000, 20_000])
@pytest.mark.parametrize("model", MODELS)
def test_intrinsic_said_trains_exactly_its_dimension(
    bones: dict[str, nn.Module], model: str, intrinsic_dim: int
) -> None:
    """The lambdas, one per weight tensor, are among them."""
    found = count(bones[model], "intrinsic-said", intrinsic_dim=intrinsic_dim)
    assert found.trainable == intrinsic_dim


@pytest.mark.parametrize("family", ["t5", "bert"])
@pytest.mark.parametrize("method", list(METHODS))
def test_counting_leaves_the_model_as_it_was(method: str, family: str) -> None:
    model = TINY[family]()
    settings = {"drop_layers": 1} if method == "adapter-drop" else {}
    if method == "intrinsic-said":
        settings = {"intrinsic_dim": 200}
    before = {name: type(module) for name, module in model.named_modules()}
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first = count(model, method, **settings)
    assert {name: type(module) for name, module in model.named_modules()} == before
    assert list(model.state_dict()) == list(tensors)
    assert all(torch.equal(model.state_dict()[name], tensors[name]) for name in tensors)
    assert count(model, method, **settings) == first


def test_a_task_head_is_counted_apart() -> None:
    model = TINY["bert"]()
    found = count(model, "compacter", n=4, bottleneck=8)
    assert found.head == 2 * 32 + 2
    norms, adapter = 5 * 2 * 32, 2 * (32 + 8) + 8 + 32
    assert found.trainable == norms + 4 * adapter + 4**3
    assert found.output_layer == 0


def test_methods_that_do_not_fit_are_left_out() -> None:
    """No prompt before an image, and no five layers to drop out of two."""
    found = {c.method for c in count_all(TINY["vit"]())}
    assert found == set(METHODS) - {"prompt-tuning-r", "prompt-tuning-t", "adapter-drop"}

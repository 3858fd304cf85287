"""Measuring every method on tiny models: what is counted is what would be trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from compacter.bench import PRESETS, BenchSettings, measure
from compacter.bench.run import line_batches
from compacter.bench.work import adapted_copy, decoding, make_inputs
from compacter.errors import ArchitectureError, BenchError, CompacterError, MethodError, TaskError
from compacter.methods import METHODS
from compacter.methods.counting import count
from compacter.models import random_model, skeleton
from compacter.paper import counts, efficiency_figures
from compacter.tasks import TASKS, training_rows
from tiny_models import TINY

SMALL = {"intrinsic_dim": 300, "num_tokens": 5}
QUICK: dict[str, Any] = {
    "batch": 2, "length": 6, "target_length": 3, "new_tokens": 2, "rounds": 1, "device": "cpu",
    "settings": SMALL,
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Configurations without weights: bench draws its own."""
    found = {}
    for family in ("t5", "bert", "bart", "gpt2", "roberta", "vit", "deberta-v2"):
        folder = tmp_path_factory.mktemp(family)
        model = TINY[family]()
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        found[family] = str(folder)
    return found


@pytest.fixture(scope="module")
def report(folders: dict[str, str]) -> dict[str, Any]:
    """All methods that fit a T5 of two layers."""
    said: list[str] = []
    report = measure(BenchSettings(model=folders["t5"], **QUICK), on_progress=said.append)
    assert any("round 1 of 1" in text for text in said)
    return report.plain()


def test_all_methods_that_fit_are_measured(report: dict[str, Any]):
    assert [row["method"] for row in report["methods"]] == [
        name for name in METHODS if name != "adapter-drop"
    ]
    assert set(report["left_out"]) == {"adapter-drop"}
    assert "drop_layers=5 does not fit" in report["left_out"]["adapter-drop"]


def test_parameters_are_those_of_params_and_of_the_models(
    report: dict[str, Any], folders: dict[str, str]
):
    bare = random_model(folders["t5"])
    for row in report["methods"]:
        name = row["method"]
        settings = BenchSettings(**QUICK).of_method(name)
        assert row["trainable"] == count(skeleton(folders["t5"]), name, **settings).trainable
        model = adapted_copy(bare, name, settings)
        trained = [p for p in model.parameters() if p.requires_grad]
        assert row["trainable"] == sum(p.numel() for p in trained)
        assert row["memory"]["gradients"] == 4 * row["trainable"]


def test_figures_beside_full_fine_tuning(report: dict[str, Any]):
    full = report["methods"][0]
    assert full["method"] == "full"
    assert full["step"]["percent"] == full["memory"]["percent"] == full["decode"]["percent"] == 0
    for row in report["methods"]:
        memory, step = row["memory"], row["step"]
        parts = ("weights", "gradients", "optimizer", "activations")
        assert memory["total"] == sum(memory[part] for part in parts)
        assert memory["total"] - memory["least"] == min(memory["gradients"], memory["activations"])
        assert memory["percent"] == pytest.approx(
            100 * (memory["total"] / full["memory"]["total"] - 1)
        )
        batch = memory["largest_batch"]
        at = [memory["fixed"] + b * memory["per_row"] for b in (batch, batch + 1)]
        assert at[0] <= report["memory_budget"] < at[1]
        assert memory["per_sample"] == pytest.approx(at[0] / batch)
        assert step["ratio_of_medians"] == step["median"] / full["step"]["median"]
        rows = report["task_rows"]
        assert row["epoch_minutes"] == pytest.approx(step["median"] * -(-rows // 2) / 60)
        assert memory["cuda_peak"] is None
        assert row["paper"] == efficiency_figures(row["method"])


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_other_kinds_of_model(folders: dict[str, str], family: str):
    report = measure(BenchSettings(model=folders[family], methods=("compacter",), **QUICK)).plain()
    assert [row["method"] for row in report["methods"]] == ["full", "compacter"]
    assert [row["decode"] is None for row in report["methods"]] == [family == "bert"] * 2


@pytest.mark.parametrize("family", ["t5", "bart", "gpt2", "bert", "roberta"])
def test_classifiers(folders: dict[str, str], family: str):
    settings = BenchSettings(
        model=folders[family],
        head="AutoModelForSequenceClassification",
        methods=("compacter",),
        **QUICK,
    )
    assert [row.method for row in measure(settings).rows] == ["full", "compacter"]


def test_frozen_weights_are_shared_and_left_alone(folders: dict[str, str]):
    """Twelve copies of a large model would not fit; and timing one must not change another."""
    bare = random_model(folders["t5"])
    before = {name: p.detach().clone() for name, p in bare.named_parameters()}
    own = {p.data_ptr() for p in bare.parameters()}
    for name in METHODS:
        if name == "adapter-drop":
            continue
        model = adapted_copy(bare, name, BenchSettings(**QUICK).of_method(name))
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
        model(**make_inputs(model, 2, 6, 3)).loss.backward()
        optimizer.step()
        shared = {p.data_ptr() for p in model.parameters()} & own
        assert shared == (set() if name == "full" else own), name
    assert all(torch.equal(p, before[name]) for name, p in bare.named_parameters())


def test_decoding_writes_exactly_the_tokens_asked_for(folders: dict[str, str]):
    for family, others in (("t5", 1), ("gpt2", 6)):
        model = adapted_copy(random_model(folders[family]), "compacter", {}).eval()
        decode = decoding(model, make_inputs(model, 2, 6, 3), new_tokens=5)
        assert decode is not None
        assert decode().shape == (1, others + 5)


def test_the_preset_is_table_3():
    settings = BenchSettings(**PRESETS["table3"])
    assert (settings.model, settings.memory_budget) == ("t5-base", 24 * 10**9)
    bones = skeleton(settings.model)
    found = {n: count(bones, n, **settings.of_method(n)) for n in settings.names}
    assert {found[n].bottleneck for n in METHODS if METHODS[n].family == "adapter"} == {24}
    assert {found[n].n for n in ("phm-adapter", "compacter", "compacter++")} == {4}
    assert found["intrinsic-said"].trainable == 1_400
    assert found["prompt-tuning-r"].trainable == 100 * 768
    golden = counts()["models"]["t5-base"]["methods"]
    assert found["phm-adapter"].trainable == golden["phm-adapter n=4"]["trainable"]


@pytest.mark.parametrize("model", ["t5-small", "t5-base"])
def test_parameters_of_the_papers_models(model: str):
    """Without a preset they are those of `compacter params`, which are the paper's."""
    settings, bones = BenchSettings(model=model), skeleton(model)
    golden = counts()["models"][model]["methods"]
    for name in settings.names:
        found = count(bones, name, **settings.of_method(name))
        label = f"{name} n={found.n}" if found.n else name
        assert found.trainable == golden[label]["trainable"]


def test_the_papers_figures_divide_by_full_fine_tuning():
    """tables.json's notes have these five."""
    expected = {
        "intrinsic-said": 69.9, "prompt-tuning-t": 32.3, "compacter": -26.2,
        "compacter++": -29.5, "bitfit": -39.1,
    }  # fmt: skip
    for name, percent in expected.items():
        found = efficiency_figures(name)
        assert found is not None
        assert found["memory_percent"] == pytest.approx(percent, abs=0.051)
    assert all(efficiency_figures(name) for name in METHODS)
    assert efficiency_figures("lora") is None
    printed = efficiency_figures("compacter")
    assert printed is not None
    assert printed["memory_percent_as_printed"] == -35.57


def test_rows_of_an_epoch():
    assert training_rows(TASKS["mnli"]) == 392_702 - 1_000
    assert training_rows(TASKS["rte"]) == 2_490


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5, 8, 100])
def test_two_batch_sizes_that_are_not_one(batch: int):
    low, high = line_batches(batch)
    assert 2 <= low < high <= max(4, batch)


@pytest.mark.parametrize(
    ("family", "change", "error", "message"),
    [
        ("t5", {"batch": 0}, BenchError, "batch=0 does not fit; expected a whole number from 1"),
        ("t5", {"rounds": -1}, BenchError, "rounds=-1 does not fit"),
        ("t5", {"methods": ("lora",)}, MethodError, "there is no method 'lora'"),
        ("t5", {"methods": ("adapter-drop",)}, ArchitectureError, "drop_layers=5 does not fit"),
        ("t5", {"task": "rtee"}, TaskError, "rtee.*rte"),
        ("t5", {"memory_budget": 1_000}, BenchError, "no method fits .* 0.0 MB: one row takes"),
        ("t5", {"device": "abacus"}, BenchError, "'abacus' cannot be used .*; expected cpu"),
        ("vit", {}, BenchError, "a ViTForImageClassification, which has no loss over text"),
        ("bert", {"length": 65}, BenchError, "65 tokens do not fit the model, which has 64"),
        ("gpt2", {"length": 60, "new_tokens": 6}, BenchError, "60 tokens, with 6 new ones, do not"),
        ("bart", {"target_length": 65}, BenchError, "targets of 65 tokens do not fit"),
        ("bart", {"new_tokens": 65}, BenchError, "65 new tokens do not fit the model, which has"),
        ("roberta", {"length": 64}, BenchError, "64 tokens do not fit the model, which has 63"),
        (
            "bert",
            {"length": 62, "methods": ("prompt-tuning-r",)},
            BenchError,
            "62 tokens and a prompt of 5 do not fit the model, which has 64",
        ),
        ("t5", {"head": "T5EncoderModel"}, BenchError, "a T5EncoderModel, which has no loss"),
        ("t5", {"settings": {"bottleneck": 7}, "methods": ("compacter",)}, CompacterError, "7"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    folders: dict[str, str],
    family: str,
    change: dict[str, Any],
    error: type[Exception],
    message: str,
):
    with pytest.raises(error, match=message):
        measure(BenchSettings(**{**QUICK, "model": folders[family], **change}))


def test_a_prompt_that_does_not_fit_is_left_out(folders: dict[str, str]):
    wide = {**QUICK, "length": 62, "settings": {"num_tokens": 5, "intrinsic_dim": 300}}
    report = measure(BenchSettings(model=folders["bert"], **wide))
    assert set(report.left_out) == {"prompt-tuning-r", "prompt-tuning-t", "adapter-drop"}
    assert "has 64 positions" in report.left_out["prompt-tuning-r"]


def test_a_budget_that_some_methods_fit(folders: dict[str, str]):
    """A row that nothing fits into has no figure, and the others keep theirs."""
    first = measure(BenchSettings(model=folders["t5"], methods=("bitfit",), **QUICK))
    full, bitfit = first.rows
    budget = bitfit.line.at(3)
    assert bitfit.line.at(3) < full.line.at(1)
    second = BenchSettings(
        model=folders["t5"], methods=("bitfit",), **{**QUICK, "memory_budget": budget}
    )
    rows = measure(second).plain()["methods"]
    assert [row["memory"]["largest_batch"] for row in rows] == [0, 3]
    assert [row["memory"]["per_sample"] for row in rows] == [None, budget / 3]
    assert rows[1]["memory"]["per_sample_percent"] is None

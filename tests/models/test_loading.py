"""Skeletons: the paper's counts without weights, and errors that say what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from torch import nn

from compacter.errors import ArchitectureError
from compacter.models import T5_DIMENSIONS, find_blocks, skeleton
from tiny_models import TINY

COUNTS = {
    "t5-small": 60_492_288,
    "t5-base": 222_882_048,
    "t5-large": 737_639_424,
    "t5-3b": 2_851_569_664,
    "t5-11b": 11_307_292_672,
}


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _no_hub(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", fail)


@pytest.mark.parametrize("name", T5_DIMENSIONS)
def test_t5_counts_without_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _no_hub(monkeypatch, AssertionError("the hub was asked"))
    model = skeleton(f"google-t5/{name}")
    assert _count(model) == _count(skeleton(name)) == COUNTS[name]
    assert all(parameter.is_meta for parameter in model.parameters())
    layers = T5_DIMENSIONS[name].num_layers
    assert len(find_blocks(model)) == 2 * layers


def test_tied_weights_are_one_parameter() -> None:
    model: Any = skeleton("t5-small")
    assert model.lm_head.weight is model.shared.weight


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart", "llama", "gemma3"])
def test_a_folder_gives_the_model_that_was_saved_there(name: str, tmp_path: Path) -> None:
    model = TINY[name]()
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(tmp_path)
    found = skeleton(str(tmp_path))
    assert type(found) is type(model)
    assert _count(found) == _count(model)
    assert [name for name, _ in found.named_parameters()] == [
        name for name, _ in model.named_parameters()
    ]


def test_without_a_known_class_the_bare_model_is_built(tmp_path: Path) -> None:
    config = TINY["bert"]().config
    for architectures in (None, ["BertForSomethingElse"]):
        config.architectures = architectures
        config.save_pretrained(tmp_path)
        assert type(skeleton(str(tmp_path))) is transformers.BertModel


@pytest.mark.parametrize(
    ("head", "cls"),
    [
        ("T5EncoderModel", transformers.T5EncoderModel),
        ("AutoModelForSequenceClassification", transformers.T5ForSequenceClassification),
    ],
)
def test_another_head(head: str, cls: type[nn.Module]) -> None:
    assert type(skeleton("t5-small", head=head)) is cls


@pytest.mark.parametrize("head", ["T5ForNothing", "T5Config", "pipeline"])
def test_a_head_that_is_no_model(head: str) -> None:
    with pytest.raises(ArchitectureError, match=f"head '{head}' is no model class"):
        skeleton("t5-small", head=head)


def test_a_head_the_model_does_not_have() -> None:
    with pytest.raises(ArchitectureError, match=r"AutoModelForImageClassification.*'t5-small'"):
        skeleton("t5-small", head="AutoModelForImageClassification")


def test_a_name_that_is_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    _no_hub(monkeypatch, OSError("cannot reach the hub.\nA long explanation."))
    with pytest.raises(ArchitectureError) as error:
        skeleton("nobody/nothing")
    assert "'nobody/nothing' is no folder here" in str(error.value)
    assert "(cannot reach the hub)" in str(error.value)
    assert "t5-base" in str(error.value)
    assert "did you mean" not in str(error.value)
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__


@pytest.mark.parametrize(
    ("name", "meant"),
    [("t5-bsae", "t5-base"), ("google/T5-Small", "t5-small"), ("t5_11b", "t5-11b")],
)
def test_the_nearest_t5_is_suggested(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _no_hub(monkeypatch, OSError("not found"))
    with pytest.raises(ArchitectureError, match=f"did you mean '{meant}'"):
        skeleton(name)


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(ArchitectureError, match=r"no config.json .found: nothing."):
        skeleton(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ArchitectureError, match=r"no config.json .found: adapter_config.json."):
        skeleton(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps({"model_type": "unheard-of"}), "does not describe.*`unheard-of`"),
        (json.dumps({}), "does not describe.*model_type"),
        (json.dumps({"model_type": "bert", "hidden_size": "wide"}), "describe.*hidden_size"),
        ("{", "cannot be read.*not a valid JSON"),
    ],
)
def test_a_config_that_describes_no_model(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ArchitectureError, match=message):
        skeleton(str(tmp_path))


def test_a_config_that_contradicts_itself(tmp_path: Path) -> None:
    config = {"model_type": "bert", "hidden_size": 30, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ArchitectureError, match=r"cannot be built|does not describe"):
        skeleton(str(tmp_path))

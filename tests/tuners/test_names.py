"""Adapter names that PEFT would mishandle are refused, with the model untouched."""

from __future__ import annotations

import pytest
from peft import get_peft_model

from adapting import attach_tiny, unchanged
from compacter import BitFitConfig, CompacterConfig, IntrinsicSAIDConfig
from compacter.errors import AdapterError
from tiny_models import TINY

PARTS_OF_THE_MODEL = ("layer", "block", "decoder", "o", "wo", "0", "shared", "SelfAttention")
PARTS_OF_AN_ADAPTER = ("weight", "bias", "A", "down_s", "theta", "model", "base_layer", "adapters")
WORDS_OF_TORCH_AND_PEFT = ("keys", "pop", "forward", "training", "__base__")
NO_NAMES = ("a.b", "", "two words", "compacter_1")


@pytest.mark.parametrize(
    "name", PARTS_OF_THE_MODEL + PARTS_OF_AN_ADAPTER + WORDS_OF_TORCH_AND_PEFT + NO_NAMES
)
def test_refused(name):
    base = TINY["t5"]()
    with unchanged(base), pytest.raises(AdapterError, match="an adapter cannot be called"):
        get_peft_model(base, CompacterConfig(bottleneck=8), adapter_name=name)


@pytest.mark.parametrize("name", ["default", "task-7", "my_compacter_1", "Down", "best_so_far"])
@pytest.mark.parametrize("config", [CompacterConfig, BitFitConfig, IntrinsicSAIDConfig])
def test_accepted_and_saved_whole_beside_others(name, config, tmp_path):
    settings = {CompacterConfig: {"bottleneck": 8}, IntrinsicSAIDConfig: {"intrinsic_dim": 300}}
    model = get_peft_model(TINY["t5"](), config(**settings.get(config, {})), adapter_name="first")
    model.add_adapter(name, config(**settings.get(config, {})))
    model.save_pretrained(str(tmp_path))
    folder = tmp_path if name == "default" else tmp_path / name
    first, second = (
        (path / "adapter_model.safetensors").stat().st_size for path in (tmp_path / "first", folder)
    )
    assert first == second


def test_refused_for_a_second_adapter():
    model = attach_tiny("t5", "compacter")
    with unchanged(model), pytest.raises(AdapterError, match="it is part of the path of"):
        model.add_adapter("encoder", CompacterConfig(bottleneck=8))
    assert list(model.peft_config) == ["default"]

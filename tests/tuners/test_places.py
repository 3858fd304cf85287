"""Which modules get adapters: the settings that choose among them, and what is left out."""

from __future__ import annotations

import pytest
import torch
import transformers
from peft import PeftModel, get_peft_model
from torch import nn

from adapting import (
    CONFIGS,
    adapted_paths,
    attach_tiny,
    changed,
    inputs_of,
    logits,
    parameters_of,
    places_of,
    save,
    scramble,
    train,
    trainable_names,
    unchanged,
)
from compacter import BitFitConfig, CompacterConfig, IntrinsicSAIDConfig
from compacter.errors import ArchitectureError, CompacterError, SettingError
from tiny_models import TINY, VOCAB


def all_places(model):
    return {path for stack in model.peft_config["default"].places for path in stack["paths"]}


def attached(family, config):
    torch.manual_seed(1)
    return get_peft_model(TINY[family](), config).eval()


def linears(family):
    return {
        path
        for path, module in TINY[family]().named_modules()
        if isinstance(module, nn.Linear | transformers.pytorch_utils.Conv1D)
    }


def assert_trains_saves_and_loads(model, family, folder):
    inputs = inputs_of(family)
    train(model, inputs)
    expected = logits(model, **inputs)
    loaded = PeftModel.from_pretrained(TINY[family](), save(model, folder)).eval()
    torch.testing.assert_close(logits(loaded, **inputs), expected)


@pytest.mark.parametrize(
    "excluded",
    [["wo", "encoder.block.0.layer.0.SelfAttention.o"], r".*\.wo|encoder\.block\.0.*\.o"],
)
def test_excluded_modules(excluded, tmp_path):
    model = attached("t5", CompacterConfig(bottleneck=8, exclude_modules=excluded))
    assert sorted(adapted_paths(model)) == [
        "decoder.block.0.layer.0.SelfAttention.o",
        "decoder.block.1.layer.0.SelfAttention.o",
        "encoder.block.1.layer.0.SelfAttention.o",
    ]
    assert_trains_saves_and_loads(model, "t5", tmp_path)


def test_a_name_that_excludes_nothing_is_told():
    with pytest.warns(UserWarning, match="no modules were excluded"):
        attached("t5", CompacterConfig(bottleneck=8, exclude_modules=["w0"]))


@pytest.mark.parametrize("layers", [1, [1]])
@pytest.mark.parametrize("kind", ["compacter", "bitfit"])
def test_layers_to_transform(kind, layers, tmp_path):
    settings = {"train_layer_norms": False} if kind == "compacter" else {}
    config = type(CONFIGS[kind]())(layers_to_transform=layers, **settings)
    model = attached("t5", config)
    assert {path.split(".")[2] for path in all_places(model) if ".block." in path} == {"1"}
    assert any(".block.1." in path for path in all_places(model))
    assert_trains_saves_and_loads(model, "t5", tmp_path)


@pytest.mark.parametrize(("family", "head"), [("llama", "lm_head"), ("gpt2", "lm_head")])
@pytest.mark.parametrize("config", [CompacterConfig, BitFitConfig])
def test_all_linear_layers_but_the_output_layer(config, family, head, tmp_path):
    settings = {"bottleneck": 4, "train_layer_norms": False} if config is CompacterConfig else {}
    model = attached(family, config(target_modules="all-linear", **settings))
    assert all_places(model) == linears(family) - {head}
    assert_trains_saves_and_loads(model, family, tmp_path)


@pytest.mark.parametrize("settings", [{"exclude_modules": r".*"}, {"layers_to_transform": [7]}])
@pytest.mark.parametrize("config", [CompacterConfig, BitFitConfig])
def test_settings_that_leave_nothing_are_refused(config, settings):
    base = TINY["t5"]()
    with unchanged(base), pytest.raises(CompacterError, match="no module is left to adapt"):
        get_peft_model(base, config(**settings))


@pytest.mark.parametrize("kind", ["compacter", "bitfit"])
def test_single_tokens_are_trained_saved_and_loaded(kind, tmp_path):
    model = attached("llama", type(CONFIGS[kind]())(trainable_token_indices=[5, 7]))
    inputs, before = inputs_of("llama"), parameters_of(model)
    inputs["input_ids"][:, 0] = 5
    train(model, inputs)
    assert any("token_adapter" in name for name in changed(before, model))
    expected = logits(model, **inputs)
    loaded = PeftModel.from_pretrained(TINY["llama"](), save(model, tmp_path)).eval()
    torch.testing.assert_close(logits(loaded, **inputs), expected)


def test_intrinsic_said_refuses_single_tokens():
    with pytest.raises(SettingError, match="Intrinsic-SAID moves all embeddings"):
        IntrinsicSAIDConfig(trainable_token_indices=[5])


@pytest.mark.parametrize("settings", [{}, {"exclude_modules": ["lm_head"]}])
@pytest.mark.parametrize("family", ["llama", "gpt2", "opt"])
def test_bitfit_leaves_the_output_layer_of_decoders_alone(family, settings):
    """Trainers read its weight in place of calling it."""
    model = attached(family, BitFitConfig(**settings))
    assert all_places(model)
    assert not any("lm_head" in path for path in all_places(model))
    assert "lm_head" in all_places(attached("t5", BitFitConfig()))


def test_intrinsic_said_can_leave_the_output_layer_alone(tmp_path):
    config = IntrinsicSAIDConfig(intrinsic_dim=300, exclude_modules=["lm_head"])
    model, inputs = attached("llama", config), inputs_of("llama")
    assert type(model.get_base_model().lm_head) is nn.Linear
    assert "lm_head" not in all_places(model)
    scramble(model, std=0.05)
    merged = attached("llama", config)
    scramble(merged, std=0.05)
    merged = merged.merge_and_unload()
    assert torch.equal(merged.lm_head.weight, TINY["llama"]().lm_head.weight)
    torch.testing.assert_close(
        logits(merged, **inputs), logits(model, **inputs), rtol=1e-3, atol=1e-3
    )
    assert_trains_saves_and_loads(model, "llama", tmp_path)


@pytest.mark.parametrize("config", [CompacterConfig, BitFitConfig])
def test_names_that_a_head_has_too_leave_the_head_out(config):
    """RoBERTa's blocks and its head have layers of the same name; the head is trained whole."""
    model = attached("roberta", config(task_type="SEQ_CLS", target_modules=["dense"]))
    assert any(path.endswith("output.dense") for path in all_places(model))
    assert not any(path.startswith("classifier") for path in all_places(model))
    heads = {name for name in trainable_names(model) if ".classifier." in name}
    assert any(name.endswith("dense.weight") for name in heads)
    assert all("modules_to_save.default" in name for name in heads)


class Unknown(nn.Module):
    """Nothing that looks like a list of transformer blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


def test_bitfit_on_an_unknown_structure_names_a_way_out():
    base = Unknown()
    with unchanged(base), pytest.raises(ArchitectureError, match="biases='existing'"):
        get_peft_model(base, BitFitConfig())
    model = get_peft_model(base, BitFitConfig(biases="existing"))
    assert all_places(model) == {"first", "second"}


def test_a_mixture_of_experts_is_told_of_modules_that_it_has():
    config = transformers.MixtralConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=2,
    )
    base = transformers.MixtralForCausalLM(config)
    with unchanged(base), pytest.raises(ArchitectureError, match="mixture of experts") as refused:
        get_peft_model(base, CompacterConfig(bottleneck=8))
    named = str(refused.value).rpartition("outside of the experts it has ")[2].split(", ")
    ends = {path.partition("layers.0.")[2] for path, _ in base.named_modules()}
    assert named
    assert set(named) <= ends
    get_peft_model(base, CompacterConfig(bottleneck=8, target_modules=[named[-1]]))


def test_attach_takes_these_settings_too():
    model = attach_tiny("t5", "adapter", layers_to_transform=[0], exclude_modules=["wo"])
    assert sorted(adapted_paths(model)) == [
        "decoder.block.0.layer.0.SelfAttention.o",
        "encoder.block.0.layer.0.SelfAttention.o",
    ]
    assert "layernorm_weight" in places_of(model)

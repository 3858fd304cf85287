"""Every setting that does not fit, by name, value and what would fit."""

from __future__ import annotations

import pytest
import torch
from peft import get_peft_model
from torch import nn

import compacter
from adapting import (
    adapted_paths,
    attach_tiny,
    inputs_of,
    logits,
    places_of,
    train,
    unchanged,
)
from compacter import BitFitConfig, CompacterConfig, IntrinsicSAIDConfig
from compacter.errors import ArchitectureError, CompacterError, MethodError, SettingError
from tiny_models import TINY


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n": 0}, "n=0 does not fit; expected a whole number from 1"),
        ({"n": 2.5}, "n=2.5 does not fit"),
        ({"bottleneck": 0}, "bottleneck=0 does not fit"),
        ({"rank": 0}, "rank=0 does not fit"),
        ({"n": 5}, "n=5 does not divide bottleneck=24; bottleneck could be 25"),
        ({"drop_layers": -1}, "drop_layers=-1 does not fit; expected a whole number from 0"),
        ({"positions": ()}, "positions=.* choose from attention, feed_forward"),
        ({"positions": ("cross",)}, "positions=.*cross.* choose from attention, feed_forward"),
        ({"projection": "lora"}, "projection='lora' is unknown; choose one of dense, low-rank"),
        ({"activation": "gelu_nwe"}, "activation='gelu_nwe' .*did you mean 'gelu_new'"),
        ({"activation": "?"}, "activation='.' is unknown to transformers; choose one of gelu"),
        ({"activation": "xielu"}, "activation='xielu' has parameters of its own"),
        ({"A_std": 0.0}, "A_std=0.0 does not fit"),
        ({"A_std": "x"}, "A_std='x' does not fit; expected a number above 0"),
        ({"n": True}, "n=True does not fit"),
        ({"activation": 3}, "activation=3 is unknown"),
    ],
)
def test_config_refuses(settings, message):
    with pytest.raises(SettingError, match=message):
        CompacterConfig(**settings)


def test_other_configs_refuse():
    with pytest.raises(SettingError, match="intrinsic_dim=1 does not fit"):
        IntrinsicSAIDConfig(intrinsic_dim=1)
    with pytest.raises(SettingError, match="Intrinsic-SAID moves every weight"):
        IntrinsicSAIDConfig(target_modules=["o"])
    with pytest.raises(SettingError, match="biases='some' is unknown; choose one of auto"):
        BitFitConfig(biases="some")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda: CompacterConfig(n=3, bottleneck=24), "n=3 does not divide width=32; n could be 1"),
        (lambda: CompacterConfig(drop_layers=2), "drop_layers=2 does not fit.* expected 0 to 1"),
        (lambda: CompacterConfig(target_modules=["o_proj"]), "nothing in the model matches"),
        (lambda: CompacterConfig(target_modules=["layer_norm"]), "layer_norm"),
        (lambda: IntrinsicSAIDConfig(intrinsic_dim=47), "47 of it are lambdas.* at least 48"),
        (lambda: BitFitConfig(biases="existing"), "has no biases; set biases='added'"),
    ],
)
def test_model_and_settings_that_do_not_fit_leave_the_model_alone(config, message):
    base = TINY["t5"]()
    with unchanged(base), pytest.raises(CompacterError, match=message):
        get_peft_model(base, config())


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("compactor", {}, "no method 'compactor'; did you mean 'compacter'?"),
        ("xyz", {}, "no method 'xyz'; choose one of full, adapter"),
        ("full", {"n": 4}, "full has no setting 'n'; it has none"),
        ("adapter", {"n": 4}, "adapter has no setting 'n'"),
        ("adapter", {"rank": 2}, "adapter has no setting 'rank'"),
        ("phm-adapter", {"rank": 2}, "phm-adapter has no setting 'rank'"),
        ("compacter", {"botleneck": 8}, "no setting 'botleneck'; did you mean 'bottleneck'?"),
        ("compacter", {"intrinsic_dim": 8}, "compacter has no setting 'intrinsic_dim'; it has "),
        ("bitfit", {"bottleneck": 8}, "bitfit has no setting 'bottleneck'"),
        ("prompt-tuning-r", {"num_tokens": 0}, "num_tokens=0 does not fit"),
        ("prompt-tuning-r", {"n": 0}, "prompt-tuning-r has no setting 'n'"),
    ],
)
def test_attach_refuses(method, settings, message):
    base = TINY["t5"]()
    with unchanged(base), pytest.raises(MethodError, match=message):
        compacter.attach(base, method, **settings)


def test_attach_needs_a_bare_model():
    with pytest.raises(MethodError, match="needs a model, found a str; load it first"):
        compacter.attach("t5-base", "compacter")
    with pytest.raises(MethodError, match="has adapters already; add another one with"):
        compacter.attach(attach_tiny("t5", "compacter"), "compacter", adapter_name="second")
    with pytest.raises(MethodError, match="no method None"):
        compacter.attach(TINY["t5"](), None)


def test_attach_asks_for_no_hidden_size_that_it_does_not_need():
    model = compacter.attach(Residual(3), "compacter", n=4, bottleneck=8, target_modules=["lin0"])
    assert model.peft_config["default"].bottleneck == 8


@pytest.mark.parametrize("family", ["distilbert", "electra"])
def test_prompts_have_the_width_of_the_embeddings(family):
    model = attach_tiny(family, "prompt-tuning-t")
    width = model.get_base_model().get_input_embeddings().weight.shape[1]
    assert model.prompt_encoder["default"].embedding.weight.shape[1] == width
    train(model, inputs_of(family))


def test_prompts_need_tokens():
    with pytest.raises(MethodError, match="prompt-tuning-r needs a model that reads tokens"):
        compacter.attach(TINY["vit"](), "prompt-tuning-r")


def test_defaults_follow_the_width_of_the_model():
    """Bottleneck k/32, rounded up to n; PHM-Adapter's n is 12 where it divides, else 4."""

    def config(method, width, **settings):
        from transformers import T5Config, T5ForConditionalGeneration

        base = T5ForConditionalGeneration(
            T5Config(vocab_size=9, d_model=width, d_ff=8, d_kv=1, num_layers=1, num_heads=2)
        )
        return compacter.attach(base, method, **settings).peft_config["default"]

    assert (config("compacter", 768).n, config("compacter", 768).bottleneck) == (4, 24)
    assert (config("compacter++", 512).n, config("compacter++", 512).bottleneck) == (4, 16)
    assert (config("phm-adapter", 768).n, config("phm-adapter", 768).bottleneck) == (12, 24)
    assert (config("phm-adapter", 512).n, config("phm-adapter", 512).bottleneck) == (4, 16)
    assert config("adapter", 96).bottleneck == 3
    assert config("compacter", 96).bottleneck == 4
    assert config("compacter", 96, n=6).bottleneck == 6


def test_modules_named_by_hand():
    model = get_peft_model(
        TINY["llama"](), CompacterConfig(target_modules=["v_proj"], bottleneck=8, drop_layers=1)
    )
    assert adapted_paths(model) == ["model.layers.1.self_attn.v_proj"]
    pattern = r".*\.1\.mlp\.(up|down)_proj"
    model = get_peft_model(TINY["llama"](), BitFitConfig(target_modules=pattern))
    assert places_of(model) == {
        "bias": ["model.layers.1.mlp.up_proj"],
        "bias_1": ["model.layers.1.mlp.down_proj"],
    }


class Residual(nn.Module):
    """A transformer-like model that no table knows and no name gives away."""

    def __init__(self, writers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {f"lin{i}": nn.Linear(16, 16) for i in range(writers)}
                | {"norm": nn.LayerNorm(16), "wide": nn.Linear(16, 64)}
            )
            for _ in range(2)
        )
        self.head = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            for name, module in block.items():
                if name.startswith("lin"):
                    x = x + module(block["norm"](x))
        return self.head(x)


def test_an_unknown_and_ambiguous_model_is_refused_until_named_by_hand():
    base = Residual(3)
    with unchanged(base), pytest.raises(ArchitectureError, match="target_modules"):
        get_peft_model(base, CompacterConfig(bottleneck=8))
    model = get_peft_model(base, CompacterConfig(bottleneck=8, target_modules=["lin0"]))
    x = torch.randn(2, 16)
    model(x).sum().backward()
    assert model.get_parameter(
        "base_model.model.adapters.compacter_weights.default.down_s"
    ).grad.any()


def test_any_activation_of_transformers():
    for name in ("relu", "silu", "gelu", "quick_gelu", "tanh"):
        model = attach_tiny("t5", "adapter", activation=name)
        assert torch.isfinite(torch.tensor(train(model, inputs_of("t5"), steps=1)))
    new = attach_tiny("t5", "adapter", activation="gelu_new")
    same = attach_tiny("t5", "adapter", activation="gelu_pytorch_tanh")
    assert torch.equal(logits(new, **inputs_of("t5")), logits(same, **inputs_of("t5")))


def test_initial_size_of_A():
    model = attach_tiny("t5", "compacter", n=16, bottleneck=16, A_std=0.5)
    A = model.get_parameter("base_model.model.adapters.compacter_weights.default.A")
    assert A.std().item() == pytest.approx(0.5, rel=0.05)

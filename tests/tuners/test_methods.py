"""Every method on T5, BERT, Llama and GPT-2: how it starts, what it trains, what it saves."""

from __future__ import annotations

import math

import pytest
import torch
from peft import PeftModel

import compacter
from adapting import (
    ADAPTED_METHODS,
    ADAPTER_METHODS,
    adapted_paths,
    attach_tiny,
    changed,
    inputs_of,
    logits,
    parameters_of,
    save,
    scramble,
    train,
)
from tiny_models import HIDDEN, TINY

FAMILIES = ("t5", "bert", "llama", "gpt2")
START_AT_THE_BASE_MODEL = ("compacter", "compacter++", "bitfit", "intrinsic-said")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", START_AT_THE_BASE_MODEL)
def test_starts_next_to_the_base_model(family, method):
    inputs = inputs_of(family)
    difference = logits(attach_tiny(family, method), **inputs) - logits(TINY[family](), **inputs)
    assert difference.abs().max() < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ADAPTER_METHODS)
def test_without_up_projection_nothing_changes(family, method):
    """Bit for bit, but for norms, which are computed in another order than transformers does."""
    inputs = inputs_of(family)
    expected = logits(TINY[family](), **inputs)
    for trains_norms in (False, True):
        model = attach_tiny(family, method, train_layer_norms=trains_norms)
        with torch.no_grad():
            ups = [p for n, p in model.named_parameters() if ".default.up_" in n]
            assert ups
            for parameter in ups:
                parameter.zero_()
        found = logits(model, **inputs)
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-6 if trains_norms else 0.0)


@pytest.mark.parametrize(
    ("method", "parameter", "std"),
    [
        ("adapter", "down_W", 0.01),
        ("adapter", "up_W", 0.01),
        ("pfeiffer-adapter", "down_W", 0.01),
        ("adapter-drop", "up_W", 0.01),
        ("adapter-lowrank", "down_s", math.sqrt(2 * 2 / (HIDDEN + 1))),
        ("adapter-lowrank", "down_t", math.sqrt(2 * 2 / (16 + 1))),
        ("phm-adapter", "down_A", 0.01),
        ("phm-adapter", "down_B", math.sqrt(2 * 2 / (HIDDEN / 4 + 4))),
        ("compacter", "A", 1e-4),
        ("compacter", "down_s", math.sqrt(2 * 2 / (HIDDEN / 4 + 1))),
        ("compacter++", "up_t", math.sqrt(2 * 2 / (HIDDEN / 4 + 1))),
    ],
)
def test_initial_standard_deviations(method, parameter, std):
    """Glorot-uniform with gain sqrt(2) has variance 2 * 2 / (rows + columns)."""
    settings = {"n": 4} if method == "phm-adapter" else {}
    models = [attach_tiny("t5", method, bottleneck=16, **settings)]
    for seed in range(30 if parameter.endswith("A") else 3):
        torch.manual_seed(seed)
        base = TINY["t5"]()
        torch.manual_seed(seed + 2)
        drop = {"drop_layers": 1} if method == "adapter-drop" else {}
        models.append(compacter.attach(base, method, bottleneck=16, **settings, **drop))
    values = torch.cat(
        [
            p.flatten()
            for m in models
            for n, p in m.named_parameters()
            if n.endswith(f".{parameter}")
        ]
    )
    assert values.std().item() == pytest.approx(std, rel=0.1)
    biases = [
        p for m in models for n, p in m.named_parameters() if n.endswith(("n_bias", "p_bias"))
    ]
    assert biases
    assert not any(bias.any() for bias in biases)


def declared(method: str, name: str) -> bool:
    """Whether the paper lets a method train the parameter of this name."""
    if method.startswith("prompt"):
        return "prompt_encoder" in name
    if method == "bitfit":
        return ".bitfit_weights." in name
    if method == "intrinsic-said":
        return ".intrinsic_said_weights." in name
    return ".compacter_weights." in name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ADAPTED_METHODS)
def test_training_moves_the_declared_parameters_only(family, method):
    model, inputs = attach_tiny(family, method), inputs_of(family)
    before = parameters_of(model)
    train(model, inputs)
    moved = changed(before, model)
    head = {name for name in before if ".modules_to_save." in name}
    assert moved - head == {name for name in before if declared(method, name)}
    assert (head <= moved) if family == "bert" else not head


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", ADAPTED_METHODS)
def test_a_saved_adapter_gives_the_same_logits_bit_for_bit(family, method, tmp_path):
    model, inputs = attach_tiny(family, method), inputs_of(family)
    scramble(model)
    expected = logits(model, **inputs)
    assert not torch.equal(expected, logits(attach_tiny(family, method), **inputs))
    loaded = PeftModel.from_pretrained(TINY[family](), save(model, tmp_path)).eval()
    assert torch.equal(logits(loaded, **inputs), expected)
    if not method.startswith("prompt"):  # PEFT leaves a loaded prompt trainable
        assert not any(p.requires_grad for p in loaded.parameters())


def test_full_fine_tuning_trains_the_model_itself():
    base = TINY["t5"]().requires_grad_(False)
    model = compacter.attach(base, "full")
    assert model is base
    before = parameters_of(model)
    train(model, inputs_of("t5"))
    assert changed(before, model) == set(before)


def test_prompts_start_as_in_the_paper():
    random = attach_tiny("t5", "prompt-tuning-r", num_tokens=50).prompt_encoder["default"]
    weight = random.embedding.weight
    assert weight.shape == (50, HIDDEN)  # one prompt, for the encoder only
    assert 0.49 < weight.abs().max() <= 0.5
    assert weight.std().item() == pytest.approx(1 / math.sqrt(12), rel=0.05)
    model = attach_tiny("t5", "prompt-tuning-t", num_tokens=50)
    rows = model.prompt_encoder["default"].embedding.weight
    vocabulary = model.get_base_model().shared.weight
    assert all((row == vocabulary).all(dim=1).any() for row in rows)


def test_prompt_tokens_come_from_the_first_5000():
    from transformers import T5Config, T5ForConditionalGeneration

    base = T5ForConditionalGeneration(
        T5Config(vocab_size=9_000, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    )
    with torch.no_grad():
        base.shared.weight[5_000:] = 7.0
    model = compacter.attach(base, "prompt-tuning-t", num_tokens=400)
    assert not (model.prompt_encoder["default"].embedding.weight == 7.0).any()


@pytest.mark.parametrize("method", ADAPTER_METHODS)
def test_settings_that_the_paper_leaves_to_the_future(method):
    """No biases, no layer norms, dropped layers, higher ranks: on any adapter method."""
    settings = {"use_bias": False, "train_layer_norms": False, "drop_layers": 1, "bottleneck": 8}
    if method in ("compacter", "compacter++", "adapter-lowrank"):
        settings["rank"] = 3
    model = attach_tiny("t5", method, **settings)
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert names
    assert not any("bias" in name or "norm" in name for name in names)
    paths = adapted_paths(model)
    assert paths
    assert not any("block.0" in path for path in paths)
    before = parameters_of(model)
    train(model, inputs_of("t5"))
    assert changed(before, model) == set(names)
    if "rank" in settings:
        assert next(p for n, p in model.named_parameters() if n.endswith(".down_s")).shape[-1] == 3


def test_positions_and_layers_of_the_methods():
    def adapted(method, **settings):
        return adapted_paths(attach_tiny("t5", method, **settings))

    both = [
        "encoder.block.0.layer.0.SelfAttention.o",
        "encoder.block.0.layer.1.DenseReluDense.wo",
        "encoder.block.1.layer.0.SelfAttention.o",
        "encoder.block.1.layer.1.DenseReluDense.wo",
        "decoder.block.0.layer.0.SelfAttention.o",
        "decoder.block.0.layer.2.DenseReluDense.wo",
        "decoder.block.1.layer.0.SelfAttention.o",
        "decoder.block.1.layer.2.DenseReluDense.wo",
    ]
    assert adapted("compacter") == both
    assert adapted("compacter++") == [path for path in both if path.endswith("wo")]
    assert adapted("pfeiffer-adapter") == [path for path in both if path.endswith(".o")]
    assert adapted("adapter-drop", drop_layers=1) == [path for path in both if "block.1" in path]


def test_shared_slow_weights_are_one_parameter_for_all_layers():
    model = attach_tiny("t5", "compacter")
    slow = [p for n, p in model.named_parameters() if n.endswith(".A")]
    assert [tuple(p.shape) for p in slow] == [(4, 4, 4)]
    model(**inputs_of("t5")).loss.backward()
    assert slow[0].grad.abs().sum() > 0

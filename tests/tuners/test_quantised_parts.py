"""What of a quantised model can be trained, changed or merged, and what is refused before anything
is changed."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel, get_peft_model
from torch import nn

import compacter
from adapting import attach_tiny, inputs_of, logits, save, scramble, train
from compacter import BitFitConfig, CompacterConfig, IntrinsicSAIDConfig
from compacter.errors import AdapterError, ArchitectureError
from quantised_models import (
    SCHEMES,
    batch_of,
    distance,
)
from tiny_models import TINY

ROUNDED = 0.02
"""How far logits may be apart where inputs are rounded to 8 bits, or computed in bfloat16."""


def refused(model, config, inputs, message):
    """The configuration is refused, and the model is what it was."""
    before = logits(model, **inputs)
    classes = {name: type(module) for name, module in model.named_modules()}
    with pytest.raises(ArchitectureError, match=message):
        get_peft_model(model, config)
    assert {name: type(module) for name, module in model.named_modules()} == classes
    assert not hasattr(model, "peft_config")
    assert torch.equal(logits(model, **inputs), before)


@pytest.mark.parametrize("family", ["t5", "llama", "bert"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_intrinsic_said_needs_plain_weights(bases, family, scheme):
    stored = {"int8": "torch.int8", "nf4": "torch.uint8", "torchao": "Int8Tensor"}[scheme]
    message = rf"q\w* keeps its weights as {stored}; Intrinsic-SAID moves every weight and needs"
    refused(
        bases(family, scheme), IntrinsicSAIDConfig(intrinsic_dim=400), batch_of(family), message
    )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_full_fine_tuning_needs_plain_weights(bases, scheme):
    base = bases("llama", scheme).requires_grad_(False)
    with pytest.raises(ArchitectureError, match=r"keeps its weights as .*; full fine-tuning"):
        compacter.attach(base, "full")
    assert not any(parameter.requires_grad for parameter in base.parameters())


# Other formats, as far as a module shows them. What their libraries do is not tried here.


class Packed(nn.Module):
    """A linear layer that keeps its weight as it likes, and computes with the real one."""

    def __init__(self, linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.real = (linear.weight.detach(),)

    def forward(self, x):
        bias = getattr(self, "bias", None)
        return nn.functional.linear(x, self.real[0], bias)


class AsBuffers(Packed):
    """GPTQ, AWQ."""

    def __init__(self, linear):
        super().__init__(linear)
        self.register_buffer("qweight", torch.zeros(2, 2, dtype=torch.int32))
        self.register_buffer("scales", torch.zeros(2))
        bias = None if linear.bias is None else linear.bias.detach().clone()
        self.register_buffer("bias", bias)


class AsBytes(Packed):
    """HQQ."""

    def __init__(self, linear):
        super().__init__(linear)
        self.W_q = nn.Parameter(torch.zeros(2, 2, dtype=torch.uint8), requires_grad=False)


class AsFloat8(Packed):
    """FP8, which torch counts as floating-point."""

    def __init__(self, linear):
        super().__init__(linear)
        weight = linear.weight.detach().to(torch.float8_e4m3fn)
        self.weight = nn.Parameter(weight, requires_grad=False)


class Hidden(Packed):
    """torch.ao's dynamically quantised layers have neither parameters nor buffers."""


LAYOUTS = (AsBuffers, AsBytes, AsFloat8, Hidden)


def packed_llama(layout):
    """All linear layers of the blocks, so that an adapter has no other layers around it."""
    base = TINY["llama"]()
    for name, module in list(base.model.layers.named_modules()):
        if isinstance(module, nn.Linear):
            path, _, child = name.rpartition(".")
            setattr(base.model.layers.get_submodule(path), child, layout(module))
    return base


@pytest.mark.parametrize("layout", LAYOUTS)
def test_intrinsic_said_knows_other_formats(layout):
    message = r"model\.layers\.0\.self_attn\.q_proj keeps its weights as"
    config = IntrinsicSAIDConfig(intrinsic_dim=400)
    refused(packed_llama(layout), config, inputs_of("llama"), message)


def test_intrinsic_said_believes_a_model_that_says_it_is_quantised():
    base = TINY["llama"]()
    base.is_quantized = True
    config = IntrinsicSAIDConfig(intrinsic_dim=400)
    refused(base, config, inputs_of("llama"), "the model is marked as quantised; Intrinsic-SAID")


@pytest.mark.parametrize("config", [lambda: CompacterConfig(bottleneck=8), BitFitConfig])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_adapters_and_bitfit_change_what_packed_layers_write(layout, config):
    inputs = inputs_of("llama")
    torch.manual_seed(1)
    plain = get_peft_model(TINY["llama"](), config()).eval()
    torch.manual_seed(1)
    model = get_peft_model(packed_llama(layout), config()).eval()
    for adapted in (plain, model):
        train(adapted, inputs)
    expected = logits(plain, **inputs)
    assert distance(expected, logits(TINY["llama"](), **inputs)) > 0.1
    torch.testing.assert_close(logits(model, **inputs), expected, rtol=0, atol=1e-5)


def test_a_bias_that_is_a_buffer_is_a_bias():
    inputs = inputs_of("bert")
    plain = attach_tiny("bert", "bitfit")
    base = TINY["bert"]()
    for layer in base.bert.encoder.layer:
        layer.output.dense = AsBuffers(layer.output.dense)
    model = compacter.attach(base, "bitfit").eval()
    assert model.get_nb_trainable_parameters()[0] == plain.get_nb_trainable_parameters()[0]
    scramble(model)
    expected = logits(model, **inputs)
    assert distance(expected, logits(TINY["bert"](), **inputs)) > 0.1
    torch.testing.assert_close(logits(model.merge_and_unload(), **inputs), expected)


# Merging


@pytest.mark.parametrize("scheme", SCHEMES)
def test_bitfit_merges_into_the_biases_of_a_quantised_model(bases, scheme, tmp_path):
    inputs = batch_of("bert")
    torch.manual_seed(1)
    model = compacter.attach(bases("bert", scheme), "bitfit").eval()
    base = logits(model, **inputs)
    train(model, inputs, lr=0.05)
    expected = logits(model, **inputs)
    assert distance(expected, base) > 10 * ROUNDED
    folder = save(model, tmp_path)
    model.merge_adapter()
    assert distance(logits(model, **inputs), expected) < ROUNDED
    model.unmerge_adapter()
    assert distance(logits(model, **inputs), expected) < ROUNDED
    merged = model.merge_and_unload()
    assert distance(logits(merged, **inputs), expected) < ROUNDED
    loaded = PeftModel.from_pretrained(bases("bert", scheme), folder).eval()
    assert distance(logits(loaded, **inputs), expected) < ROUNDED


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    ("method", "reason"), [("compacter", "is not linear"), ("bitfit", "have none to take them")]
)
def test_what_a_quantised_model_cannot_take_is_not_merged(bases, scheme, method, reason):
    model = compacter.attach(bases("t5", scheme), method).eval()
    scramble(model)
    expected = logits(model, **batch_of("t5"))
    with pytest.raises(AdapterError, match=reason):
        model.merge_and_unload()
    assert torch.equal(logits(model, **batch_of("t5")), expected)


# Modules of which a copy is trained


@pytest.mark.parametrize("config", [CompacterConfig, BitFitConfig])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_quantised_output_layer_is_not_tuned(bases, scheme, config):
    base = bases("llama", scheme, left_out=["embed_tokens"])
    message = (
        "tune_output_layer=True, but the output layer lm_head keeps its weights as .*"
        "quantise the model without it .BitsAndBytesConfig has llm_int8_skip_modules"
    )
    settings = {"bottleneck": 8} if config is CompacterConfig else {}
    refused(base, config(tune_output_layer=True, **settings), batch_of("llama"), message)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_bitfit_gives_a_quantised_output_layer_a_bias(bases, scheme):
    """As many parameters as where the output layer is left out."""
    inputs = batch_of("llama")
    model = compacter.attach(bases("llama", scheme), "bitfit")
    other = compacter.attach(bases("llama", scheme, left_out=["embed_tokens"]), "bitfit")
    assert other.get_nb_trainable_parameters()[0] == model.get_nb_trainable_parameters()[0]
    first = other(**inputs).loss
    assert train(other, inputs, steps=5) < first - 0.1


@pytest.mark.parametrize("family", ["t5", "llama"])
@pytest.mark.parametrize("method", ["compacter", "bitfit"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_output_layer_that_was_left_out_is_tuned(bases, scheme, method, family, tmp_path):
    """Transformers leaves it out by itself, tied embeddings included."""
    inputs = batch_of(family)
    base = bases(family, scheme)
    model = compacter.attach(base, method, tune_output_layer=True).eval()
    head = base.get_output_embeddings().weight
    assert model.get_nb_trainable_parameters()[0] > head.numel()
    frozen = head.detach().clone()
    start = logits(model, **inputs)
    train(model, inputs)
    expected = logits(model, **inputs)
    assert distance(expected, start) > 0.1
    assert torch.equal(base.get_output_embeddings().weight, frozen)
    fresh = bases(family, scheme)
    loaded = PeftModel.from_pretrained(fresh, save(model, tmp_path)).eval()
    assert torch.equal(logits(loaded, **inputs), expected)


@pytest.mark.parametrize("method", ["compacter", "bitfit"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_head_that_was_left_out_is_trained_and_saved(bases, scheme, method, tmp_path):
    inputs = batch_of("bert")
    model = compacter.attach(bases("bert", scheme), method).eval()
    train(model, inputs)
    expected = logits(model, **inputs)
    fresh = bases("bert", scheme)
    loaded = PeftModel.from_pretrained(fresh, save(model, tmp_path)).eval()
    assert torch.equal(logits(loaded, **inputs), expected)
    with model.disable_adapter():
        assert distance(logits(model, **inputs), expected) > 0.1


@pytest.mark.parametrize("config", [lambda **s: CompacterConfig(bottleneck=8, **s), BitFitConfig])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_quantised_head_is_not_trained(bases, scheme, config):
    base = bases("bert", scheme, left_out=["embeddings"])
    message = "classifier keeps its weights as .*, so it cannot be trained whole, as modules"
    refused(base, config(task_type="SEQ_CLS"), batch_of("bert"), message)
    refused(base, config(modules_to_save=["classifier"]), batch_of("bert"), message)

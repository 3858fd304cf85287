"""Tuning the output layer (Appendix C): tied to the embeddings, moved together, stored once."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from adapting import attach_tiny, changed, inputs_of, logits, parameters_of, save, scramble, train
from compacter.errors import ArchitectureError
from compacter.models import output_layer
from tiny_models import HIDDEN, TINY, VOCAB

METHODS = ("compacter", "adapter", "bitfit")
PREFIX = {"compacter": "compacter_", "adapter": "compacter_", "bitfit": "bitfit_"}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ["t5", "gpt2", "bart"])
def test_output_layer_and_embeddings_move_together(family, method, tmp_path):
    model, inputs = attach_tiny(family, method, tune_output_layer=True), inputs_of(family)
    name = f"base_model.model.adapters.{PREFIX[method]}weights.default.output_weight"
    tuned = model.get_parameter(name)
    assert tuned.shape == (VOCAB, HIDDEN)
    before = parameters_of(model)
    train(model, inputs)
    assert name in changed(before, model)
    base = TINY[family]()
    with torch.no_grad():
        base.get_output_embeddings().weight.copy_(tuned)  # tied, so it moves both
    plain = attach_tiny(family, method)
    own = {n: p for n, p in model.named_parameters() if p.requires_grad and n != name}
    with torch.no_grad():
        for parameter_name, parameter in own.items():
            plain.get_parameter(parameter_name).copy_(parameter)
        plain.get_base_model().get_output_embeddings().weight.copy_(tuned)
    torch.testing.assert_close(logits(model, **inputs), logits(plain, **inputs))
    expected = logits(model, **inputs)
    loaded = PeftModel.from_pretrained(TINY[family](), save(model, tmp_path)).eval()
    assert torch.equal(logits(loaded, **inputs), expected)
    large = [t for t in load_file(tmp_path / "adapter_model.safetensors").values() if t.dim() == 2]
    assert sum(tuple(t.shape) == (VOCAB, HIDDEN) for t in large) == 1


def test_tied_modules_are_found():
    assert list(output_layer(TINY["t5"]())) == [
        "lm_head",
        "shared",
        "encoder.embed_tokens",
        "decoder.embed_tokens",
    ]
    assert list(output_layer(TINY["llama"]())) == ["lm_head"]
    assert list(output_layer(TINY["gpt2"]())) == ["lm_head", "transformer.wte"]
    adapted = attach_tiny("t5", "compacter", tune_output_layer=True)
    assert len(output_layer(adapted.get_base_model())) == 4


def test_untied_output_layer_leaves_the_embedding():
    model, inputs = attach_tiny("llama", "compacter", tune_output_layer=True), inputs_of("llama")
    embedding = model.get_base_model().get_input_embeddings()
    assert type(embedding) is torch.nn.Embedding
    train(model, inputs)
    assert torch.isfinite(logits(model, **inputs)).all()


def test_switching_and_merging():
    model, inputs = attach_tiny("gpt2", "bitfit", tune_output_layer=True), inputs_of("gpt2")
    scramble(model)
    expected = logits(model, **inputs)
    base = logits(TINY["gpt2"](), **inputs)
    with model.disable_adapter():
        assert torch.equal(logits(model, **inputs), base)
    assert torch.equal(logits(model, **inputs), expected)
    model.merge_adapter()
    torch.testing.assert_close(logits(model, **inputs), expected)
    model.unmerge_adapter()
    torch.testing.assert_close(logits(model, **inputs), expected)
    with model.disable_adapter():
        torch.testing.assert_close(logits(model, **inputs), base)
    merged = model.merge_and_unload()
    torch.testing.assert_close(logits(merged, **inputs), expected)
    assert merged.lm_head.weight is merged.transformer.wte.weight


def test_a_model_without_an_output_layer():
    with pytest.raises(ArchitectureError, match="has no output layer over a vocabulary"):
        attach_tiny("bert", "compacter", tune_output_layer=True)

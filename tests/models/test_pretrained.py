"""Loading weights: all of them, but for heads that are new."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel

from compacter.errors import ArchitectureError
from compacter.models.pretrained import kind_of, load_model
from tiny_models import TINY

TEXT = [name for name in TINY if name != "vit"]
ENCODERS = {
    "bert": {"classifier"},
    "roberta": {"classifier"},
    "electra": {"classifier"},
    "distilbert": {"pre_classifier", "classifier"},
    "deberta-v2": {"pooler", "classifier"},
    "modernbert": {"head", "classifier"},
}

Tensors = dict[str, Tensor]


def save(
    model: PreTrainedModel, folder: Path, change: Callable[[Tensors], Any] | None = None
) -> str:
    """Save a model, and change its tensors in the file."""
    model.save_pretrained(folder)
    if change is not None:
        path = folder / "model.safetensors"
        tensors = load_file(path)
        save_file(change(tensors), path, metadata={"format": "pt"})
    return str(folder)


def without(part: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name: value for name, value in tensors.items() if part not in name}


def renamed(old: str, new: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {name.replace(old, new): value for name, value in tensors.items()}


@pytest.mark.parametrize("name", TEXT)
def test_a_saved_model_is_loaded_as_it_was(name: str, tmp_path: Path) -> None:
    model = TINY[name]()
    loaded = load_model(save(model, tmp_path), kind_of(model.config))
    assert loaded.new_heads == ()
    expected, found = model.state_dict(), loaded.model.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[key], value) for key, value in expected.items())


@pytest.mark.parametrize("name", ENCODERS)
def test_heads_beside_a_bare_encoder_are_new(name: str, tmp_path: Path) -> None:
    bare = TINY[name]().base_model
    loaded = load_model(save(bare, tmp_path), "encoder", num_labels=3)
    assert set(loaded.new_heads) == ENCODERS[name]
    found = loaded.model.base_model.state_dict()
    assert all(torch.equal(found[key], value) for key, value in bare.state_dict().items())


@pytest.mark.parametrize("name", ["t5", "bart", "gpt2", "gemma"])
def test_an_output_layer_that_is_the_embeddings_is_not_missing(name: str, tmp_path: Path) -> None:
    model = TINY[name]()
    loaded = load_model(save(model.base_model, tmp_path), kind_of(model.config))
    assert loaded.new_heads == ()
    weights: Any = loaded.model.get_output_embeddings()
    assert torch.equal(weights.weight, model.get_input_embeddings().weight)


def test_a_pooler_that_the_checkpoint_lacks_is_new(tmp_path: Path) -> None:
    folder = save(TINY["bert"](), tmp_path, without("pooler"))
    assert load_model(folder, "encoder").new_heads == ("bert.pooler",)


def test_a_head_for_other_labels_is_new(tmp_path: Path) -> None:
    folder = save(TINY["roberta"](), tmp_path)
    assert load_model(folder, "encoder", num_labels=2).new_heads == ()
    assert load_model(folder, "encoder", num_labels=5).new_heads == ("classifier",)


REFUSED: dict[str, tuple[str, Callable[[Tensors], Tensors], dict[str, Any], str]] = {
    "one tensor": (
        "t5",
        without("encoder.block.1.layer.1.DenseReluDense.wo"),
        {},
        r"1 of \d+ tensors are missing \(encoder.block.1.layer.1.DenseReluDense.wo.weight\);",
    ),
    "other names": (
        "bert",
        renamed("attention.self.query", "attention.query"),
        {},
        r"4 of \d+ tensors are missing \(.*self.query.bias, .*, and 1 more\); 4 have no place in",
    ),
    "no name in common": (
        "bert",
        lambda tensors: {f"x.{name.replace('bert.', 'y.')}": v for name, v in tensors.items()},
        {},
        r"37 of 41 tensors are missing .* 41 have no place in the model",
    ),
    "other names in a decoder": (
        "llama",
        renamed("self_attn", "attn"),
        {},
        r"8 of \d+ tensors are missing \(model.layers.0.self_attn.k_proj.weight",
    ),
    "an output layer of its own": (
        "llama",
        without("lm_head"),
        {},
        r"1 of \d+ tensors are missing \(lm_head.weight\)",
    ),
    "another width": (
        "bert",
        lambda tensors: tensors,
        {"intermediate_size": 64},
        r"6 have another shape \(.*intermediate.dense.bias is \[48\], expected \[64\], ",
    ),
    "another vocabulary": (
        "t5",
        lambda tensors: tensors,
        {"vocab_size": 100},
        r"have another shape \(.*shared.weight is \[96, 32\], expected \[100, 32\]",
    ),
    "more layers": (
        "gpt2",
        lambda tensors: tensors,
        {"n_layer": 3},
        r"12 of 41 tensors are missing \(transformer.h.2.attn.c_attn.bias",
    ),
    "another pooler": (
        "bert",
        lambda tensors: tensors | {"bert.pooler.dense.weight": torch.zeros(8, 8)},
        {},
        r"1 have another shape \(bert.pooler.dense.weight is \[8, 8\], expected \[32, 32\]\)",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_weights_that_do_not_fit_are_refused(case: str, tmp_path: Path) -> None:
    name, change, settings, told = REFUSED[case]
    model = TINY[name]()
    folder = save(model, tmp_path, change)
    model.config.update(settings)
    model.config.save_pretrained(tmp_path)
    with pytest.raises(ArchitectureError, match=f"the weights of '{folder}' do not fit.*{told}"):
        load_model(folder, kind_of(model.config))


@pytest.mark.parametrize("part", ["classifier", "pooler"])
def test_a_model_that_must_be_whole_has_its_heads(part: str, tmp_path: Path) -> None:
    model = TINY["bert"]()
    assert load_model(save(model, tmp_path), "encoder", whole=True).new_heads == ()
    folder = save(model, tmp_path, without(part))
    with pytest.raises(ArchitectureError, match=rf"2 of 41 tensors are missing .*{part}"):
        load_model(folder, "encoder", whole=True)


def test_an_adapter_beside_the_model_is_refused(tmp_path: Path) -> None:
    """Transformers would put it into the model, and tell of its weights alone."""
    folder = save(TINY["t5"](), tmp_path, without("encoder.block.1"))
    lora = LoraConfig(target_modules=["q"], task_type="SEQ_2_SEQ_LM")
    get_peft_model(TINY["t5"](), lora).save_pretrained(folder)
    with pytest.raises(ArchitectureError, match=r"adapter_config.json beside the model"):
        load_model(folder, "encoder-decoder")


def test_a_file_of_weights_that_was_cut_off(tmp_path: Path) -> None:
    folder = save(TINY["t5"](), tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ArchitectureError, match=f"the model of '{folder}' cannot be loaded: "):
        load_model(folder, "encoder-decoder")


# GGUF


def write_gguf(path: Path, config: LlamaConfig, tensors: dict[str, tuple[int, ...]]) -> str:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_vocab_size(config.vocab_size)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    for name, shape in tensors.items():
        writer.add_tensor(name, np.ones(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def gguf_tensors(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    width, inner = config.hidden_size, config.intermediate_size
    found = {"token_embd": (config.vocab_size, width), "output_norm": (width,)}
    for block in range(config.num_hidden_layers):
        names = dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (width, width))
        names |= {"ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner)}
        names |= {"attn_norm": (width,), "ffn_norm": (width,)}
        found |= {f"blk.{block}.{name}": shape for name, shape in names.items()}
    return {f"{name}.weight": shape for name, shape in found.items()}


def test_a_gguf_file_is_checked_too(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    tensors = gguf_tensors(config)
    whole = load_model(write_gguf(tmp_path / "whole.gguf", config, tensors), "decoder")
    assert whole.new_heads == ()
    del tensors["blk.1.ffn_up.weight"]
    with pytest.raises(ArchitectureError, match=r"1 of \d+ tensors are missing \(.*1.mlp.up_proj"):
        load_model(write_gguf(tmp_path / "less.gguf", config, tensors), "decoder")

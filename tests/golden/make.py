"""Adapters of file format version 1 as they were saved by 0.1.0, which must load for ever.

Every folder beside this file holds one: `adapter_config.json`, `adapter_model.safetensors`, and in
`expected.safetensors` the logits that the model had with it. The models are not stored. Their
weights are sines of the index of each number, which no version of torch makes differently.

No test runs this. If tests/tuners/test_golden.py fails, the package is wrong, not a file here. Add
a case for what the format did not have before, and write it alone:

    python tests/golden/make.py NAME
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

import compacter

FOLDER = Path(__file__).parent

_SIZES: dict[str, Any] = {
    "vocab_size": 24,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
}


def _t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=24, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2
    )
    config.decoder_start_token_id = 0
    return transformers.T5ForConditionalGeneration(config)


def _bert() -> nn.Module:
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(**_SIZES, num_labels=3)
    )


def _qwen3() -> nn.Module:
    """Its norms of keys and queries are 8 wide, like what its key projections give."""
    return transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**_SIZES, num_key_value_heads=1, head_dim=8)
    )


def _gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=24, n_embd=16, n_layer=2, n_head=2, n_inner=24, n_positions=16
        )
    )


class Case(NamedTuple):
    model: Callable[[], nn.Module]
    method: str
    settings: Mapping[str, Any] = {}


CASES: Mapping[str, Case] = {
    "compacter": Case(_t5, "compacter", {"bottleneck": 8}),
    "compacter-rank-2": Case(_gpt2, "compacter", {"n": 2, "rank": 2, "bottleneck": 6}),
    "compacter-own-A": Case(_t5, "compacter", {"share_A": False, "bottleneck": 8}),
    "compacter++": Case(_t5, "compacter++", {"bottleneck": 8, "use_bias": False}),
    "phm-adapter": Case(_t5, "phm-adapter", {"n": 4, "bottleneck": 8}),
    "adapter": Case(_bert, "adapter", {"bottleneck": 3, "modules_to_save": None}),
    "adapter-drop": Case(_t5, "adapter-drop", {"bottleneck": 2, "drop_layers": 1}),
    "adapter-lowrank": Case(_qwen3, "adapter-lowrank", {"bottleneck": 4}),
    "bitfit-existing": Case(_gpt2, "bitfit"),
    "bitfit-added": Case(_t5, "bitfit"),
    "intrinsic-said": Case(_t5, "intrinsic-said", {"intrinsic_dim": 300, "projection_seed": 3}),
    "tuned-output-layer": Case(
        _t5, "compacter++", {"bottleneck": 4, "activation": "relu", "tune_output_layer": True}
    ),
    "classification-head": Case(_bert, "compacter", {"bottleneck": 8}),
    "two-widths": Case(
        _qwen3, "compacter", {"bottleneck": 4, "target_modules": ["down_proj", "k_proj"]}
    ),
}


def fill(tensor: Tensor, name: str, mean: float, size: float) -> None:
    """Let the numbers be sines of their index and the name, computed in float64."""
    start = zlib.crc32(name.encode()) % 10_000
    numbers = mean + size * np.sin(1.7 * np.arange(tensor.numel()) + start)
    with torch.no_grad():
        tensor.copy_(torch.from_numpy(numbers).view(tensor.shape))


def base_of(case: Case) -> nn.Module:
    """The bare model, always the same."""
    model = case.model().eval()
    for name, parameter in model.named_parameters():
        is_norm = parameter.dim() == 1 and name.endswith("weight")
        fill(parameter, name, 1.0 if is_norm else 0.0, 0.1 if parameter.dim() == 1 else 0.4)
    return model


def inputs_of(case: Case) -> dict[str, Tensor]:
    """Two examples of different lengths."""
    ids = torch.tensor([[3, 7, 11, 5, 20, 9], [13, 4, 23, 8, 1, 1]])
    given = {"input_ids": ids, "attention_mask": (ids > 1).long()}
    if case.model is _t5:
        given["decoder_input_ids"] = torch.tensor([[0, 6, 17], [0, 21, 10]])
    return given


def make(name: str) -> None:
    case = CASES[name]
    model: Any = compacter.attach(base_of(case), case.method, **case.settings)
    for path, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_norm = "layernorm_weight" in path
            fill(parameter, path, 1.0 if is_norm else 0.0, 0.3)
    model.eval()
    with torch.no_grad():
        logits = model(**inputs_of(case)).logits
    folder = FOLDER / name
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    save_file({"logits": logits}, folder / "expected.safetensors")


if __name__ == "__main__":
    for wanted in sys.argv[1:]:
        make(wanted)

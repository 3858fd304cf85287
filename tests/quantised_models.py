"""Tiny models whose base is quantised, and the same models with the weights that it stands for.

Widths are such as 4 bits need on a CPU with AVX512-BF16: inputs a multiple of 64, outputs of 32."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    BitsAndBytesConfig,
    PreTrainedModel,
    TorchAoConfig,
)
from transformers.utils import logging as transformers_logging

from tiny_models import TINY, tiny_inputs

WIDTH = 64
HEADS = 4

SIZES: dict[str, dict[str, int]] = {
    "t5": {"d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": 2 * WIDTH},
    "llama": {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH},
    "bert": {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH},
}
CLASSES: dict[str, Any] = {
    "t5": AutoModelForSeq2SeqLM,
    "llama": AutoModelForCausalLM,
    "bert": AutoModelForSequenceClassification,
}
LIBRARIES = {"int8": "bitsandbytes", "nf4": "bitsandbytes", "torchao": "torchao"}
SCHEMES = tuple(LIBRARIES)


def float_model(family: str) -> PreTrainedModel:
    return TINY[family](**SIZES[family])


def quantisation(scheme: str, left_out: list[str] | None = None) -> Any:
    """How to quantise, all but the modules left out; None: all but those that transformers leaves
    out by itself."""
    if scheme == "torchao":
        from torchao.quantization import Int8WeightOnlyConfig

        return TorchAoConfig(Int8WeightOnlyConfig(), modules_to_not_convert=left_out)
    if scheme == "int8":
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=left_out)
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", llm_int8_skip_modules=left_out
    )


class Bases:
    """Loads tiny models as a user does, from the folder of the float model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
        transformers_logging.disable_progress_bar()

    def __call__(
        self,
        family: str,
        scheme: str,
        *,
        left_out: list[str] | None = None,
        as_it_is: bool = False,
        **settings: Any,
    ) -> PreTrainedModel:
        """A new model. On a CPU with AVX512-BF16, bitsandbytes has no backward pass through 4-bit
        layers that have been evaluated, unless it is told so, as here but for `as_it_is`."""
        if find_spec(LIBRARIES[scheme]) is None:
            pytest.skip(f"needs {LIBRARIES[scheme]}: pip install 'compacter-peft[quantised]'")
        path = self.folder / family
        if not path.exists():
            float_model(family).save_pretrained(path)
        if family == "bert" and left_out is None:
            left_out = ["classifier"]
        how = quantisation(scheme, left_out)
        model = CLASSES[family].from_pretrained(path, quantization_config=how, **settings)
        assert isinstance(model, PreTrainedModel)
        for module in model.modules():
            if hasattr(module, "support_avx512bf16_for_cpu") and not as_it_is:
                module.support_avx512bf16_for_cpu = False
        return model.eval()

    def dequantised(self, family: str, scheme: str) -> PreTrainedModel:
        """Plain float layers with the weights that the quantised ones stand for."""
        model = self(family, scheme)
        if scheme != "torchao":
            model.dequantize()
            return model.eval()
        for module in model.modules():
            if isinstance(module, nn.Linear) and hasattr(module.weight, "qdata"):
                module.weight = nn.Parameter(module.weight.dequantize(), requires_grad=False)
        return model


def batch_of(family: str, **settings: int) -> dict[str, Tensor]:
    return tiny_inputs(TINY[family](), **settings)


def gradients(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of the loss in training mode, of all that is trained."""
    model.train()
    model.zero_grad()
    model(**inputs).loss.backward()
    model.eval()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert trained
    missing = [name for name, p in trained.items() if p.grad is None]
    assert not missing, missing
    return {name: p.grad.clone() for name, p in trained.items()}


def distance(found: Tensor, expected: Tensor) -> float:
    return (found - expected).abs().max().item()

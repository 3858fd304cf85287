"""Loading models and tokenizers: from the hub, a folder, a GGUF file, or the package itself.

Code that comes with a model is never run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
)
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
)

from compacter.errors import ArchitectureError, SettingError
from compacter.extras import require
from compacter.models.builtin import builtin_folder, is_builtin
from compacter.models.checkpoint import new_heads
from compacter.models.modules import TASK_HEADS
from compacter.models.reading import UNREADABLE, check_config_file, read, reason

Kind = Literal["encoder-decoder", "decoder", "encoder"]

_NOT_PLAIN_DROPOUT = ("layerdrop", "layer_drop", "drop_path")  # whole layers, not numbers

_POSITIONS = ("position_embeddings", "embed_positions", "wpe")

_AUTO_CLASSES: dict[Kind, Any] = {
    "encoder-decoder": AutoModelForSeq2SeqLM,
    "decoder": AutoModelForCausalLM,
    "encoder": AutoModelForSequenceClassification,
}


@dataclass(frozen=True)
class Location:
    """Where a model is, in the words of `from_pretrained`."""

    name: str
    gguf_file: str | None = None

    @property
    def arguments(self) -> dict[str, str]:
        """Those beside the name."""
        return {} if self.gguf_file is None else {"gguf_file": self.gguf_file}


def locate(name: str) -> Location:
    """A name of the hub, a folder, `builtin/...`, or the path of a .gguf file."""
    if is_builtin(name):
        return Location(str(builtin_folder(name)))
    path = Path(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ArchitectureError(f"there is no file {name!r}; expected a GGUF model")
        return Location(str(path.parent), path.name)
    return Location(name)


def load_config(name: str, **settings: Any) -> PreTrainedConfig:
    """The model's configuration, with these settings in place of its own."""
    check_config_file(name)
    config: PreTrainedConfig = _load(AutoConfig, name, "configuration", **settings)
    return config


def load_tokenizer(name: str) -> Any:
    """The model's tokenizer; one without a padding token pads with the end of text."""
    tokenizer = _load(AutoTokenizer, name, "tokenizer")
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # what transformers makes of no files
        raise ArchitectureError(
            f"the tokenizer of {name!r} knows {len(tokenizer)} tokens and no words; expected the "
            "files of a tokenizer beside the model, as tokenizer.save_pretrained() leaves them"
        )
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def kind_of(config: PreTrainedConfig) -> Kind:
    """Which of the three kinds a model is, from what transformers has for its type."""
    model_type = config.model_type
    if config.is_encoder_decoder and model_type in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES:
        return "encoder-decoder"
    if model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        if model_type in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES:
            return "encoder"
    elif model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return "decoder"
    raise ArchitectureError(
        f"a model of type {model_type!r} is neither an encoder-decoder nor a decoder that writes "
        "text nor an encoder with a classification head in transformers"
    )


def dropout_settings(config: PreTrainedConfig, probability: float) -> dict[str, float]:
    """One probability for all of a model's dropouts, in the words of its configuration."""
    names = [
        name
        for name, value in config.to_dict().items()
        if "drop" in name
        and not any(part in name for part in _NOT_PLAIN_DROPOUT)
        and (value is None or isinstance(value, (int, float)))
    ]
    if not names:
        raise SettingError(
            f"dropout={probability:g} is given, but the configuration of a {config.model_type!r} "
            "model has no dropout; expected none"
        )
    return dict.fromkeys(names, probability)


@dataclass(frozen=True)
class LoadedModel:
    """A model, and what its checkpoint lacks."""

    model: nn.Module
    new_heads: tuple[str, ...]
    """Paths of modules with random weights, which are to be trained."""


def load_model(
    name: str, kind: Kind, *, quantize: str | None = None, whole: bool = False, **settings: Any
) -> LoadedModel:
    """The model with the head that its kind needs, in float32 or quantised; `settings` are those of
    its configuration. An encoder's head may be new, and a saved one for other labels gives way to a
    new one, unless the model must be whole."""
    model, info = _load(
        _AUTO_CLASSES[kind],
        name,
        "model",
        config=load_config(name, **settings),
        dtype=torch.float32 if quantize is None else "auto",
        quantization_config=None if quantize is None else _quantization(quantize, kind),
        ignore_mismatched_sizes=True,  # they are told, and refused in our own words
        output_loading_info=True,
    )
    if hasattr(model, "peft_config"):  # and the loading info is that of the adapter
        raise ArchitectureError(
            f"{name!r} holds an adapter_config.json beside the model, and transformers has loaded "
            "that adapter too; expected a model alone"
        )
    heads = new_heads(model, name, info, may_lack_heads=kind == "encoder" and not whole)
    if locate(name).gguf_file is not None:
        _forget_gguf(model)
    _keep_differentiable(model)
    return LoadedModel(model, heads)


def longest_input(model: nn.Module) -> int | None:
    """Positions that a model has embeddings for, less those that some reserve; None: no limit."""
    for name, module in model.named_modules():
        last = name.rpartition(".")[2]
        if last in _POSITIONS and isinstance(module, nn.Embedding):
            padding = module.padding_idx
            reserved = getattr(module, "offset", 0 if padding is None else padding + 1)
            return int(module.num_embeddings - reserved)
    return None


def _forget_gguf(model: nn.Module) -> None:
    """Weights of a GGUF file are plain numbers once they are loaded; transformers still marks the
    model as quantised, and Trainer then refuses to train it."""
    for name in ("hf_quantizer", "quantization_method", "is_quantized"):
        model.__dict__.pop(name, None)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def _keep_differentiable(model: nn.Module) -> None:
    """On a CPU with AVX512-BF16, bitsandbytes 0.50 packs 4-bit weights anew in the first pass in
    eval mode. It has no backward pass for that format and stays with it, so that after the first
    validation a layer would get no gradient from those above it."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            cast(Any, module).support_avx512bf16_for_cpu = False


def _quantization(bits: str, kind: Kind) -> Any:
    """The head of an encoder is new and trained, so it is left out; of other models transformers
    leaves the output layer out by itself."""
    require("bitsandbytes", "quantised", f"quantize={bits!r}")
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=bits == "4bit",
        load_in_8bit=bits == "8bit",
        bnb_4bit_quant_type="nf4",
        llm_int8_skip_modules=list(TASK_HEADS) if kind == "encoder" else None,
    )


def _load(auto_class: Any, name: str, what: str, **settings: Any) -> Any:
    location = locate(name)
    try:
        return read(auto_class, location.name, **location.arguments, **settings)
    except UNREADABLE as error:
        raise ArchitectureError(
            f"the {what} of {name!r} cannot be loaded: {reason(error)}; expected a name on the "
            "Hugging Face hub, a folder with a saved model, a .gguf file, or builtin/minilm"
        ) from None

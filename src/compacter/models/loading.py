"""A model's skeleton: every module and shape, no weights, so that counting needs no memory."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel, T5Config

from compacter.errors import ArchitectureError
from compacter.models.builtin import BUILTIN_MODELS, builtin_folder, is_builtin
from compacter.models.reading import UNREADABLE, check_config_file, read, reason

T5_VOCABULARY = 32_100
"""The paper's count. The published checkpoints round their embeddings up to 32,128 rows."""


@dataclass(frozen=True)
class T5Dimensions:
    """The sizes that tell the original T5 models apart, under the names of T5Config."""

    d_model: int
    d_ff: int
    num_layers: int
    num_heads: int
    d_kv: int = 64


T5_DIMENSIONS: Mapping[str, T5Dimensions] = MappingProxyType(
    {
        "t5-small": T5Dimensions(d_model=512, d_ff=2_048, num_layers=6, num_heads=8),
        "t5-base": T5Dimensions(d_model=768, d_ff=3_072, num_layers=12, num_heads=12),
        "t5-large": T5Dimensions(d_model=1_024, d_ff=4_096, num_layers=24, num_heads=16),
        "t5-3b": T5Dimensions(d_model=1_024, d_ff=16_384, num_layers=24, num_heads=32, d_kv=128),
        "t5-11b": T5Dimensions(d_model=1_024, d_ff=65_536, num_layers=24, num_heads=128, d_kv=128),
    }
)


def skeleton(name: str, *, head: str | None = None) -> nn.Module:
    """The model on the meta device: no weights are loaded, none allocated, tied ones are one.

    `name` is a bare T5 name (`t5-base` or `google-t5/t5-base`, which needs no network), a builtin
    model (`builtin/minilm`), a folder with a config.json, or a model of the hub. `head` names a
    class of transformers to build (`T5EncoderModel`, `AutoModelForSequenceClassification`) in place
    of the one in the config.
    """
    with torch.device("meta"):
        return _make(name, head)


def random_model(name: str, *, head: str | None = None) -> nn.Module:
    """The same model with random weights: to measure, not to use."""
    return _make(name, head)


def _make(name: str, head: str | None) -> nn.Module:
    dimensions = T5_DIMENSIONS.get(name.removeprefix("google-t5/"))
    if dimensions is not None:
        config: PreTrainedConfig = T5Config(
            vocab_size=T5_VOCABULARY,
            feed_forward_proj="relu",
            tie_word_embeddings=True,
            decoder_start_token_id=0,
            architectures=["T5ForConditionalGeneration"],
            **asdict(dimensions),
        )
    else:
        config = _config(str(builtin_folder(name)) if is_builtin(name) else name)
    return _build(name, config, head)


def _config(name: str) -> PreTrainedConfig:
    check_config_file(name)
    try:
        config = read(AutoConfig, name)
    except OSError as error:
        where = (
            "cannot be read"
            if Path(name).is_dir()
            else "is no folder here and was not read from the hub"
        )
        raise ArchitectureError(
            f"the model {name!r} {where} ({reason(error)}); expected a bare T5 name "
            f"({', '.join(T5_DIMENSIONS)}), a builtin model ({', '.join(BUILTIN_MODELS)}), a "
            f"folder with a config.json or a name on the Hugging Face hub{_nearest(name)}"
        ) from None
    except UNREADABLE as error:
        raise ArchitectureError(
            f"the config.json of {name!r} does not describe a model that transformers "
            f"{transformers.__version__} knows ({reason(error)})"
        ) from None
    assert isinstance(config, PreTrainedConfig)
    return config


def _build(name: str, config: PreTrainedConfig, head: str | None) -> nn.Module:
    make = _model_class(config, head)
    try:
        is_concrete = issubclass(make, PreTrainedModel)
        model = make(config) if is_concrete else make.from_config(config, trust_remote_code=False)
    except (ImportError, AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ArchitectureError(
            f"{make.__name__} cannot be built from the configuration of {name!r}, "
            f"model type {config.model_type!r} ({reason(error)})"
        ) from None
    assert isinstance(model, nn.Module)
    return model


def _model_class(config: PreTrainedConfig, head: str | None) -> Any:
    """The class to build: the one asked for, the one the config names, or the bare model."""
    named = head or next(iter(config.architectures or ()), "AutoModel")
    found = getattr(transformers, named, None)
    if isinstance(found, type) and (issubclass(found, PreTrainedModel) or "Auto" in named):
        return found
    if head is not None:
        raise ArchitectureError(
            f"head {head!r} is no model class of transformers {transformers.__version__}; "
            "expected one such as 'T5EncoderModel' or 'AutoModelForSequenceClassification'"
        )
    return AutoModel


def _nearest(name: str) -> str:
    bare = name.rsplit("/", 1)[-1].lower()
    close = difflib.get_close_matches(bare, T5_DIMENSIONS, n=1) if "t5" in bare else []
    return f"; did you mean {close[0]!r}?" if close else ""

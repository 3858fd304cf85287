"""Where self-attention and feed-forward write back to the residual stream, family by family.

Adding a family is adding one entry to `ARCHITECTURES`, keyed by `config.model_type`, and one tiny
model to the tests. A model that is not in the table is worked out from its structure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """One family of models. `*` in a pattern stands for exactly one component of a path."""

    stacks: tuple[str, ...]
    """Paths of the lists of repeated blocks; a bare model may lack the first components."""
    attention: tuple[str, ...]
    """Inside a block: the last linear layer of self-attention (alternatives, one of which fits)."""
    feed_forward: tuple[str, ...]
    """Inside a block: the last linear layer of the feed-forward."""


@dataclass(frozen=True)
class Bypass:
    """Output projections whose weight is handed to a fused function instead of being called.

    Whatever is wrapped around such a layer would never run, and the adapter would learn nothing
    without a word; so these models are refused rather than guessed.
    """

    modules: tuple[str, ...]
    """How the paths of those layers end."""
    reason: str
    when: Callable[[Any], bool] = lambda config: True
    """Whether a model with this configuration takes that way."""


_T5 = Architecture(
    stacks=("encoder.block", "decoder.block"),
    attention=("layer.0.SelfAttention.o",),
    feed_forward=("layer.*.DenseReluDense.wo",),
)
_LONG_T5 = Architecture(
    stacks=_T5.stacks,
    attention=(
        "layer.0.SelfAttention.o",
        "layer.0.LocalSelfAttention.o",
        "layer.0.TransientGlobalSelfAttention.o",
    ),
    feed_forward=_T5.feed_forward,
)
_BART = Architecture(
    stacks=("encoder.layers", "decoder.layers"),
    attention=("self_attn.out_proj",),
    feed_forward=("fc2",),
)
_BERT = Architecture(
    stacks=("encoder.layer",),
    attention=("attention.output.dense",),
    feed_forward=("output.dense",),
)
_LLAMA = Architecture(
    stacks=("model.layers",),
    attention=("self_attn.o_proj",),
    feed_forward=("mlp.down_proj",),
)

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        # encoder-decoders
        "t5": _T5,
        "mt5": _T5,
        "umt5": _T5,
        "longt5": _LONG_T5,
        "bart": _BART,
        "mbart": _BART,
        "pegasus": _BART,
        "marian": _BART,
        "m2m_100": _BART,
        "blenderbot": _BART,
        # encoders
        "bert": _BERT,
        "roberta": _BERT,
        "xlm-roberta": _BERT,
        "electra": _BERT,
        "deberta": _BERT,
        "deberta-v2": _BERT,
        "distilbert": Architecture(
            stacks=("transformer.layer",),
            attention=("attention.out_lin",),
            feed_forward=("ffn.lin2",),
        ),
        "modernbert": Architecture(
            stacks=("model.layers",),
            attention=("attn.Wo",),
            feed_forward=("mlp.Wo",),
        ),
        # decoders
        "gpt2": Architecture(
            stacks=("transformer.h",),
            attention=("attn.c_proj",),
            feed_forward=("mlp.c_proj",),
        ),
        "gpt_neox": Architecture(
            stacks=("gpt_neox.layers",),
            attention=("attention.dense",),
            feed_forward=("mlp.dense_4h_to_h",),
        ),
        "opt": Architecture(
            stacks=("decoder.layers",),
            attention=("self_attn.out_proj",),
            feed_forward=("fc2",),
        ),
        "bloom": Architecture(
            stacks=("transformer.h",),
            attention=("self_attention.dense",),
            feed_forward=("mlp.dense_4h_to_h",),
        ),
        "llama": _LLAMA,
        "mistral": _LLAMA,
        "qwen2": _LLAMA,
        "qwen3": _LLAMA,
        "gemma": _LLAMA,
        "gemma2": _LLAMA,
        "gemma3_text": _LLAMA,
        "gemma3": Architecture(
            stacks=("language_model.layers",),
            attention=_LLAMA.attention,
            feed_forward=_LLAMA.feed_forward,
        ),
        "phi3": _LLAMA,
        "olmo2": _LLAMA,
        "smollm3": _LLAMA,
        # images
        "vit": Architecture(
            stacks=("vit.layers",),
            attention=("attention.o_proj",),
            feed_forward=("mlp.fc2",),
        ),
    }
)

_MAMBA = Bypass(
    modules=tuple(
        f"{holder}.{layer}"
        for holder in ("mamba", "mixer")
        for layer in ("out_proj", "x_proj", "dt_proj")
    ),
    reason="its Mamba layers hand the weights of out_proj and others to a fused kernel",
)

BYPASSES: Mapping[str, Bypass] = MappingProxyType(
    {
        "wavlm": Bypass(
            modules=tuple(f"attention.{name}_proj" for name in ("q", "k", "v", "out")),
            reason="its attention hands out_proj.weight to multi_head_attention_forward",
        ),
        "bloom": Bypass(
            modules=("self_attention.dense", "mlp.dense_4h_to_h"),
            reason="slow_but_exact with pretraining_tp > 1 reads slices of the output weights",
            when=lambda config: config.slow_but_exact and config.pretraining_tp > 1,
        ),
        "mamba": _MAMBA,
        "mamba2": _MAMBA,
        "falcon_mamba": _MAMBA,
        "falcon_h1": _MAMBA,
        "bamba": _MAMBA,
        "granitemoehybrid": _MAMBA,
        "nemotron_h": _MAMBA,
        "zamba2": _MAMBA,
    }
)


_LONGFORMER = ("query", "key", "value", "query_global", "key_global", "value_global")

SEQUENCE_FIRST: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"fsmt": ("",), "led": _LONGFORMER, "longformer": _LONGFORMER, "xlnet": ("",)}
)
"""How the paths of modules end that are called with (length, batch, width), family by family: of
such a tensor nothing tells which row belongs to which adapter."""


GUIDED = frozenset(
    {
        "dia",
        "janus",
        "musicgen",
        "musicgen_decoder",
        "musicgen_melody",
        "musicgen_melody_decoder",
        "vibevoice",
    }
)
"""Families that write by classifier-free guidance: they compute a batch with its prompts and once
more without, as one batch of all rows and then all rows again."""


def path_matches(path: str, pattern: str) -> bool:
    """Whether a path inside a block is the one the pattern describes, component by component."""
    parts, wanted = path.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(
        want in ("*", part) for part, want in zip(parts, wanted, strict=True)
    )


def stack_matches(path: str, pattern: str) -> bool:
    """Whether one path ends with the other: `model.decoder.layers` fits `decoder.layers`, and so
    does the plain `layers` of a decoder without the model around it."""
    parts, wanted = path.split("."), pattern.split(".")
    shared = min(len(parts), len(wanted))
    return parts[-shared:] == wanted[-shared:]

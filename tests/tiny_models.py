"""Tiny random models of every family, shared by the tests of all floors.

One factory per family: hidden size 32, 4 heads, 2 layers per stack, no dropout and a fixed seed, so
that two calls give the same model and a forward pass gives the same numbers in both modes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

VOCAB = 96
HIDDEN = 32
FEED_FORWARD = 48
LAYERS = 2
HEADS = 4

_TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1}

_T5: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": HIDDEN,
    "d_kv": HIDDEN // HEADS,
    "d_ff": FEED_FORWARD,
    "num_layers": LAYERS,
    "num_decoder_layers": LAYERS,
    "num_heads": HEADS,
    "dropout_rate": 0.0,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
_LONG_T5: dict[str, Any] = _T5 | {"local_radius": 4, "global_block_size": 4}

_BART: dict[str, Any] = _TOKENS | {
    "vocab_size": VOCAB,
    "d_model": HIDDEN,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": FEED_FORWARD,
    "decoder_ffn_dim": FEED_FORWARD,
    "max_position_embeddings": 64,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}

_BERT: dict[str, Any] = _TOKENS | {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": FEED_FORWARD,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout": 0.0,
    "num_labels": 2,
}
_DEBERTA: dict[str, Any] = _BERT | {
    "relative_attention": True,
    "max_relative_positions": 16,
    "pos_att_type": ["p2c", "c2p"],
    "pooler_hidden_size": HIDDEN,
    "pooler_dropout": 0.0,
}

_LLAMA: dict[str, Any] = _TOKENS | {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "intermediate_size": FEED_FORWARD,
    "max_position_embeddings": 64,
    "attention_dropout": 0.0,
}
_GEMMA: dict[str, Any] = _LLAMA | {"head_dim": HIDDEN // HEADS, "sliding_window": 16}
_QWEN3: dict[str, Any] = _LLAMA | {"head_dim": HIDDEN // HEADS}


def _build(model: str, config: str, **settings: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    made = getattr(transformers, model)(getattr(transformers, config)(**settings))
    assert isinstance(made, PreTrainedModel)
    return made.eval()


def _gemma3() -> PreTrainedModel:
    text = _GEMMA | {"query_pre_attn_scalar": 8}
    vision = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 16,
        "patch_size": 4,
    }
    return _build(
        "Gemma3ForConditionalGeneration",
        "Gemma3Config",
        text_config=text,
        vision_config=vision,
        mm_tokens_per_image=4,
        image_token_index=VOCAB - 1,
        boi_token_index=VOCAB - 2,
        eoi_token_index=VOCAB - 3,
    )


TINY: dict[str, Callable[[], PreTrainedModel]] = {
    # encoder-decoders
    "t5": partial(_build, "T5ForConditionalGeneration", "T5Config", **_T5),
    "mt5": partial(_build, "MT5ForConditionalGeneration", "MT5Config", **_T5),
    "umt5": partial(_build, "UMT5ForConditionalGeneration", "UMT5Config", **_T5),
    "longt5-local": partial(
        _build,
        "LongT5ForConditionalGeneration",
        "LongT5Config",
        **_LONG_T5,
        encoder_attention_type="local",
    ),
    "longt5-global": partial(
        _build,
        "LongT5ForConditionalGeneration",
        "LongT5Config",
        **_LONG_T5,
        encoder_attention_type="transient-global",
    ),
    "bart": partial(_build, "BartForConditionalGeneration", "BartConfig", **_BART),
    "mbart": partial(_build, "MBartForConditionalGeneration", "MBartConfig", **_BART),
    "pegasus": partial(_build, "PegasusForConditionalGeneration", "PegasusConfig", **_BART),
    "marian": partial(_build, "MarianMTModel", "MarianConfig", **_BART),
    "m2m_100": partial(_build, "M2M100ForConditionalGeneration", "M2M100Config", **_BART),
    "blenderbot": partial(
        _build, "BlenderbotForConditionalGeneration", "BlenderbotConfig", **_BART
    ),
    # encoders
    "bert": partial(_build, "BertForSequenceClassification", "BertConfig", **_BERT),
    "roberta": partial(_build, "RobertaForSequenceClassification", "RobertaConfig", **_BERT),
    "xlm-roberta": partial(
        _build, "XLMRobertaForSequenceClassification", "XLMRobertaConfig", **_BERT
    ),
    "electra": partial(
        _build,
        "ElectraForSequenceClassification",
        "ElectraConfig",
        **_BERT,
        embedding_size=16,
    ),
    "distilbert": partial(
        _build,
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        vocab_size=VOCAB,
        dim=HIDDEN,
        n_layers=LAYERS,
        n_heads=HEADS,
        hidden_dim=FEED_FORWARD,
        max_position_embeddings=64,
        dropout=0.0,
        attention_dropout=0.0,
        seq_classif_dropout=0.0,
        num_labels=2,
    ),
    "deberta": partial(_build, "DebertaForSequenceClassification", "DebertaConfig", **_DEBERTA),
    "deberta-v2": partial(
        _build, "DebertaV2ForSequenceClassification", "DebertaV2Config", **_DEBERTA
    ),
    "modernbert": partial(
        _build,
        "ModernBertForSequenceClassification",
        "ModernBertConfig",
        **_BERT,
        local_attention=8,
        cls_token_id=2,
        sep_token_id=1,
    ),
    # decoders
    "gpt2": partial(
        _build,
        "GPT2LMHeadModel",
        "GPT2Config",
        vocab_size=VOCAB,
        n_embd=HIDDEN,
        n_layer=LAYERS,
        n_head=HEADS,
        n_inner=FEED_FORWARD,
        n_positions=64,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=2,
        eos_token_id=1,
    ),
    "gpt_neox": partial(
        _build,
        "GPTNeoXForCausalLM",
        "GPTNeoXConfig",
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=FEED_FORWARD,
        max_position_embeddings=64,
        bos_token_id=2,
        eos_token_id=1,
    ),
    "opt": partial(
        _build,
        "OPTForCausalLM",
        "OPTConfig",
        **_TOKENS,
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        word_embed_proj_dim=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        ffn_dim=FEED_FORWARD,
        max_position_embeddings=64,
        dropout=0.0,
    ),
    "bloom": partial(
        _build,
        "BloomForCausalLM",
        "BloomConfig",
        **_TOKENS,
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        n_layer=LAYERS,
        n_head=HEADS,
    ),
    "llama": partial(_build, "LlamaForCausalLM", "LlamaConfig", **_LLAMA),
    "mistral": partial(_build, "MistralForCausalLM", "MistralConfig", **_LLAMA),
    "qwen2": partial(_build, "Qwen2ForCausalLM", "Qwen2Config", **_LLAMA),
    "qwen3": partial(_build, "Qwen3ForCausalLM", "Qwen3Config", **_QWEN3),
    "gemma": partial(_build, "GemmaForCausalLM", "GemmaConfig", **_LLAMA, head_dim=HIDDEN // HEADS),
    "gemma2": partial(
        _build, "Gemma2ForCausalLM", "Gemma2Config", **_GEMMA, query_pre_attn_scalar=8
    ),
    "gemma3_text": partial(
        _build, "Gemma3ForCausalLM", "Gemma3TextConfig", **_GEMMA, query_pre_attn_scalar=8
    ),
    "gemma3": _gemma3,
    "phi3": partial(_build, "Phi3ForCausalLM", "Phi3Config", **_LLAMA),
    "olmo2": partial(_build, "Olmo2ForCausalLM", "Olmo2Config", **_LLAMA),
    "smollm3": partial(_build, "SmolLM3ForCausalLM", "SmolLM3Config", **_LLAMA),
    # images
    "vit": partial(
        _build,
        "ViTForImageClassification",
        "ViTConfig",
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=FEED_FORWARD,
        image_size=16,
        patch_size=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=2,
    ),
}


def tiny_inputs(model: PreTrainedModel, *, batch: int = 2, length: int = 8) -> dict[str, Any]:
    """A small valid batch for a model of the table, with labels."""
    generator = torch.Generator().manual_seed(1)
    name = type(model).__name__
    if name.endswith("ForImageClassification"):
        size = model.config.image_size
        pixels = torch.randn(batch, 3, size, size, generator=generator)
        return {"pixel_values": pixels, "labels": torch.arange(batch) % 2}
    tokens = torch.randint(3, VOCAB - 8, (batch, length), generator=generator)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if name.endswith("ForSequenceClassification"):
        return inputs | {"labels": torch.arange(batch) % 2}
    if model.config.is_encoder_decoder:
        labels = torch.randint(3, VOCAB - 8, (batch, length // 2), generator=generator)
        return inputs | {"labels": labels}
    return inputs | {"labels": tokens.clone()}

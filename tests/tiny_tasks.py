"""Tiny models with tokenizers in folders, and a small task in files, that can really be learned."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

COLOURS = ("red", "green", "blue", "one", "two", "three")
WORDS = (*COLOURS, "cat", "dog", "custom", "text:", "answer:", "yes", "no")
VOCABULARY = {w: i for i, w in enumerate(["<pad>", "</s>", "<unk>", "[CLS]", "[SEP]", *WORDS])}


def write_files(folder: Path, *, train: int = 320, held_out: int = 80) -> dict[str, str]:
    """CSV files: does a sentence of five words hold a cat (yes) or a dog (no)?"""
    draw = random.Random(0)
    files = {}
    for split, count in (("train", train), ("validation", held_out), ("test", held_out)):
        path = folder / f"{split}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            for _ in range(count):
                words = [draw.choice(COLOURS) for _ in range(5)]
                animal = draw.choice(["cat", "dog"])
                words[draw.randrange(5)] = animal
                writer.writerow([" ".join(words), "yes" if animal == "cat" else "no"])
        files[f"{split}_file"] = str(path)
    return files


def save_model(kind: str, folder: Path) -> str:
    """A random model of 2 layers and its tokenizer, as from_pretrained wants them."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": len(VOCABULARY), "pad_token_id": 0, "eos_token_id": 1}
    made: Any
    if kind == "t5":
        made = T5ForConditionalGeneration(
            T5Config(
                **sizes,
                d_model=64,
                d_kv=16,
                d_ff=128,
                num_layers=2,
                num_heads=4,
                dropout_rate=0.0,
                decoder_start_token_id=0,
            )
        )
    elif kind == "llama":
        made = LlamaForCausalLM(
            LlamaConfig(
                **sizes,
                bos_token_id=1,
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=4,
            )
        )
    else:
        made = BertForSequenceClassification(
            BertConfig(
                **sizes,
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                hidden_dropout_prob=0.0,
                attention_probs_dropout_prob=0.0,
            )
        )
    made.save_pretrained(folder)
    _tokenizer(kind).save_pretrained(folder)
    return str(folder)


def _tokenizer(kind: str) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if kind == "t5":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="$A </s>", special_tokens=[("</s>", 1)]
        )
    elif kind == "bert":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B [SEP]",
            special_tokens=[("[CLS]", 3), ("[SEP]", 4)],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )


def recipe_values(kind: str, folder: Path, **settings: Any) -> dict[str, Any]:
    """A recipe, as plain values, for the task on a new tiny model of that kind."""
    return {
        "model": save_model(kind, folder / kind),
        **write_files(folder),
        "text_columns": ("text",),
        "epochs": 6,
        "learning_rate": 1e-2,
        "batch_size": 32,
        "warmup_steps": 4,
        **settings,
    }

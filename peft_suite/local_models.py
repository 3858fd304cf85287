"""Small local models in place of those of the hub: random weights, one folder each."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from datasets import Dataset, DatasetDict
from filelock import FileLock
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sdist import CACHE
from tiny_models import TINY, VOCAB

WORDS = ["<pad>", "</s>", "<s>", "<unk>", *(f"word{i}" for i in range(VOCAB - 4))]


@cache
def local(auto_class: str, family: str) -> str:
    """A folder with the tiny model of the family as `auto_class` makes it."""
    folder = CACHE / "models" / f"{auto_class}-{family}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "tokenizer.json").is_file():
            _write(folder, auto_class, family)
    return str(folder)


def _write(folder: Path, auto_class: str, family: str) -> None:
    config = TINY[family]().config
    config.eos_token_id = VOCAB - 1  # not 1, which the tests take as a word
    torch.manual_seed(0)
    getattr(transformers, auto_class).from_config(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=32, **special).save_pretrained(
        folder
    )


def model_ids(auto_class: str, *families: str) -> list[Any]:
    """PEFT's `model_id`."""
    return [pytest.param(local(auto_class, family), id=family) for family in families]


class LocalAuto:
    """In place of an auto class: what the hub's identifiers name is the local model of its kind."""

    def __init__(self, auto_class: Any) -> None:
        self.auto_class = auto_class

    def from_pretrained(self, model_id: str, **kwargs: Any) -> Any:
        if not Path(model_id).is_dir():
            family = next(f for f in ("t5", "opt", "llama", "bert") if f in model_id.lower())
            model_id = local(self.auto_class.__name__, family)
        return self.auto_class.from_pretrained(model_id, **kwargs)


def quotes() -> DatasetDict:
    """In place of the dataset of quotes that PEFT's tests of torch.compile train on."""
    text = [" ".join(WORDS[4 + (7 * i + j) % 80] for j in range(8)) for i in range(20)]
    blank = [""] * len(text)
    columns = {"quote": text, "author": blank, "tags": blank}
    return DatasetDict(train=Dataset.from_dict(columns))

"""Compacter++ on a base model in 8 bits, from beginning to end: load it quantised, attach, train
with Trainer, save, load.

It needs bitsandbytes, which works without a GPU too: pip install 'compacter-peft[quantised]'.
Nothing is downloaded. The model is a T5 with random weights, and the task is made up on the spot:
one of ten words is an animal, and the model must answer with its sound.

    python examples/quantised.py
"""

from __future__ import annotations

import logging
import random
import tempfile
from pathlib import Path

import torch
from peft import PeftModel
from torch import Tensor
from transformers import (
    BitsAndBytesConfig,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainingArguments,
)
from transformers.utils import logging as transformers_logging

import compacter

transformers_logging.disable_progress_bar()
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it tells of every rounding of inputs

# 1. The task, in tokens: 0 pads, 1 ends a text, then come 8 animals, 8 sounds and other words.

ANIMALS, SOUNDS, OTHERS = range(2, 10), range(10, 18), range(18, 96)


def make_examples(count: int, seed: int) -> list[dict[str, list[int]]]:
    draw = random.Random(seed)
    examples = []
    for _ in range(count):
        sentence, animal = draw.choices(OTHERS, k=10), draw.randrange(8)
        sentence[draw.randrange(10)] = ANIMALS[animal]
        examples.append({"input_ids": sentence, "labels": [SOUNDS[animal]]})
    return examples


train, test = make_examples(2_000, seed=1), make_examples(500, seed=2)
sentences = torch.tensor([example["input_ids"] for example in test])
answers = torch.tensor([example["labels"][0] for example in test])


@torch.no_grad()
def scores(model: torch.nn.Module) -> Tensor:
    """Of all words as the answer to the test sentences (sentences x words)."""
    model.eval()
    start = torch.zeros(len(sentences), 1, dtype=torch.long)  # the decoder starts from <pad>
    logits: Tensor = model(input_ids=sentences, decoder_input_ids=start).logits
    return logits[:, 0]


def accuracy(model: torch.nn.Module) -> str:
    return f"{(scores(model).argmax(dim=-1) == answers).float().mean():.1%}"


# 2. The base model, in float32 in a folder, in 8 bits in memory. What is saved stays as it is.

work = tempfile.TemporaryDirectory()
base_folder, adapter_folder = Path(work.name, "base"), Path(work.name, "adapter")
torch.manual_seed(0)
sizes = {"vocab_size": 96, "d_model": 128, "d_kv": 32, "d_ff": 512, "num_layers": 3, "num_heads": 4}
config = T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0)
full = T5ForConditionalGeneration(config)
full.save_pretrained(base_folder)


def load_base() -> T5ForConditionalGeneration:
    how = BitsAndBytesConfig(load_in_8bit=True)
    model: T5ForConditionalGeneration = T5ForConditionalGeneration.from_pretrained(
        base_folder, quantization_config=how
    )
    return model


base = load_base()
before, after = (model.get_memory_footprint() / 2**20 for model in (full, base))
print(f"The base model takes {after:.1f} MiB in 8 bits, {before:.1f} MiB in float32.")

# 3. The method, as on any other model. The adapters are in float32.

model = compacter.attach(base, "compacter++", n=4, bottleneck=24)
model.print_trainable_parameters()
print(f"Accuracy before training: {accuracy(model)} (a guess among the sounds: 12.5%)")

# 4. Training. The learning rate is higher than the paper's 3e-3, since the body is random.

arguments = TrainingArguments(
    output_dir=str(Path(work.name, "run")),
    max_steps=160,
    per_device_train_batch_size=32,
    learning_rate=1e-2,
    lr_scheduler_type="constant",
    logging_steps=40,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
)
Trainer(model, arguments, train_dataset=train).train()
print(f"Accuracy after training: {accuracy(model)}")

# 5. The adapter is saved without the base model, and loaded into a freshly quantised one.

model.save_pretrained(adapter_folder)
loaded = PeftModel.from_pretrained(load_base(), adapter_folder)
assert torch.equal(scores(loaded), scores(model))
print("Loaded into a freshly quantised base model: all logits are equal bit for bit.")

work.cleanup()

"""Compacter++ in a training loop of your own, from beginning to end on a tiny model: attach, train,
save, load.

Nothing is downloaded. The model is a T5 made from a configuration, with random weights, and the
task is made up on the spot: a sentence of ten words names one animal, and the model must answer
with the sound that the animal makes.

    python examples/own_loop.py
"""

from __future__ import annotations

import random
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import torch
from peft import PeftModel
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration
from transformers.utils import logging as transformers_logging

import compacter

transformers_logging.disable_progress_bar()
with suppress(ImportError):  # rich colours the output, where it is installed
    from rich import print

# 1. The task. Every word is one token, and its place in this list is its number.

SOUNDS = {
    "dog": "woof",
    "cat": "meow",
    "cow": "moo",
    "duck": "quack",
    "sheep": "baa",
    "pig": "oink",
    "horse": "neigh",
    "owl": "hoot",
}
TEXT = """
    the a one this that my your his her our old young small big red blue green brown white black
    runs walks sits sleeps waits plays hides looks stands turns in on by under over behind near
    with from house tree field river road hill barn garden bridge wall today now here often again
"""
OTHER_WORDS = TEXT.split()
WORDS = ["<pad>", "</s>", *SOUNDS, *SOUNDS.values(), *OTHER_WORDS]
LENGTH = 10


def make_rows(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Sentences (count x 10 tokens) and their answers (count x 1 token)."""
    draw = random.Random(seed)
    sentences, answers = [], []
    for _ in range(count):
        sentence = draw.choices(OTHER_WORDS, k=LENGTH)
        animal = draw.choice(list(SOUNDS))
        sentence[draw.randrange(LENGTH)] = animal
        sentences.append([WORDS.index(word) for word in sentence])
        answers.append([WORDS.index(SOUNDS[animal])])
    return torch.tensor(sentences), torch.tensor(answers)


train_x, train_y = make_rows(2_000, seed=1)
test_x, test_y = make_rows(500, seed=2)  # none of these sentences is trained on
assert not {tuple(row) for row in test_x.tolist()} & {tuple(row) for row in train_x.tolist()}


@torch.no_grad()
def answer(model: torch.nn.Module, sentences: Tensor) -> Tensor:
    """The scores of all words as the first word of the answer (rows x words)."""
    model.eval()
    start = torch.zeros(len(sentences), 1, dtype=torch.long)  # the decoder starts from <pad>
    logits: Tensor = model(input_ids=sentences, decoder_input_ids=start).logits
    return logits[:, 0]


def accuracy(model: torch.nn.Module) -> float:
    """How many of the 500 test sentences get the right word, out of all words."""
    return float((answer(model, test_x).argmax(dim=-1) == test_y[:, 0]).float().mean())


# 2. The model. It goes to a folder and comes back from it, as a pretrained model would.

work = tempfile.TemporaryDirectory()
base_folder, adapter_folder = Path(work.name, "base"), Path(work.name, "adapter")

torch.manual_seed(0)
config = T5Config(
    vocab_size=len(WORDS),
    d_model=128,
    d_kv=32,
    d_ff=512,
    num_layers=3,
    num_heads=4,
    dropout_rate=0.0,
    pad_token_id=0,
    eos_token_id=1,
    decoder_start_token_id=0,
)
T5ForConditionalGeneration(config).save_pretrained(base_folder)
base = T5ForConditionalGeneration.from_pretrained(base_folder)
total = sum(p.numel() for p in base.parameters())

# 3. The method. The base model is frozen; adapters after each feed-forward block and copies of the
# layer norms are all that is trained.

model = compacter.attach(base, "compacter++", n=4, bottleneck=24)

trained = [p for p in model.parameters() if p.requires_grad]
number = sum(p.numel() for p in trained)
print(f"Compacter++ on a T5 of {total:,} random, frozen parameters")
print(f"trains {number:,} new ones, {number / total:.2%} of the model.")
print(f"Accuracy before training: {accuracy(model):.1%} (a guess among the sounds: 12.5%)")

# 4. Training, as for any PyTorch model. The paper trains with a learning rate of 3e-3 on a
# pretrained body, which understands its input already. Here the body is random, the adapters have
# to make sense of it, and so they take larger steps.

optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.0)
began = time.perf_counter()
for step in range(1, 161):
    rows = torch.randint(len(train_x), (32,))
    model.train()
    loss = model(input_ids=train_x[rows], labels=train_y[rows]).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 40 == 0:
        print(f"  step {step:3}  loss {loss.item():.3f}  accuracy {accuracy(model):.1%}")
print(f"Accuracy after {time.perf_counter() - began:.0f} seconds: {accuracy(model):.1%}")

for sentence, scores in zip(test_x[:3], answer(model, test_x[:3]), strict=True):
    print(f"  '{' '.join(WORDS[token] for token in sentence)}' -> {WORDS[scores.argmax()]}")

# 5. Saving writes what was trained and nothing else.

model.save_pretrained(adapter_folder)
adapter_size = (adapter_folder / "adapter_model.safetensors").stat().st_size
base_size = (base_folder / "model.safetensors").stat().st_size
print(f"Saved {adapter_size / 1024:.0f} KiB beside a base model of {base_size / 1024:,.0f} KiB.")

# 6. Loading it into a fresh copy of the base model gives the same model, to the last bit.

fresh = T5ForConditionalGeneration.from_pretrained(base_folder)
loaded = PeftModel.from_pretrained(fresh, adapter_folder)
assert torch.equal(answer(loaded, test_x), answer(model, test_x))
print("Loaded into a fresh copy of the base model: all logits are equal bit for bit.")

work.cleanup()

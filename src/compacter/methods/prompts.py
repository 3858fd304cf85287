"""How the paper starts its prompts."""

from __future__ import annotations

from typing import Literal

import torch
from peft import PeftModel

FIRST_TOKENS = 5_000  # tokens to draw from: the most frequent ones come first in a vocabulary
RANDOM_RANGE = 0.5


@torch.no_grad()
def start_prompt(
    model: PeftModel, init: Literal["random", "tokens"], adapter_name: str = "default"
) -> None:
    """Prompt Tuning-R: uniform in [-0.5, 0.5]. Prompt Tuning-T: the embeddings of tokens drawn
    from the first 5,000 of the vocabulary. (PEFT's own choices are N(0, 1), and tokens from the
    whole vocabulary.)"""
    prompt = model.prompt_encoder[adapter_name].embedding.weight
    if init == "random":
        prompt.uniform_(-RANDOM_RANGE, RANDOM_RANGE)
        return
    embeddings = model.get_base_model().get_input_embeddings()
    first = min(FIRST_TOKENS, embeddings.weight.shape[0])
    tokens = torch.randint(first, (len(prompt),), device=embeddings.weight.device)
    prompt.copy_(embeddings(tokens))

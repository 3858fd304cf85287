"""What is measured: a model with random weights, a batch of random tokens, a training step and
greedy decoding. Neither time nor memory depends on what the numbers are."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from peft import TaskType
from torch import Tensor, nn

from compacter.errors import BenchError
from compacter.methods.attach import attach, task_type
from compacter.models import bare_model

Inputs = dict[str, Tensor]

TEXT_TASKS = (TaskType.SEQ_2_SEQ_LM, TaskType.CAUSAL_LM, TaskType.SEQ_CLS)


def check_measurable(model: nn.Module, name: str) -> None:
    """A model that reads tokens and has a loss."""
    if task_type(model) not in TEXT_TASKS or not hasattr(model.config, "vocab_size"):
        raise BenchError(
            f"the model {name!r} is a {type(model).__name__}, which has no loss over text to train "
            "on; expected an encoder-decoder such as t5-small, a decoder with a language-model "
            "head, or a classifier of text: name its class with --head, such as "
            "AutoModelForSequenceClassification"
        )


def check_positions(
    model: nn.Module, length: int, target_length: int, new_tokens: int, prompt: int = 0
) -> None:
    """Where positions are learned there are only so many, in the encoder and in the decoder; the
    last token that is written is not read."""
    most = getattr(model.config, "max_position_embeddings", None)
    if most is None:
        return
    most -= _positions_of_padding(model)
    task = task_type(model)
    text = f"{length} tokens" + (f" and a prompt of {prompt}" if prompt else "")
    taken = {text: length + prompt}
    if task is TaskType.CAUSAL_LM:
        taken[f"{text}, with {new_tokens} new ones,"] = length + prompt + new_tokens - 1
    elif task is TaskType.SEQ_2_SEQ_LM:
        taken |= {f"targets of {target_length} tokens": target_length}
        taken |= {f"{new_tokens} new tokens": new_tokens}
    for what, positions in taken.items():
        if positions > most:
            raise BenchError(f"{what} do not fit the model, which has {most} positions")


def _positions_of_padding(model: nn.Module) -> int:
    """How many positions no token can have: RoBERTa counts from the one after padding's."""
    tables = [
        module
        for path, module in model.named_modules()
        if isinstance(module, nn.Embedding) and path.endswith("position_embeddings")
    ]
    return max((t.padding_idx + 1 for t in tables if t.padding_idx is not None), default=0)


def make_inputs(model: nn.Module, batch: int, length: int, target_length: int) -> Inputs:
    """A full batch, without padding: the same one for every method."""
    bare = bare_model(model)
    config: Any = bare.config
    generator = torch.Generator().manual_seed(0)

    def tokens(width: int) -> Tensor:
        lowest = min(100, config.vocab_size // 2)  # above the special tokens
        return torch.randint(lowest, config.vocab_size, (batch, width), generator=generator)

    source = tokens(length)
    inputs = {"input_ids": source, "attention_mask": torch.ones_like(source)}
    task = task_type(bare)
    if task is TaskType.SEQ_CLS:
        _end_rows(source, config)
        labels = torch.randint(config.num_labels, (batch,), generator=generator)
    elif task is TaskType.CAUSAL_LM:
        labels = source.clone()
    else:
        labels = tokens(target_length)
    device = next(model.parameters()).device
    return {name: tensor.to(device) for name, tensor in (inputs | {"labels": labels}).items()}


def _end_rows(source: Tensor, config: Any) -> None:
    """T5 and BART classify what they make of the token that ends a text."""
    end = getattr(config, "eos_token_id", None)
    if isinstance(end, int) and 0 <= end < config.vocab_size:
        source[:, -1] = end


def adapted_copy(bare: nn.Module, method: str, settings: dict[str, Any]) -> nn.Module:
    """The bare model with a method. Frozen weights are shared by all copies; full fine-tuning
    changes them and gets its own."""
    shared = {} if method == "full" else {id(p): p for p in bare.parameters()}
    own = copy.deepcopy(bare, shared)
    config: Any = own.config
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0  # decoders classify by the last token that is not this one
    model = attach(own, method, **settings)
    return model.to(next(bare.parameters()).device).train()


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(trained, lr=1e-4, fused=True)


def training_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Inputs
) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(**inputs).loss.backward()
        optimizer.step()

    return step


def decoding(model: nn.Module, inputs: Inputs, new_tokens: int) -> Callable[[], Tensor] | None:
    """Greedy decoding of the first row, or None for a model that does not write."""
    if task_type(bare_model(model)) is TaskType.SEQ_CLS:
        return None
    given = {name: inputs[name][:1] for name in ("input_ids", "attention_mask")}

    @torch.no_grad()
    def decode() -> Tensor:
        found: Tensor = model.generate(  # type: ignore[operator]
            **given,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            num_beams=1,
        )
        return found

    return decode

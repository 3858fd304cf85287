"""The task's head: what an encoder needs beside the method, trained with it and counted apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from peft import PeftModel
from torch import nn

from compacter.methods.attach import task_heads


def find_heads(model: nn.Module, new: Iterable[str] = ()) -> tuple[str, ...]:
    """Paths of the modules to train beside the method: those that are heads by their name, and
    those that are new because the checkpoint lacks them."""
    return tuple(dict.fromkeys([*(task_heads(model) or ()), *new]))


def head_parameters(model: nn.Module, heads: Iterable[str]) -> Iterator[nn.Parameter]:
    """Those of the active adapter's heads, or of the heads of a model without adapters."""
    if isinstance(model, PeftModel):
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and ".modules_to_save." in name:
                yield parameter
        return
    for name in heads:
        yield from model.get_submodule(name).parameters()


def count_trained(model: nn.Module, heads: Iterable[str]) -> tuple[int, int]:
    """Trained parameters of the method itself, and of the task's heads beside it."""
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    head = sum(p.numel() for p in head_parameters(model, heads))
    return trained - head, head

"""The task's head: what an encoder needs beside the method, trained with it and counted apart."""

from __future__ import annotations

from collections.abc import Iterator

from peft import PeftModel
from torch import nn

from compacter.methods.attach import task_heads


def head_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """Those of the active adapter's head, or of the head of a model without adapters."""
    if isinstance(model, PeftModel):
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and ".modules_to_save." in name:
                yield parameter
        return
    for name in task_heads(model) or ():
        yield from model.get_submodule(name).parameters()


def count_trained(model: nn.Module) -> tuple[int, int]:
    """Trained parameters of the method itself, and of the task's head beside it."""
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    head = sum(p.numel() for p in head_parameters(model))
    return trained - head, head

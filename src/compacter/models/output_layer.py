"""The output layer of a language model, and the embeddings that are tied to it."""

from __future__ import annotations

from typing import Any

from torch import nn

from compacter.errors import ArchitectureError
from compacter.models.modules import base_modules, unwrapped
from compacter.models.quantised import LEAVE_OUT, quantised_as


def output_layer(model: nn.Module) -> dict[str, nn.Module]:
    """Path -> module of the output layer, first, and of all modules tied to its weight.

    Tuning the output layer of a tied model moves its embeddings too (Appendix C), so whoever
    gives the one new weights must give them to the others."""
    modules = base_modules(model)
    find = getattr(model, "get_output_embeddings", None)
    head: Any = find() if callable(find) else None
    head = unwrapped(head) if isinstance(head, nn.Module) else None
    if head is None or getattr(head, "weight", None) is None:
        raise ArchitectureError(
            f"tune_output_layer=True, but {type(model).__name__} has no output layer over a "
            "vocabulary; leave it False (a classification head is trained by modules_to_save)"
        )
    tied = {path: m for path, m in modules.items() if m._parameters.get("weight") is head.weight}
    return dict(sorted(tied.items(), key=lambda item: item[1] is not head))


def trainable_output_layer(model: nn.Module) -> dict[str, nn.Module]:
    """The same, if a copy of the weight can be trained."""
    found = output_layer(model)
    path, head = next(iter(found.items()))
    packed = quantised_as(head)
    if packed is not None:
        raise ArchitectureError(
            f"tune_output_layer=True, but the output layer {path} keeps its weights as {packed}; "
            f"{LEAVE_OUT}, or leave it False"
        )
    return found

"""A trap between transformers' Trainer and models that compute their loss themselves."""

from __future__ import annotations

import inspect

from torch import nn


def count_loss_once(model: nn.Module) -> None:
    """Keep Trainer from scaling loss and gradients with the steps of gradient accumulation.

    Trainer takes a model whose `forward` accepts any keyword for one that divides its loss by the
    number of items in all accumulated batches, and then does not divide it itself. T5, BART, BERT
    and others accept any keyword and take the mean over their own batch, so their loss, and with
    it the gradients, grows with the accumulation. `accepts_loss_kwargs` is Trainer's own switch."""
    forward = getattr(type(model), "forward", None)
    if forward is None or hasattr(model, "accepts_loss_kwargs"):
        return
    takes_any = any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD
        for parameter in inspect.signature(forward).parameters.values()
    )
    if takes_any and not _divides_by_items(forward):
        model.accepts_loss_kwargs = False  # type: ignore[assignment]


def _divides_by_items(forward: object) -> bool:
    """Whether a forward hands its keywords on to the loss function of transformers."""
    try:
        source = inspect.getsource(inspect.unwrap(forward))  # type: ignore[arg-type]
    except (OSError, TypeError):
        return True
    return "loss_function(" in source or "num_items_in_batch" in source

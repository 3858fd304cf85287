"""Texts that are so short that calls take longer than arithmetic."""

from __future__ import annotations

from torch import Tensor

FEW = 2**14
"""Numbers of a text below which a pass over them takes less time than a function written in Python
takes besides."""


def is_short(x: Tensor) -> bool:
    """Of a text in R^{length x width}, several of them being a batch. It is not for the batch to
    decide: what is kept for the backward pass depends on it, and has to grow evenly with the batch,
    as the largest batch for a memory budget is reckoned from it."""
    return x.dim() > 2 and x.shape[1:].numel() < FEW

"""The bottleneck adapter y + act(y W + b) V + c (section 2.2)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear

Activation = Callable[[Tensor], Tensor]


def bottleneck(
    y: Tensor, W: Tensor, b: Tensor | None, activation: Activation, V: Tensor, c: Tensor | None
) -> Tensor:
    """y + act(y W + b) V + c for y in R^{... x k}, W in R^{k x d} and V in R^{d x k}.

    The second product is added where y + c is written, which saves a pass over the activations.
    Autocast would round y there, as it rounds what is multiplied."""
    if torch.is_autocast_enabled(y.device.type):
        return y + linear(activation(linear(y, W.t(), b)), V.t(), c)
    flat = y.reshape(-1, y.shape[-1])
    h = flat @ W if b is None else torch.addmm(b, flat, W)
    return torch.addmm(flat if c is None else flat + c, activation(h), V).view(y.shape)

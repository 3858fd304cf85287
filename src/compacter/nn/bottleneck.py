"""The bottleneck adapter A(y) = y + U(act(D(y))) (section 2.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from compacter.errors import SettingError
from compacter.nn.projections import Projection
from compacter.nn.watched import is_watched

Activation = Callable[[Tensor], Tensor]

_linear = nn.functional.linear

MANY = 2**17
"""Numbers in y from which on a pass over them takes longer than a function written in Python."""


def bottleneck(
    y: Tensor,
    down: Projection,
    activation: Activation,
    up: Projection,
    A: Tensor | None = None,
) -> Tensor:
    """A(y) = y + U(act(D(y))); `A` are the slow weights where the projections share them."""
    change: Tensor = up(activation(down(y, A)), A)
    return y + change


def bottleneck_of(
    y: Tensor, W: Tensor, b: Tensor | None, activation: Activation, V: Tensor, c: Tensor | None
) -> Tensor:
    """The same with W and b of down, V and c of up given. In training, the last product is added
    where y + c is written, which saves a pass over the activations; but autocast would round y as
    it rounds what is multiplied."""
    if not torch.is_grad_enabled() or torch.is_autocast_enabled(y.device.type):
        return bottleneck_by_linear(y, W.t(), b, activation, V.t(), c)
    rows, watched = y.reshape(-1, y.shape[-1]), is_watched()
    if watched or rows.numel() < MANY:
        h = _project(rows, W, b)
    else:
        rows, h = _Down.apply(rows, W, b)  # type: ignore[no-untyped-call]
    z = activation(h)
    if watched or c is None:
        output = torch.addmm(rows if c is None else rows + c, z, V)
    else:
        output = (rows + c).addmm_(z, V)
    return output.view(y.shape)


def bottleneck_by_linear(
    y: Tensor, W: Tensor, b: Tensor | None, activation: Activation, V: Tensor, c: Tensor | None
) -> Tensor:
    """The same with matrices transposed beforehand: the shortest way where nothing is trained."""
    return y + _linear(activation(_linear(y, W, b)), V, c)


def _project(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    """x W + b. In training not by torch's linear, which transposes, and autograd does so again."""
    return torch.mm(x, W) if b is None else torch.addmm(b, x, W)


class _Down(torch.autograd.Function):
    """y -> y, y W + b. Both are made of y, so autograd would add up two gradients of y, which here
    is done where the second is written."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, W: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(y, W)
        return y.view_as(y), _project(y, W, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_h: Tensor) -> tuple[Tensor | None, ...]:
        y, W = ctx.saved_tensors
        needs_y, needs_W, needs_b = ctx.needs_input_grad
        return (
            torch.addmm(grad, grad_h, W.t()) if needs_y else None,
            torch.mm(grad_h.t(), y).t() if needs_W else None,  # as y^T grad_h it takes longer
            grad_h.sum(0) if needs_b else None,
        )


class Bottleneck(nn.Module):
    """The same as a module, for use outside of a transformer."""

    def __init__(
        self, down: Projection, up: Projection, activation: nn.Module | None = None
    ) -> None:
        super().__init__()
        if (down.in_features, down.out_features) != (up.out_features, up.in_features):
            raise SettingError(
                f"down projects {down.in_features} -> {down.out_features} and up "
                f"{up.in_features} -> {up.out_features}; up must lead back"
            )
        self.down = down
        self.activation = nn.GELU("tanh") if activation is None else activation
        self.up = up

    def forward(self, y: Tensor, A: Tensor | None = None) -> Tensor:
        return bottleneck(y, self.down, self.activation, self.up, A)

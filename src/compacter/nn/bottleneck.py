"""The bottleneck adapter A(y) = y + U(act(D(y))) (section 2.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from compacter.errors import SettingError
from compacter.nn.projections import Projection
from compacter.nn.short import is_short
from compacter.nn.watched import is_watched, unwatched_apply

Activation = Callable[[Tensor], Tensor]

_linear = nn.functional.linear
_gelu_backward = torch.ops.aten.gelu_backward.default


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
    formula = _bottleneck_by_autograd if is_watched() else trained_bottleneck
    return formula(y, W, b, activation, V, c)


def _bottleneck_by_autograd(
    y: Tensor, W: Tensor, b: Tensor | None, activation: Activation, V: Tensor, c: Tensor | None
) -> Tensor:
    rows = y.reshape(-1, y.shape[-1])
    z = activation(_project(rows, W, b))
    return torch.addmm(rows if c is None else rows + c, z, V).view(y.shape)


def trained_bottleneck(
    y: Tensor, W: Tensor, b: Tensor | None, activation: Activation, V: Tensor, c: Tensor | None
) -> Tensor:
    """The same where it is known that gradients are wanted, and that nobody watches."""
    output: Tensor
    if is_short(y):
        rows = y.reshape(-1, y.shape[-1])
        output = _change_added(rows, activation(_project(rows, W, b)), V, c)
    else:
        output = _apply_bottleneck(y, W, b, activation, V, c)
    return output.view(y.shape)


def bottleneck_by_linear(
    y: Tensor, W: Tensor, b: Tensor | None, activation: Activation, V: Tensor, c: Tensor | None
) -> Tensor:
    """The same with matrices transposed beforehand: the shortest way where nothing is trained."""
    return y + _linear(activation(_linear(y, W, b)), V, c)


def _project(x: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    """x W + b. In training not by torch's linear, which transposes, and autograd does so again."""
    return torch.mm(x, W) if b is None else torch.addmm(b, x, W)


def _change_added(y: Tensor, z: Tensor, V: Tensor, c: Tensor | None) -> Tensor:
    """y + (z V + c)."""
    return torch.addmm(y, z, V) if c is None else (y + c).addmm_(z, V)


class _Bottleneck(torch.autograd.Function):
    """All of it, where texts are not short. Autograd would keep what the activation makes too, and
    add up the two gradients of y; here that is done where the second is written. What comes out has
    two dimensions, since a view made in here could not be changed in place, as models do."""

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        W: Tensor,
        b: Tensor | None,
        activation: Activation,
        V: Tensor,
        c: Tensor | None,
    ) -> Tensor:
        rows = y.reshape(-1, y.shape[-1])
        h = _project(rows, W, b)
        ctx.save_for_backward(y, h, W, b, V, c)
        ctx.activation = activation
        return _change_added(rows, activation(h), V, c)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, h, W, b, V, c = ctx.saved_tensors
        activation, needs = ctx.activation, ctx.needs_input_grad
        if torch.is_grad_enabled():  # gradients of gradients are wanted
            output = _bottleneck_by_autograd(y, W, b, activation, V, c)
            given = [y, W, b, None, V, c]
            needed = [tensor for tensor, is_so in zip(given, needs, strict=True) if is_so]
            arrived = grad.view(y.shape)
            found = iter(torch.autograd.grad(output, needed, arrived, create_graph=True))
            return tuple(next(found) if is_so else None for is_so in needs)
        of_h = _backward_of(activation, h, grad @ V.t())
        return (
            torch.addmm(grad, of_h, W.t()).view(y.shape) if needs[0] else None,
            _over_rows(of_h, y.reshape(grad.shape)).t() if needs[1] else None,
            of_h.sum(0) if needs[2] else None,
            None,
            _over_rows(activation(h), grad) if needs[4] else None,
            grad.sum(0) if needs[5] else None,
        )


_apply_bottleneck = unwatched_apply(_Bottleneck)


def _backward_of(activation: Activation, h: Tensor, grad: Tensor) -> Tensor:
    if type(activation) is nn.GELU:
        gradient: Tensor = _gelu_backward(grad, h, approximate=activation.approximate)
        return gradient
    with torch.enable_grad():
        h = h.detach().requires_grad_()
        return torch.autograd.grad(activation(h), h, grad)[0]


def _over_rows(a: Tensor, b: Tensor) -> Tensor:
    """a^T b with few columns in a, where two halves take less time than the whole."""
    if len(a) % 2:
        return a.t() @ b
    halves = a.view(2, -1, a.shape[-1]).mT @ b.reshape(2, -1, b.shape[-1])
    return halves[0] + halves[1]


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

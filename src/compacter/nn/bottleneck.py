"""The bottleneck adapter A(y) = y + U(act(D(y))) (section 2.2)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from compacter.errors import SettingError
from compacter.nn.projections import Projection

Activation = Callable[[Tensor], Tensor]

_linear = nn.functional.linear


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
    """The same with W and b of down, V and c of up given; the matrices transposed. In training, y
    is added where the last product is written, which saves a pass over the activations in both
    directions; but autocast would round y as it rounds what is multiplied, and a dispatch mode
    (selective checkpointing) may have kept the product that c is added to."""
    z = activation(_linear(y, W, b))
    if not torch.is_grad_enabled() or torch.is_autocast_enabled(y.device.type):
        return y + _linear(z, V, c)
    output = torch.addmm(y.reshape(-1, y.shape[-1]), z.reshape(-1, z.shape[-1]), V.t())
    if c is not None:
        is_watched = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack()
        output = output + c if is_watched else output.add_(c)
    return output.view(y.shape)


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

"""RMS norm, w x / sqrt(mean(x^2) + eps): the layer norm of T5 and of most decoders.

Models write it as half a dozen operations, and autograd takes twice as many to go back, each over
all activations, and keeps two results of their size. torch has one operation for all of it on GPUs;
here is one for the CPU, which keeps the input and a number for each row. Texts of a few tokens, as
T5's targets are, are so little to go over that its Python takes longer: they go the models' way.
Decoding, where every operation costs about the same, gains from there being fewer of them."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from compacter.nn.short import is_short
from compacter.nn.watched import is_watched, unwatched_apply

_vector_norm = torch.linalg.vector_norm
_layer_norm_backward = torch.ops.aten.native_layer_norm_backward.default


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x and w are of one dtype; w is in R^d, or there is one for each row of a batch."""
    if weight.dim() > 1:
        return torch.rms_norm(x, x.shape[-1:], None, eps) * weight
    if not x.is_cpu or is_watched():
        return torch.rms_norm(x, weight.shape, weight, eps)
    if not torch.is_grad_enabled():
        return (x * _scale(x, eps)).mul_(weight)
    if is_short(x):
        return x * (x * x).mean(-1, keepdim=True).add_(eps).rsqrt_() * weight
    output: Tensor = _apply_rms_norm(x, weight, eps)
    return output


def _scale(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) of every row."""
    norms = _vector_norm(x, dim=-1, keepdim=True)
    return torch.addcmul(_constant(eps, x.dtype), norms, norms, value=1 / x.shape[-1]).rsqrt_()


@cache
def _constant(value: float, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=dtype, device="cpu")


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = _scale(x, eps)
        ctx.save_for_backward(x, weight, scale)
        ctx.eps = eps
        return (x * scale).mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """With r the scale of a row: dw = sum of r g x over the rows, and
        dx = r (w g - r^2 x <w g, x> / d). Torch's LayerNorm goes back by one operation; told that
        the mean of a row is 0, it finds the same but for the mean of w g, which it takes away."""
        x, weight, scale = ctx.saved_tensors
        needs_x, needs_weight, _ = ctx.needs_input_grad
        if torch.is_grad_enabled():  # gradients of gradients are wanted
            output = torch.rms_norm(x, weight.shape, weight, ctx.eps)
            needed = [t for t, is_so in ((x, needs_x), (weight, needs_weight)) if is_so]
            found = iter(torch.autograd.grad(output, needed, grad, create_graph=True))
            return next(found) if needs_x else None, next(found) if needs_weight else None, None
        x_grad, weight_grad, _ = _layer_norm_backward(
            grad,
            x,
            weight.shape,
            torch.zeros_like(scale),
            scale,
            weight,
            None,
            (needs_x, needs_weight, False),
        )
        if needs_x:
            sums = torch.mv(grad.reshape(-1, len(weight)), weight).view_as(scale)
            x_grad.add_(sums.mul_(scale), alpha=1 / len(weight))
        return x_grad, weight_grad, None


_apply_rms_norm = unwatched_apply(_RmsNorm)


def rms_epsilon(norm: nn.Module) -> float | None:
    """The eps of a module that computes an RMS norm of its input, in whatever words; None of any
    other. Found by trying: a copy is given numbers of which the right answer is known."""
    weight = norm._parameters.get("weight")
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    holds_more = len(norm._parameters) > 1 or norm._modules or norm._buffers
    if weight is None or weight.dim() != 1 or holds_more or not isinstance(eps, float):
        return None
    if len(weight) == 0:  # held elsewhere for now, as DeepSpeed's are
        return None
    numbers = torch.Generator().manual_seed(0)
    x, small, tried = torch.randn(3, len(weight), generator=numbers, device="cpu").float()
    x = torch.stack([x, small * eps**0.5])  # of the second, eps is as large as the mean
    copied = copy.copy(norm)
    copied._parameters = {"weight": nn.Parameter(tried, requires_grad=False)}
    try:
        found: Tensor = type(norm).forward(copied, x)
        expected = torch.rms_norm(x, weight.shape, tried, eps)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    except Exception:  # whatever a module that is not this norm does with such input
        return None
    return eps

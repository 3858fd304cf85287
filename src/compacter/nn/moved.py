"""Layers whose weight moves along the intrinsic vector: W + lambda P theta, never stored.

P theta has the size of W. Autograd would keep the sum until the backward pass; here it is made for
the forward pass, dropped, and made again for the backward pass, so that at no time it exists for
more than one tensor. All that is saved is what a frozen layer saves: its input.

With g = P^T dW, the gradients are d theta = lambda g and d lambda = <g, theta>, so they need no
P theta."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from compacter.nn.fastfood import Fastfood


def moved(weight: Tensor, theta: Tensor, scale: Tensor, fastfood: Fastfood) -> Tensor:
    """W + lambda P theta as an ordinary tensor, which autograd may keep."""
    return weight + fastfood(scale * theta).reshape(weight.shape).to(weight.dtype)


def moved_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    theta: Tensor,
    scale: Tensor,
    fastfood: Fastfood,
) -> Tensor:
    """x (W + lambda P theta)^T + bias. The bias is used as it is."""
    rows = x.reshape(-1, x.shape[-1])
    output: Tensor = _MovedLinear.apply(rows, weight, bias, theta, scale, fastfood)  # type: ignore[no-untyped-call]
    return output.view(*x.shape[:-1], weight.shape[0])


def moved_embedding(
    tokens: Tensor,
    weight: Tensor,
    theta: Tensor,
    scale: Tensor,
    fastfood: Fastfood,
    padding_idx: int | None = None,
) -> Tensor:
    """Rows of W + lambda P theta; only the blocks of P theta that hold these rows are made."""
    output: Tensor = _MovedEmbedding.apply(tokens, weight, theta, scale, fastfood, padding_idx)  # type: ignore[no-untyped-call]
    return output


class _MovedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        theta: Tensor,
        scale: Tensor,
        fastfood: Fastfood,
    ) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            made = fastfood.add(weight, scale * theta)
        output = linear(x, made, bias)
        ctx.fastfood = fastfood
        ctx.save_for_backward(x, weight, theta, scale)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, theta, scale = ctx.saved_tensors
        needs_x, _, needs_bias, needs_theta, needs_scale, _ = ctx.needs_input_grad
        weight_grad = grad.t() @ x.to(grad.dtype) if needs_theta or needs_scale else None
        direction, made, gathered = scale * theta, None, None
        if needs_x and weight_grad is not None:
            made, gathered = ctx.fastfood.add_and_transpose(weight, direction, weight_grad)
        elif needs_x:
            made = ctx.fastfood.add(weight, direction)
        elif weight_grad is not None:
            gathered = ctx.fastfood.transpose(weight_grad.reshape(-1).to(theta.dtype))
        x_grad = None if made is None else (grad @ made.to(grad.dtype)).to(x.dtype)
        bias_grad = grad.sum(0) if needs_bias else None
        return x_grad, None, bias_grad, *_theta_grads(gathered, theta, scale), None


class _MovedEmbedding(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        weight: Tensor,
        theta: Tensor,
        scale: Tensor,
        fastfood: Fastfood,
        padding_idx: int | None,
    ) -> Tensor:
        rows, inverse = torch.unique(tokens, return_inverse=True)
        places, blocks = _places(rows, weight.shape[1], fastfood)
        with torch.autocast(weight.device.type, enabled=False):
            made = fastfood.project(scale * theta, blocks)[places].to(weight.dtype)
        ctx.fastfood, ctx.padding_idx, ctx.width = fastfood, padding_idx, weight.shape[1]
        ctx.save_for_backward(tokens, theta, scale)
        return (weight[rows] + made)[inverse]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tokens, theta, scale = ctx.saved_tensors
        rows, inverse = torch.unique(tokens, return_inverse=True)
        places, blocks = _places(rows, ctx.width, ctx.fastfood)
        row_grads = theta.new_zeros(len(rows), ctx.width)
        row_grads.index_add_(0, inverse.view(-1), grad.reshape(-1, ctx.width).to(theta.dtype))
        if ctx.padding_idx is not None:
            row_grads[rows == ctx.padding_idx] = 0
        spread = theta.new_zeros(len(blocks) * ctx.fastfood.block)
        spread[places] = row_grads
        gathered = ctx.fastfood.transpose(spread, blocks)
        return None, None, *_theta_grads(gathered, theta, scale), None, None


def _places(rows: Tensor, width: int, fastfood: Fastfood) -> tuple[Tensor, Any]:
    """Where the numbers of these rows are in the blocks that hold them, and those blocks."""
    starts = rows[:, None] * width
    corners = [*range(0, width, fastfood.block), width - 1]  # at least one in each block of a row
    blocks = fastfood.blocks_of(starts + torch.tensor(corners, device=rows.device))
    positions = starts + torch.arange(width, device=rows.device)
    known = torch.from_numpy(blocks).to(rows.device)
    rank = torch.searchsorted(known, positions // fastfood.block)
    return rank * fastfood.block + positions % fastfood.block, blocks


def _theta_grads(
    gathered: Tensor | None, theta: Tensor, scale: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Of theta and lambda, from P^T dW."""
    if gathered is None:
        return None, None
    gathered = gathered.to(theta.dtype)
    return scale * gathered, gathered @ theta

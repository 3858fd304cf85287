"""Layers whose weight moves along the intrinsic vector: W + lambda P theta, never stored.

P theta has the size of W. Autograd would keep the sum until the backward pass; here it is made for
the forward pass, dropped, and made again for the backward pass, so that at no time it exists for
more than one tensor, and of large ones only in part. All that is saved is the layer's input, and
theta as all blocks of P need it, a vector.

With g = P^T dW, the gradients are d theta = lambda g and d lambda = <g, theta>, so they need no
P theta."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from compacter.nn.fastfood import Fastfood, Walk


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
        mixed = fastfood.mix(scale * theta)
        output = _linear(x, weight, bias, mixed, fastfood)
        ctx.fastfood = fastfood
        ctx.save_for_backward(x, weight, theta, scale, mixed)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, theta, scale, mixed = ctx.saved_tensors
        needs_x, _, needs_bias, needs_theta, needs_scale, _ = ctx.needs_input_grad
        needs_weight = needs_theta or needs_scale
        x_grad, gathered = _linear_grads(
            grad, x.to(grad.dtype), weight, mixed, ctx.fastfood, needs_x, needs_weight
        )
        bias_grad = grad.sum(0) if needs_bias else None
        return x_grad, None, bias_grad, *_theta_grads(gathered, theta, scale), None


def _has_few_rows(x: Tensor, weight: Tensor, fastfood: Fastfood) -> bool:
    """Few rows and a large weight, as in an output layer: then it is better made in parts that
    stay in cache, each used at once, than in one piece for one large product."""
    return len(x) * 8 < len(weight) and Walk.is_possible(fastfood, weight)


def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, mixed: Tensor, fastfood: Fastfood
) -> Tensor:
    """x (W + lambda P theta)^T + bias, under the autocast that is in force."""
    if not _has_few_rows(x, weight, fastfood):
        return linear(x, fastfood.add(weight, mixed), bias)
    parts = [
        linear(x, made, None if bias is None else bias[rows])
        for rows, made in Walk(fastfood, weight, mixed)
    ]
    return torch.cat(parts, 1)


def _linear_grads(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    mixed: Tensor,
    fastfood: Fastfood,
    needs_x: bool,
    needs_weight: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """d x, and P^T dW with dW = grad^T x."""
    if needs_x and needs_weight and _has_few_rows(x, weight, fastfood):
        walk, x_grad = Walk(fastfood, weight, mixed), torch.zeros_like(x)
        for rows, made in walk:
            x_grad.addmm_(grad[:, rows], made.to(grad.dtype))
            walk.collect(grad[:, rows].t() @ x)
        return x_grad, walk.transposed()
    weight_grad = grad.t() @ x if needs_weight else None
    whole: Tensor | None = None
    gathered: Tensor | None = None
    if needs_x and weight_grad is not None:
        whole, gathered = fastfood.add_and_transpose(weight, mixed, weight_grad)
    elif needs_x:
        whole = fastfood.add(weight, mixed)
    elif weight_grad is not None:
        gathered = fastfood.transpose(weight_grad.reshape(-1).to(mixed.dtype))
    return None if whole is None else grad @ whole.to(grad.dtype), gathered


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
        made = fastfood.project_rows(scale * theta, rows, weight.shape[1])
        ctx.fastfood, ctx.padding_idx, ctx.width = fastfood, padding_idx, weight.shape[1]
        ctx.save_for_backward(tokens, theta, scale)
        found = weight[rows]
        return (found + made.to(found.dtype))[inverse]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tokens, theta, scale = ctx.saved_tensors
        rows, inverse = torch.unique(tokens, return_inverse=True)
        row_grads = theta.new_zeros(len(rows), ctx.width)
        row_grads.index_add_(0, inverse.view(-1), grad.reshape(-1, ctx.width).to(theta.dtype))
        if ctx.padding_idx is not None:
            row_grads[rows == ctx.padding_idx] = 0
        gathered = ctx.fastfood.transpose_rows(row_grads, rows)
        return None, None, *_theta_grads(gathered, theta, scale), None, None


def _theta_grads(
    gathered: Tensor | None, theta: Tensor, scale: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """Of theta and lambda, from P^T dW."""
    if gathered is None:
        return None, None
    gathered = gathered.to(theta.dtype)
    return scale * gathered, gathered @ theta

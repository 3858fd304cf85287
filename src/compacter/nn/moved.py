"""Layers whose weight moves along the intrinsic vector: W + P (lambda theta), never stored.

P (lambda theta) has the size of W. Autograd would keep the sum until the backward pass. Here it is
computed for the forward pass, dropped, and computed again for the backward pass, so it exists for
one tensor at a time. A linear layer saves only its input and lambda theta."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding, linear

from compacter.nn.fastfood import Fastfood, FastfoodRows

_PART = 1 << 22  # numbers of a weight that is computed in parts: 16 MB in float32


def moved(weight: Tensor, scaled_theta: Tensor, fastfood: Fastfood) -> Tensor:
    """W + P (lambda theta) as an ordinary tensor, which autograd may keep."""
    return weight + fastfood(scaled_theta).view(weight.shape).to(weight.dtype)


def moved_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, scaled_theta: Tensor, fastfood: Fastfood
) -> Tensor:
    """x (W + P (lambda theta))^T + bias. The bias is used as it is."""
    inputs, outputs = x.reshape(-1, x.shape[-1]), list[Tensor]()
    for rows, blocks in _parts(weight, len(inputs), fastfood):
        layer = weight[rows], None if bias is None else bias[rows]
        output = _MovedLinear.apply(inputs, *layer, scaled_theta, fastfood, blocks)  # type: ignore[no-untyped-call]
        outputs.append(output)
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)
    return joined.view(*x.shape[:-1], len(weight))


def moved_embedding(
    tokens: Tensor,
    weight: Tensor,
    scaled_theta: Tensor,
    fastfood: Fastfood,
    padding_idx: int | None = None,
) -> Tensor:
    """Rows of W + P (lambda theta). Only the blocks that hold these rows are computed."""
    rows, indices = torch.unique(tokens, return_inverse=True)
    moves = FastfoodRows(fastfood, rows, weight.shape[1])(scaled_theta)
    known = rows.tolist()
    padding = known.index(padding_idx) if padding_idx in known else None
    return embedding(tokens, weight) + embedding(indices, moves, padding).to(weight.dtype)


def _parts(weight: Tensor, inputs: int, fastfood: Fastfood) -> Iterator[tuple[slice, range]]:
    """The parts of a weight that are computed and used one at a time: their rows and their blocks.

    Joining the outputs of parts takes memory. So there is one part unless the weight is larger than
    the output, as in an output layer that predicts a few tokens."""
    (count, width), block = weight.shape, fastfood.block
    unit = block // math.gcd(width, block)  # this many rows fill whole blocks
    step = count if inputs >= width else unit * math.ceil(_PART / (unit * width))
    for first in range(0, count, step):
        stop = min(first + step, count)
        yield slice(first, stop), range(first * width // block, math.ceil(stop * width / block))


class _MovedLinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        scaled_theta: Tensor,
        fastfood: Fastfood,
        blocks: range,
    ) -> Tensor:
        ctx.projection = fastfood, blocks
        ctx.save_for_backward(x, weight, scaled_theta)
        return linear(x, _moved_weight(weight, scaled_theta, fastfood, blocks), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scaled_theta = ctx.saved_tensors
        needs_x, _, needs_bias, needs_theta, _, _ = ctx.needs_input_grad
        x_grad = theta_grad = None
        if needs_x:
            x_grad = grad @ _moved_weight(weight, scaled_theta, *ctx.projection).to(grad.dtype)
        if needs_theta:
            weight_grad = grad.t() @ x.to(grad.dtype)
            fastfood, blocks = ctx.projection
            theta_grad = fastfood.transpose(weight_grad.view(-1), blocks)
        return x_grad, None, grad.sum(0) if needs_bias else None, theta_grad, None, None


def _moved_weight(weight: Tensor, theta: Tensor, fastfood: Fastfood, blocks: range) -> Tensor:
    return fastfood.project(theta, weight.dtype, blocks).view(weight.shape).add_(weight)

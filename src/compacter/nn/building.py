"""The matrices of many projections, built together.

Built one by one, each W costs a handful of tiny operations, and autograd keeps what they make in
between. Here all projections of equal shapes are built by one batched formula, and nothing is kept
for the backward pass but the parameters, from which gradients are computed anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from compacter.nn.projections import Projection


class Backward:
    """How often a backward pass has reached what was built."""

    reached = 0


def build(
    projections: Sequence[Projection], A: Tensor | None = None, backward: Backward | None = None
) -> list[Tensor]:
    """W of every projection, each a view of what was built for all of its shape; `A` are the slow
    weights of those that share them, `backward` is told when gradients arrive."""
    alike: dict[Any, list[int]] = {}
    for index, projection in enumerate(projections):
        held = projection._parameters
        factor = held[projection.FACTORS[0]]
        assert factor is not None
        widths = (projection.in_features, projection.out_features, factor.shape)
        key = (type(projection), "A" in held, widths, factor.dtype, factor.device)
        if key in alike:
            alike[key].append(index)
        else:
            alike[key] = [index]
    built: list[Any] = [None] * len(projections)
    for (kind, own, _, _, device), indices in alike.items():
        columns = [*kind.FACTORS, "A"] if own else kind.FACTORS
        tensors: list[Any] = [projections[i]._parameters[n] for n in columns for i in indices]
        if A is not None and not own:
            tensors.append(A.to(device))
        if torch.compiler.is_compiling():  # a compiler decides itself what to keep
            together = kind.matrices(*_stacks(kind, tensors, len(indices))).unbind()
        else:
            together = _Build.apply(kind, len(indices), backward or Backward(), *tensors)  # type: ignore[no-untyped-call]
        for index, W in zip(indices, together, strict=True):
            built[index] = W
    return built


class _Build(torch.autograd.Function):
    """The parameters are held as they are, not as saved tensors: they outlive the graph anyway, and
    so what is built can take part in several graphs and be made inside of a checkpointed block."""

    @staticmethod
    def forward(
        ctx: Any, kind: type[Projection], count: int, watch: Backward, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.kind, ctx.count, ctx.watch, ctx.tensors = kind, count, watch, tensors
        ctx.versions = [tensor._version for tensor in tensors]
        ctx.set_materialize_grads(False)
        with torch.autocast(tensors[0].device.type, enabled=False):
            return kind.matrices(*_stacks(kind, tensors, count)).unbind()

    @staticmethod
    def backward(ctx: Any, *arrived: Tensor | None) -> Any:
        """A projection that took no part gets no gradient, as if it were built alone: by one of
        zeros, weight decay and momentum would move it."""
        ctx.watch.reached += 1
        if [tensor._version for tensor in ctx.tensors] != ctx.versions:
            raise RuntimeError(
                "parameters of an adapter were changed between a forward pass and its backward "
                "pass, whose gradients would be wrong; change them before or after both"
            )
        answer: list[Tensor | None] = [None] * len(ctx.tensors)
        used = [index for index, each in enumerate(arrived) if each is not None]
        if not used:
            return None, None, None, *answer
        shared = len(answer) - len(answer) % ctx.count  # where slow weights are, if they are shared
        places = [start + index for start in range(0, shared, ctx.count) for index in used]
        places += range(shared, len(answer))
        tensors = [ctx.tensors[place] for place in places]
        gradient = _stack_matrices([each for each in arrived if each is not None])
        again = torch.is_grad_enabled()  # gradients of gradients are wanted
        with torch.autocast(gradient.device.type, enabled=False):
            factors, A = _stacks(ctx.kind, tensors, len(used))
            found = ctx.kind.gradients(factors, A, gradient, again=again)
        each: list[Tensor] = []
        for stack, tensor in zip(found, tensors[:: len(used)], strict=True):
            # In the layout of a parameter autograd takes a gradient as it is, else it copies it
            each += [stack] if stack.dim() == tensor.dim() else stack.contiguous().unbind()
        for place, part in zip(places, each, strict=True):
            answer[place] = part
        return None, None, None, *answer


def _stack_matrices(matrices: Sequence[Tensor]) -> Tensor:
    """Transposed ones, as gradients of a transposed W are, are stacked as they lie in memory."""
    if matrices[0].is_contiguous():
        return torch.stack(list(matrices))
    return torch.stack([matrix.mT for matrix in matrices]).mT


def _stacks(
    kind: type[Projection], tensors: Sequence[Tensor], count: int
) -> tuple[dict[str, Tensor], Tensor | None]:
    """The factors, each stacked, and slow weights: those of all projections, or one set."""
    columns = [tensors[i : i + count] for i in range(0, len(tensors), count)]
    stacks = [c[0] if len(c) < count else torch.stack(list(c)) for c in columns]
    factors = dict(zip(kind.FACTORS, stacks, strict=False))
    return factors, stacks[len(factors)] if len(stacks) > len(factors) else None

"""The matrices of many projections, built together.

Built one by one, each W costs a handful of tiny operations, and autograd keeps what they make in
between. Here all projections of equal shapes are built by one batched formula, and nothing is kept
for the backward pass but the parameters, from which gradients are computed anew. A projection up is
as good as one down: with its factors exchanged and transposed, the same formula makes its W^T."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    return Builder(projections).build(A, backward)


class Builder:
    """Projections in groups of equal shapes, found once for many builds. It holds the parameters
    that they have now."""

    def __init__(self, projections: Sequence[Projection]) -> None:
        alike: dict[Any, tuple[list[int], list[int]]] = {}
        for index, projection in enumerate(projections):
            held, kind = projection._parameters, type(projection)
            factor = held[projection.FACTORS[0]]
            assert factor is not None
            widths = (projection.in_features, projection.out_features)
            mirrored = kind.FACTORED and widths[0] < widths[1]
            if mirrored:
                factor = held[projection.FACTORS[-1]]
                assert factor is not None
                widths, shape = widths[::-1], factor.mT.shape
            else:
                shape = factor.shape
            key = (kind, "A" in held, widths, shape, factor.dtype, factor.device)
            alike.setdefault(key, ([], []))[mirrored].append(index)
        self._count = len(projections)
        self._groups: list[tuple[_Group, list[int], list[Any]]] = []
        for (kind, own, *_), (straight, turned) in alike.items():
            names = [*kind.FACTORS, "A"] if own else kind.FACTORS
            parameters = [
                projections[index]._parameters[name]
                for part in (straight, turned)
                for name in names
                for index in part
            ]
            group = _Group(kind, len(names), len(straight), len(turned))
            self._groups.append((group, [*straight, *turned], parameters))

    def build(self, A: Tensor | None = None, backward: Backward | None = None) -> list[Tensor]:
        built: list[Any] = [None] * self._count
        for group, indices, parameters in self._groups:
            tensors = parameters
            if A is not None and not group.has_own_A:
                tensors = [*parameters, A.to(parameters[0].device)]
            if torch.compiler.is_compiling():  # a compiler decides itself what to keep
                together = group.matrices(tensors)
            else:
                together = _Build.apply(group, backward or Backward(), *tensors)  # type: ignore[no-untyped-call]
            for index, W in zip(indices, together, strict=True):
                built[index] = W
        return built


@dataclass(frozen=True, slots=True)
class _Group:
    """Projections whose parameters lie one after the other: each kind of factor of all that are
    straight, then each of all that are mirrored, then the slow weights that they share."""

    kind: type[Projection]
    columns: int
    straight: int
    mirrored: int

    @property
    def has_own_A(self) -> bool:
        return self.columns > len(self.kind.FACTORS)

    @property
    def shared(self) -> int:
        """Where shared slow weights are, if there are any."""
        return self.columns * (self.straight + self.mirrored)

    def places(self, used: Sequence[int]) -> list[int]:
        """Where the parameters of some projections are, in the order of a group of these."""
        straight = [index for index in used if index < self.straight]
        mirrored = [index - self.straight for index in used if index >= self.straight]
        start = self.columns * self.straight
        places = [column * self.straight + i for column in range(self.columns) for i in straight]
        places += [
            start + column * self.mirrored + i for column in range(self.columns) for i in mirrored
        ]
        return places

    def of(self, used: Sequence[int]) -> _Group:
        straight = sum(index < self.straight for index in used)
        return _Group(self.kind, self.columns, straight, len(used) - straight)

    def matrices(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        stacks, A = self.stacks(tensors)
        built = self.kind.matrices(stacks, A)
        if not self.mirrored:
            return list(built.unbind())
        return [*built[: self.straight].unbind(), *built[self.straight :].mT.unbind()]

    def stacks(self, tensors: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
        """The factors, each stacked, and slow weights: those of all projections, or one set."""
        start, end = self.columns * self.straight, self.shared
        straight = _columns(tensors[:start], self.straight)
        mirrored = _columns(tensors[start:end], self.mirrored)
        if not self.has_own_A and len(tensors) > end:
            A = tensors[end]
            if self.mirrored:  # then each projection has its own, turned or not
                straight += [A.expand(self.straight, *A.shape)] if self.straight else []
                mirrored.append(A.expand(self.mirrored, *A.shape))
            else:
                straight.append(A)
        stacks = _joined(straight, _mirror(self.kind, mirrored))
        factors = dict(zip(self.kind.FACTORS, stacks, strict=False))
        return factors, stacks[len(factors)] if len(stacks) > len(factors) else None

    def gradients(
        self, tensors: Sequence[Tensor], arrived: Sequence[Tensor], *, again: bool
    ) -> list[Tensor]:
        """Of all tensors, given those of all matrices."""
        factors, A = self.stacks(tensors)
        gradient = _stack_matrices(arrived[: self.straight], arrived[self.straight :])
        found = list(self.kind.gradients(factors, A, gradient, again=again))
        shared = found.pop() if len(tensors) > self.shared else None
        if shared is not None and self.mirrored:
            shared = shared[: self.straight].sum(0) + shared[self.straight :].sum(0).mT
        of_straight = [stack[: self.straight] for stack in found] if self.straight else []
        of_mirrored = [stack[self.straight :] for stack in found] if self.mirrored else []
        # In the layout of a parameter autograd takes a gradient as it is, else it copies it
        each = [
            part
            for stack in (*of_straight, *_mirror(self.kind, of_mirrored))
            for part in stack.contiguous().unbind()
        ]
        return each if shared is None else [*each, shared.contiguous()]


class _Build(torch.autograd.Function):
    """The parameters are held as they are, not as saved tensors: they outlive the graph anyway, and
    so what is built can take part in several graphs and be made inside of a checkpointed block."""

    @staticmethod
    def forward(ctx: Any, group: _Group, watch: Backward, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.group, ctx.watch, ctx.tensors = group, watch, tensors
        ctx.versions = [tensor._version for tensor in tensors]
        ctx.set_materialize_grads(False)
        with torch.autocast(tensors[0].device.type, enabled=False):
            return tuple(group.matrices(tensors))

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
        tensors, group = ctx.tensors, ctx.group
        needed = [gradient for gradient in arrived if gradient is not None]
        if not needed:
            return None, None, *[None] * len(tensors)
        again = torch.is_grad_enabled()  # gradients of gradients are wanted
        with torch.autocast(needed[0].device.type, enabled=False):
            if len(needed) == len(arrived):
                return None, None, *group.gradients(tensors, needed, again=again)
            used = [index for index, gradient in enumerate(arrived) if gradient is not None]
            places = [*group.places(used), *range(group.shared, len(tensors))]
            some = [tensors[place] for place in places]
            found = group.of(used).gradients(some, needed, again=again)
        answer: list[Tensor | None] = [None] * len(tensors)
        for place, gradient in zip(places, found, strict=True):
            answer[place] = gradient
        return None, None, *answer


def _columns(tensors: Sequence[Tensor], count: int) -> list[Tensor]:
    return [torch.stack(list(tensors[i : i + count])) for i in range(0, len(tensors), count or 1)]


def _mirror(kind: type[Projection], stacks: list[Tensor]) -> list[Tensor]:
    """Factors of W^T from those of W, or the other way round: A (x) (s t) transposed is
    A^T (x) (t^T s^T)."""
    count = len(kind.FACTORS)
    return [stack.mT for stack in (*stacks[:count][::-1], *stacks[count:])]


def _joined(straight: list[Tensor], mirrored: list[Tensor]) -> list[Tensor]:
    if straight and mirrored:
        return [torch.cat(pair) for pair in zip(straight, mirrored, strict=True)]
    return straight or mirrored


def _stack_matrices(straight: Sequence[Tensor], mirrored: Sequence[Tensor]) -> Tensor:
    """Those of mirrored projections transposed; all as they lie in memory, where gradients of a
    transposed W are transposed too."""
    if straight and straight[0].is_contiguous():
        return torch.stack([*straight, *[matrix.mT for matrix in mirrored]])
    return torch.stack([*[matrix.mT for matrix in straight], *mirrored]).mT

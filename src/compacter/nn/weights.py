"""All weights of one adapter, as one small module.

The layers of a model hold no parameters of an adapter. They call this module with the path where
they stand, and compute with what it answers. So whatever acts when a module is called
(accelerate's offloading, FSDP, DeepSpeed, hooks) acts on an adapter as on any other module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from compacter.nn.bottleneck import Activation
from compacter.nn.stacks import Bottlenecks, Kind, Stack
from compacter.nn.watched import is_watched

SLOW = "A"
"""The name of slow weights that all places share."""


class Layout(NamedTuple):
    """What adapters of equal shapes have in common: everything but their numbers."""

    stacks: tuple[Stack, ...]
    n: int | None = None
    """Size of the shared slow weights, if there are any."""
    activation: Activation | None = None

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of all parameters."""
        slow = {} if self.n is None else {SLOW: (self.n, self.n, self.n)}
        return slow | {
            name: stack.shapes[local]
            for stack, names in self.names()
            for local, name in names.items()
        }

    def names(self) -> Iterator[tuple[Stack, dict[str, str]]]:
        """Every stack with the names of its parameters: in the stack -> in the adapter. Names that
        an earlier stack has get a number."""
        seen: dict[str, int] = {}
        for stack in self.stacks:
            names = {}
            for local in stack.shapes:
                number = seen[local] = seen.get(local, -1) + 1
                names[local] = f"{local}_{number}" if number else local
            yield stack, names

    def kinds(self) -> dict[str, Kind]:
        """Name -> what the parameter is."""
        slow: dict[str, Kind] = {} if self.n is None else {SLOW: "slow"}
        return slow | {
            name: stack.kind(local)
            for stack, names in self.names()
            for local, name in names.items()
        }

    def places(self) -> dict[str, tuple[int, int]]:
        """Path -> number of its stack, index in the stack."""
        return {
            path: (number, index)
            for number, stack in enumerate(self.stacks)
            for index, path in enumerate(stack.paths)
        }


class _Kept(NamedTuple):
    """What was built, and the state of the parameters that it was built from."""

    state: Any
    parts: dict[tuple[str, torch.device | None], Any]
    """By path, and by device: None stands for that of the parameters."""


class AdapterWeights(nn.Module):
    """The parameters of an adapter, `tensors`, by the names that `layout.shapes` has."""

    def __init__(self, layout: Layout, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.layout = layout
        self.names = tuple(layout.shapes)
        self._stacks = tuple(layout.names())
        self._places = layout.places()
        self._kept: _Kept | None = None
        self._backward_passes = [0]
        for name in self.names:
            self.register_parameter(name, nn.Parameter(tensors[name]))

    def forward(self, path: str, device: torch.device | None = None) -> Any:
        """What the place at `path` computes with, on that device; None if the adapter has no place
        there. See `compacter.nn.stacks` for what it is."""
        place = self._places.get(path)
        if place is None:
            return None
        tensors = self._tensors()
        state = None if is_watched() else self._state(tensors)
        if state is None:
            return moved_to(self._part(place, tensors), device)
        kept = self._kept
        if kept is None or kept.state != state:
            kept = self._kept = self._build(state, tensors)
        part = kept.parts.get((path, device))
        if part is None:
            part = kept.parts[path, device] = moved_to(kept.parts[path, None], device)
        return part

    def _tensors(self) -> list[Tensor]:
        """The parameters, or what stands in their place: FSDP and pruning set plain tensors."""
        parameters: dict[str, Any] = self._parameters
        if tuple(parameters) == self.names:
            return [*parameters.values()]
        return [getattr(self, name) for name in self.names]

    def _state(self, tensors: Sequence[Tensor]) -> Any:
        """What was built can be used again while this stays equal. None if nothing may be kept.

        Fused optimisers change parameters without a new version, but only where there are
        gradients. So it counts whether there are, and how many backward passes have been."""
        grad = torch.is_grad_enabled()
        if any(type(t) is not nn.Parameter or t.is_inference() for t in tensors):
            return None  # nothing tells when they change
        has_gradients = any(t.grad is not None for t in tensors)
        if has_gradients and not grad:
            return None
        versions = [(t._version, t.data_ptr(), t.requires_grad) for t in tensors]
        return grad, has_gradients, self._backward_passes[0], versions

    def _part(self, place: tuple[int, int], tensors: Sequence[Tensor]) -> Any:
        """The part of one place by its plain formula."""
        number, index = place
        named = dict(zip(self.names, tensors, strict=True))
        stack, names = self._stacks[number]
        return stack.part(index, {k: named[v] for k, v in names.items()}, named.get(SLOW))

    def _build(self, state: Any, tensors: Sequence[Tensor]) -> _Kept:
        """The parts of all places, each stack in a few operations."""
        named = dict(zip(self.names, tensors, strict=True))
        A = named.get(SLOW)
        parts: dict[tuple[str, torch.device | None], Any] = {}
        grad = torch.is_grad_enabled()
        # Tensors of inference mode could not be used in training later
        with torch.inference_mode(False), torch.set_grad_enabled(grad):
            for stack, names in self._stacks:
                own = {local: named[name] for local, name in names.items()}
                if isinstance(stack, Bottlenecks) and stack.is_built:
                    given = [*own.values()] if A is None else [*own.values(), A]
                    matrices = _Build.apply(stack, tuple(own), self._backward_passes, *given)  # type: ignore[no-untyped-call]
                    made = stack.parts(own, A, matrices)
                else:
                    made = stack.parts(own, A)
                parts.update({(p, None): m for p, m in zip(stack.paths, made, strict=True)})
        return _Kept(state, parts)

    def train(self, mode: bool = True) -> Self:
        """Also forgets what was built, in case parameters were changed through `.data`."""
        self._kept = None
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        """A copy builds for itself."""
        return {**self.__dict__, "_kept": None}

    def extra_repr(self) -> str:
        return f"{len(self._places)} places, {sum(p.numel() for p in self.parameters()):,} numbers"


class _Build(torch.autograd.Function):
    """W and V of all places of a stack.

    The parameters are remembered as they are, not as saved tensors: they outlive the graph anyway.
    So what is built can be gone back through any number of times, and by checkpointed blocks, and
    nothing that the formula makes in between is kept."""

    @staticmethod
    def forward(
        ctx: Any, stack: Bottlenecks, names: tuple[str, ...], passes: list[int], *given: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.stack, ctx.names, ctx.passes, ctx.given = stack, names, passes, given
        ctx.versions = [tensor._version for tensor in given]
        ctx.set_materialize_grads(False)
        return _matrices(stack, names, given)

    @staticmethod
    def backward(ctx: Any, *arrived: Tensor | None) -> Any:
        ctx.passes[0] += 1
        if [tensor._version for tensor in ctx.given] != ctx.versions:
            raise RuntimeError(
                "parameters of an adapter were changed between a forward pass and its backward "
                "pass, whose gradients would be wrong; change them before or after both"
            )
        again = torch.is_grad_enabled()  # gradients of gradients are wanted
        needed = [index for index, needs in enumerate(ctx.needs_input_grad[3:]) if needs]
        with torch.enable_grad():
            given = [t if again else t.detach() for t in ctx.given]
            for index in needed:
                given[index].requires_grad_()
            made = _matrices(ctx.stack, ctx.names, given)
            pairs = [(W, g) for W, g in zip(made, arrived, strict=True) if g is not None]
            found = torch.autograd.grad(
                [W for W, _ in pairs],
                [given[index] for index in needed],
                [g for _, g in pairs],
                create_graph=again,
                allow_unused=True,
            )
        answer: list[Tensor | None] = [None] * len(given)
        for index, gradient in zip(needed, found, strict=True):
            answer[index] = gradient
        return None, None, None, *answer


def _matrices(
    stack: Bottlenecks, names: tuple[str, ...], given: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    A = given[len(names)] if len(given) > len(names) else None
    with torch.autocast(given[0].device.type, enabled=False):
        return stack.matrices(dict(zip(names, given, strict=False)), A)


def device_of(part: Any) -> torch.device:
    """Of what a place computes with."""
    found: torch.device = next(leaf.device for leaf in tree_leaves(part) if leaf is not None)
    return found


def moved_to(part: Any, device: torch.device | None) -> Any:
    """The same on that device."""
    if device is None or device_of(part) == device:
        return part
    return tree_map(lambda tensor: None if tensor is None else tensor.to(device), part)

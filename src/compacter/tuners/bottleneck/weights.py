"""When the matrices of an adapter are built, and for how long they are kept.

All layers are built together, by the first layer that needs its matrices; the others find theirs.
While an adapter is trained, what was built serves the call of the model that is under way, to its
end. Where there is no such call, because an encoder is called alone or a model that PEFT does not
wrap, it serves every layer once if no parameter was changed meanwhile, and none after a backward
pass. While nothing is trained it is kept until a parameter changes, so that decoding does not build
at every token. A fused optimiser changes parameters without raising their versions, but it needs
gradients: what was built is not kept where a parameter has one, nor after a backward pass. Where a
parameter is not what it was when the adapter was made (sharded, replicated, replaced by a function
transform), a layer computes by its own formula. Only a compiler is shown a whole pass, at the
beginning of which everything is built; and within a call of `generate`, layers that found their
matrices use them to its end (see `Shortcut`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from compacter.nn import Backward, Builder, build

if TYPE_CHECKING:
    from compacter.tuners.bottleneck.layer import BottleneckLayer
    from compacter.tuners.layers import SharedParameters

Matrices = tuple[Tensor, Tensor]
"""W of the way down and of the way up."""
Parts = tuple[Tensor, Tensor | None, nn.Module, Tensor, Tensor | None]
"""W and bias of the way down, activation, W and bias of the way up."""


class Source(NamedTuple):
    """A parameter and the state in which it was read."""

    holder: dict[str, Any]  # the dictionary of its module, where it can be replaced by another
    name: str
    parameter: nn.Parameter
    version: int
    pointer: int
    trained: bool
    storage: Tensor  # held, so that no other can have its address

    @classmethod
    def of(cls, holder: dict[str, Any], name: str) -> Source:
        parameter: nn.Parameter = holder[name]
        version, pointer = parameter._version, parameter.data_ptr()
        trained, storage = parameter.requires_grad, parameter.detach()
        return cls(holder, name, parameter, version, pointer, trained, storage)


@dataclass(slots=True, eq=False)
class Built:
    """The matrices of one layer. They are asked for in every forward pass of every layer, hence the
    short cuts."""

    adapter: str
    matrices: Matrices
    sources: list[Source]
    trained: bool
    backward: Backward
    reached: int = field(init=False)
    used: bool = False

    def __post_init__(self) -> None:
        self.reached = self.backward.reached

    def take(self) -> bool:
        """Whether the matrices can be used now; while they are trained that is so once."""
        if self.reached != self.backward.reached:
            return False
        if self.trained or torch.is_grad_enabled():
            trained = torch.is_grad_enabled() and _requires_grad(self.sources)
            if trained != self.trained or (trained and self.used):
                return False
            if trained and [s.parameter.requires_grad for s in self.sources] != [
                s.trained for s in self.sources
            ]:
                return False
            self.used = True
        for holder, name, parameter, version, pointer, _, _ in self.sources:
            if (
                holder.get(name) is not parameter
                or parameter._version != version
                or parameter.data_ptr() != pointer
            ):
                return False
        return True


@dataclass(slots=True, eq=False)
class BuiltForCall:
    """All layers, while they are trained, in one call of the model."""

    adapter: str
    parts: dict[BottleneckLayer, Parts]
    backward: Backward
    reached: int = field(init=False)

    def __post_init__(self) -> None:
        self.reached = self.backward.reached

    def find(self, layer: BottleneckLayer, adapter: str) -> Parts | None:
        if adapter != self.adapter or self.reached != self.backward.reached:
            return None
        return self.parts.get(layer) if torch.is_grad_enabled() else None


@dataclass(slots=True, eq=False)
class Together:
    """The layers of an adapter whose parameters are as they were made, so that they can be built
    together. All of them are asked in every training step; where they are the same as in the step
    before, in the same memory, nothing has to be asked again."""

    adapter: str
    layers: dict[BottleneckLayer, None]
    sources: list[Source]
    builder: Builder

    @classmethod
    def of(cls, adapter: str, layers: Sequence[BottleneckLayer]) -> Together:
        projections = [way for layer in layers for way in layer.projections(adapter)]
        sources = [source for layer in layers for source in layer.sources(adapter)]
        different = {id(source.parameter): source for source in sources}  # A is of all layers
        return cls(adapter, dict.fromkeys(layers), [*different.values()], Builder(projections))

    @property
    def is_current(self) -> bool:
        for holder, name, parameter, _, pointer, _, _ in self.sources:
            if holder.get(name) is not parameter or parameter.data_ptr() != pointer:
                return False
        return True

    @staticmethod
    def find(adapter: str, layer: BottleneckLayer) -> Together:
        """With that layer, unless it has to compute by its own formula."""
        shared = layer.shared
        found: Together | None = shared.together
        is_one_of_them = found is not None and found.adapter == adapter and layer in found.layers
        if found is None or not is_one_of_them or not found.is_current:
            layers = [m for m in layer.all_with(adapter, shared) if m.is_as_made(adapter)]
            found = shared.together = Together.of(adapter, layers)
        return found

    def build(self, shared: SharedParameters, trained: bool) -> list[Matrices]:
        """Of all layers, outside of inference mode, whose tensors could not be kept for other
        uses."""
        A = shared.get("A", self.adapter)
        with torch.inference_mode(False), torch.set_grad_enabled(trained):
            matrices = self.builder.build(A, shared.backward)
        return list(zip(matrices[::2], matrices[1::2], strict=True))


def built_matrices(layer: BottleneckLayer, adapter: str) -> Matrices | None:
    """The matrices of the layer, built with those of all others where that can be done; None if
    the layer must compute by its own formula."""
    if torch._C._are_functorch_transforms_active():
        return None
    shared = layer.shared
    together = Together.find(adapter, layer)
    if layer not in together.layers:  # a copy of a layer, or one whose parameters are elsewhere
        return None
    own = layer.sources(adapter)
    trained = torch.is_grad_enabled() and _requires_grad(own)
    # A checkpointed block is run again, inside of the backward pass; other blocks are not
    inside_backward = trained and torch._C._current_graph_task_id() != -1
    if inside_backward or (not trained and _has_grad(own)):
        return Together.of(adapter, [layer]).build(shared, trained)[0]
    if trained and shared.here.shortcuts is not None:
        made = dict(zip(together.layers, together.build(shared, trained), strict=True))
        parts = {member: member.parts(adapter, matrices) for member, matrices in made.items()}
        shared.here.built = BuiltForCall(adapter, parts, shared.backward)
        return made[layer]
    sources = [(member, member.sources(adapter)) for member in together.layers]
    if not trained:
        sources = [(m, states) for m, states in sources if not _has_grad(states)]
        together = Together.of(adapter, [m for m, _ in sources])
    for (member, states), matrices in zip(sources, together.build(shared, trained), strict=True):
        built = Built(adapter, matrices, states, trained, shared.backward)
        member.built = built
        if member is layer:  # not from the layer, where another thread may change it
            built.used = True
            mine = matrices
    return mine


def _requires_grad(sources: Sequence[Source]) -> bool:
    return any([source.parameter.requires_grad for source in sources])  # noqa: C419


def _has_grad(sources: Sequence[Source]) -> bool:
    return any(source.parameter.grad is not None for source in sources)


def trace_weights(layers: Sequence[BottleneckLayer], adapter: str, A: Tensor | None) -> None:
    """Build for a compiler, which traces a pass as a whole and has its own ways to save memory."""
    pairs = [layer.projections(adapter) for layer in layers]
    matrices = build([projection for pair in pairs for projection in pair], A)
    for i, layer in enumerate(layers):
        pair = matrices[2 * i], matrices[2 * i + 1]
        layer.built = Built(adapter, pair, [], False, Backward())

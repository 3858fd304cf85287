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

from compacter.nn import Backward, build

if TYPE_CHECKING:
    from compacter.tuners.bottleneck.layer import BottleneckLayer


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
    down: Tensor
    up: Tensor
    sources: list[Source]
    trained: bool
    backward: Backward
    call: object | None = None
    """The call of the model that they are trained in: the only one that they serve."""
    reached: int = field(init=False)
    used: bool = False

    def __post_init__(self) -> None:
        self.reached = self.backward.reached

    def take(self, call: object | None) -> bool:
        """Whether the matrices can be used now, in that call of the model, if it is one; while they
        are trained outside of a call, that is so once."""
        if self.reached != self.backward.reached:
            return False
        if self.call is not None:
            return self.call is call and torch.is_grad_enabled()
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


def built_weights(layer: BottleneckLayer, adapter: str) -> Built | None:
    """The matrices of the layer, built with those of all others where that can be done; None if
    the layer must compute by its own formula."""
    if torch._C._are_functorch_transforms_active():
        return None
    if not layer.is_as_made(adapter):
        return None
    own, call = layer.sources(adapter), layer.shared.here.shortcuts
    trained = torch.is_grad_enabled() and _requires_grad(own)
    # A checkpointed block is run again, inside of the backward pass; other blocks are not
    inside_backward = trained and torch._C._current_graph_task_id() != -1
    if inside_backward or (not trained and _has_grad(own)):
        return _build(adapter, [(layer, own)], trained)[0]
    members = [m for m in layer.all_with(adapter, layer.shared) if m.is_as_made(adapter)]
    if trained and call is not None:
        whole: list[tuple[BottleneckLayer, list[Source]]] = [(m, []) for m in members]
    else:
        call, whole = None, [(m, m.sources(adapter)) for m in members]
    if not trained:
        whole = [(m, sources) for m, sources in whole if not _has_grad(sources)]
    places = [m for m, _ in whole]
    if layer not in places:  # a copy of a layer
        return None
    made = _build(adapter, whole, trained, call)
    for member, built in zip(places, made, strict=True):
        member.built = built
    mine = made[places.index(layer)]  # not from the layer, where another thread may change it
    mine.used = True
    return mine


def _build(
    adapter: str,
    layers: Sequence[tuple[BottleneckLayer, list[Source]]],
    trained: bool,
    call: object | None = None,
) -> list[Built]:
    """In one go, outside of inference mode, whose tensors could not be kept for other uses."""
    pairs = [layer.projections(adapter) for layer, _ in layers]
    shared = layers[0][0].shared
    A, backward = shared.get("A", adapter), shared.backward
    with torch.inference_mode(False), torch.set_grad_enabled(trained):
        matrices = build([projection for pair in pairs for projection in pair], A, backward)
    return [
        Built(adapter, matrices[2 * i], matrices[2 * i + 1], sources, trained, backward, call)
        for i, (_, sources) in enumerate(layers)
    ]


def _requires_grad(sources: Sequence[Source]) -> bool:
    return any([source.parameter.requires_grad for source in sources])  # noqa: C419


def _has_grad(sources: Sequence[Source]) -> bool:
    return any(source.parameter.grad is not None for source in sources)


def trace_weights(layers: Sequence[BottleneckLayer], adapter: str, A: Tensor | None) -> None:
    """Build for a compiler, which traces a pass as a whole and has its own ways to save memory."""
    pairs = [layer.projections(adapter) for layer in layers]
    matrices = build([projection for pair in pairs for projection in pair], A)
    for i, layer in enumerate(layers):
        down, up = matrices[2 * i], matrices[2 * i + 1]
        layer.built = Built(adapter, down, up, [], False, Backward())

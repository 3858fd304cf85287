"""Memory of training, counted from what is held: the same number on every machine.

    with SavedTensors(model) as saved:
        loss = model(**batch).loss
    saved.bytes()                                # of activations kept for the backward pass
    count_step(model, batch, optimizer).total    # at most, with weights, gradients and moments

A storage is counted once, whole, however many tensors view it. What a step holds is a constant
and an amount for each row of the batch, so two batch sizes tell all others (`MemoryLine`)."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from compacter.errors import BenchError

UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclass(frozen=True)
class Memory:
    """Bytes that a training step holds. Gradients come while activations go, so that the most at
    one time lies between `least` and `total`."""

    weights: int
    """Parameters, buffers, and what layers keep beside them."""
    gradients: int
    optimizer: int
    activations: int
    """Tensors that autograd has saved for the backward pass, without parameters and buffers."""

    @property
    def least(self) -> int:
        """As if activations and gradients were never held together."""
        return self.weights + self.optimizer + max(self.gradients, self.activations)

    @property
    def total(self) -> int:
        """An upper bound: as if all of them were held together."""
        return self.weights + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True)
class MemoryLine:
    """Bytes by batch size, at most: `fixed` and `per_row` for each row."""

    fixed: float
    per_row: float

    @classmethod
    def through(cls, known: Mapping[int, int]) -> Self:
        """From the bytes at two batch sizes."""
        (first, low), (second, high) = sorted(known.items())
        per_row = (high - low) / (second - first)
        return cls(low - first * per_row, per_row)

    def at(self, batch: int) -> int:
        return round(self.fixed + batch * self.per_row)

    def largest_batch(self, budget: int) -> int:
        """The most rows that fit, 0 if not even one does."""
        return max(0, int((budget - self.fixed) // self.per_row))


class _Saved:
    """A tensor that autograd saved. Autograd alone holds it, so it lives as long as it is needed;
    what belongs to a part of the graph that is dropped before the backward pass is not counted."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class SavedTensors:
    """Counts what autograd saves inside the `with` block."""

    def __init__(self, model: nn.Module) -> None:
        self._known = set(_storages(_state_of(model)))
        self._saved: list[weakref.ref[_Saved]] = []
        self._hooks = saved_tensors_hooks(self._pack, lambda saved: saved.tensor)

    def __enter__(self) -> Self:
        self._hooks.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hooks.__exit__(kind, error, trace)

    def _pack(self, tensor: Tensor) -> _Saved:
        saved = _Saved(tensor.detach())  # a saved output would hold the graph that holds it
        self._saved.append(weakref.ref(saved))
        return saved

    def bytes(self) -> int:
        """Of the storages that are saved now, without those of the model's parameters."""
        alive = (reference() for reference in self._saved)
        found = _storages(saved.tensor for saved in alive if saved is not None)
        return sum(size for key, size in found.items() if key not in self._known)


def count_step(
    model: nn.Module, inputs: Mapping[str, Any], optimizer: torch.optim.Optimizer
) -> Memory:
    """Do one training step and count what it holds."""
    optimizer.zero_grad(set_to_none=True)
    with SavedTensors(model) as saved:
        loss = model(**inputs).loss
    activations = saved.bytes()
    loss.backward()
    gradients = _bytes(p.grad for p in model.parameters() if p.grad is not None)
    optimizer.step()
    return Memory(weight_bytes(model), gradients, optimizer_bytes(optimizer), activations)


def tensor_bytes(model: nn.Module) -> int:
    """Of parameters and buffers."""
    return _bytes(_state_of(model))


def weight_bytes(model: nn.Module) -> int:
    """The same, and what layers keep beside them on the CPU."""
    kept: int = sum(getattr(module, "kept_bytes", 0) for module in model.modules())
    return tensor_bytes(model) + kept


def optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    states = optimizer.state.values()
    return _bytes(x for state in states for x in state.values() if isinstance(x, Tensor))


def parse_size(text: str) -> int:
    """Bytes of a size such as 24GB (24 * 10^9) or 24GiB (24 * 2^30)."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]i?B)\s*", text)
    size = round(float(match[1]) * UNITS[match[2]]) if match else 0
    if size < 1:
        raise BenchError(
            f"the memory budget {text!r} does not fit; expected a number above 0 and one of "
            f"{', '.join(UNITS)}, such as 24GB"
        )
    return size


def _state_of(model: nn.Module) -> Iterable[Tensor]:
    yield from model.parameters()
    yield from model.buffers()


def _storages(tensors: Iterable[Tensor]) -> dict[tuple[torch.device, int], int]:
    """Bytes of each storage, by where it is."""
    found: dict[tuple[torch.device, int], int] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        found[storage.device, storage.data_ptr()] = storage.nbytes()
    return found


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(_storages(tensors).values())

"""Stacks: what an adapter has at several places of a model that are alike.

A place is a module of the base model, known by its path. The parameters of P alike places are
stacked, so that a whole adapter is a handful of tensors. A stack says which parameters there are,
and makes of them the parts that each place computes with:

    Bottlenecks   (W, b, V, c) of y + act(y W + b) V + c
    Norms         the weight, and the bias if there is one, of a trained layer norm
    Biases        a learned bias
    Whole         tensors that are not stacked, such as those of a tuned output layer
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from compacter.nn.projections import Projection

Tensors = Mapping[str, Tensor]
Shape = tuple[int, ...]

Kind = Literal["slow", "fast", "bias", "norm", "whole"]
"""What a parameter is: slow weights A; fast weights of a projection (s and t, B or W); a bias; of a
trained layer norm; or of the adapter as a whole."""

WHOLE = ""
"""The path of `Whole`: that of the model itself."""


@dataclass(frozen=True)
class Stack(ABC):
    """Alike places. Their parameters have `paths` as first dimension."""

    paths: tuple[str, ...]

    @property
    @abstractmethod
    def shapes(self) -> dict[str, Shape]:
        """Name -> shape of the parameters."""

    @abstractmethod
    def kind(self, name: str) -> Kind:
        """What the parameter of that name is."""

    @abstractmethod
    def initial(self, bases: Mapping[str, nn.Module]) -> dict[str, Tensor]:
        """New parameters; `bases` has the modules of the base model by their paths."""

    @abstractmethod
    def parts(self, tensors: Tensors, A: Tensor | None = None) -> Sequence[Any]:
        """What each place computes with; `A` are the adapter's shared slow weights."""

    def part(self, index: int, tensors: Tensors, A: Tensor | None = None) -> Any:
        """The part of one place, made of nothing but its own parameters."""
        own = {name: tensor[index : index + 1] for name, tensor in tensors.items()}
        return self.parts(own, A)[0]

    def example_parts(self, tensors: Tensors, A: Tensor | None) -> Sequence[Any]:
        """As `parts`, for examples of different adapters: every tensor has one more dimension in
        front, and so has what each place computes with."""
        return self.parts({name: tensor.transpose(0, 1) for name, tensor in tensors.items()})


@dataclass(frozen=True)
class Bottlenecks(Stack):
    """Bottleneck adapters of one width."""

    down: Projection
    up: Projection

    @property
    def shapes(self) -> dict[str, Shape]:
        return {
            f"{way}_{name}": (len(self.paths), *shape)
            for way, projection in self._ways
            for name, shape in projection.shapes.items()
        }

    def kind(self, name: str) -> Kind:
        kinds: dict[str, Kind] = {"A": "slow", "bias": "bias"}
        return kinds.get(name.partition("_")[2], "fast")

    def initial(self, bases: Mapping[str, nn.Module]) -> dict[str, Tensor]:
        return {
            f"{way}_{name}": tensor
            for way, projection in self._ways
            for name, tensor in projection.initial(len(self.paths)).items()
        }

    @property
    def is_built(self) -> bool:
        """Whether W and V are made of smaller parameters."""
        return self.down.kind != "dense"

    def matrices(self, tensors: Tensors, A: Tensor | None) -> tuple[Tensor, Tensor]:
        """W in R^{P x k x d} and V in R^{P x d x k}."""
        return (
            self.down.matrices(_of("down_", tensors), A),
            self.up.matrices(_of("up_", tensors), A),
        )

    def parts(
        self,
        tensors: Tensors,
        A: Tensor | None = None,
        matrices: tuple[Tensor, Tensor] | None = None,
    ) -> Sequence[Any]:
        W, V = matrices or self.matrices(tensors, A)
        b, c = (
            tensors[name].unbind() if name in tensors else [None] * len(W)
            for name in ("down_bias", "up_bias")
        )
        return [*zip(W.unbind(), b, V.unbind(), c, strict=True)]

    def example_parts(self, tensors: Tensors, A: Tensor | None) -> Sequence[Any]:
        """As `parts`, for E examples of different adapters. Every tensor has E in front. W and V
        are given as `Projection.prepare` leaves them."""
        E, P = next(iter(tensors.values())).shape[:2]
        flat = {name: tensor.flatten(0, 1) for name, tensor in tensors.items()}
        slow = None if A is None else A.unsqueeze(1).expand(E, P, *A.shape[1:]).flatten(0, 1)
        columns: list[Any] = []
        for way, projection in self._ways:
            prepared = projection.prepare(_of(f"{way}_", flat), slow)
            each = [tensor.reshape(E, P, *tensor.shape[1:]).unbind(1) for tensor in prepared]
            bias = tensors.get(f"{way}_bias")
            columns.append([list(factors) for factors in zip(*each, strict=True)])
            columns.append([None] * P if bias is None else bias.unbind(1))
        return [*zip(*columns, strict=True)]

    @property
    def _ways(self) -> tuple[tuple[str, Projection], tuple[str, Projection]]:
        return ("down", self.down), ("up", self.up)


@dataclass(frozen=True)
class Norms(Stack):
    """Trained copies of layer norms that have parameters of the same names and shapes."""

    parameters: tuple[tuple[str, Shape], ...]

    @property
    def shapes(self) -> dict[str, Shape]:
        return {f"layernorm_{name}": (len(self.paths), *shape) for name, shape in self.parameters}

    def kind(self, name: str) -> Kind:
        return "norm"

    def initial(self, bases: Mapping[str, nn.Module]) -> dict[str, Tensor]:
        return {
            f"layernorm_{name}": torch.stack(
                [bases[path].get_parameter(name).detach() for path in self.paths]
            )
            for name, _ in self.parameters
        }

    def parts(self, tensors: Tensors, A: Tensor | None = None) -> Sequence[dict[str, Tensor]]:
        own = _of("layernorm_", tensors)
        each = zip(*(tensor.unbind() for tensor in own.values()), strict=True)
        return [dict(zip(own, part, strict=True)) for part in each]


@dataclass(frozen=True)
class Biases(Stack):
    """Learned biases of one shape, which start at zero."""

    shape: Shape

    @property
    def shapes(self) -> dict[str, Shape]:
        return {"bias": (len(self.paths), *self.shape)}

    def kind(self, name: str) -> Kind:
        return "bias"

    def initial(self, bases: Mapping[str, nn.Module]) -> dict[str, Tensor]:
        return {name: torch.zeros(shape) for name, shape in self.shapes.items()}

    def parts(self, tensors: Tensors, A: Tensor | None = None) -> Sequence[Tensor]:
        return tensors["bias"].unbind()


@dataclass(frozen=True)
class Whole(Stack):
    """Tensors that belong to the adapter as a whole. Each starts as a copy of a parameter of the
    base model, by path and name, or filled with a number."""

    tensors: tuple[tuple[str, Shape, tuple[str, str] | float], ...]

    @property
    def shapes(self) -> dict[str, Shape]:
        return {name: shape for name, shape, _ in self.tensors}

    def kind(self, name: str) -> Kind:
        return "whole"

    def initial(self, bases: Mapping[str, nn.Module]) -> dict[str, Tensor]:
        return {
            name: torch.full(shape, start)
            if isinstance(start, float)
            else bases[start[0]].get_parameter(start[1]).detach().clone()
            for name, shape, start in self.tensors
        }

    def parts(self, tensors: Tensors, A: Tensor | None = None) -> Sequence[Tensors]:
        return [tensors]

    def part(self, index: int, tensors: Tensors, A: Tensor | None = None) -> Tensors:
        return tensors


def _of(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }

"""A module of which every weight moves along the intrinsic vector theta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from compacter.nn import Fastfood
from compacter.tuners.layers import SharedParameters, TunerLayer


@dataclass(frozen=True)
class MovedTensor:
    """A weight tensor of the base model and where it stands among all of them."""

    name: str  # its name in the bare model, which its projection is derived from
    index: int  # of its lambda
    owner: bool  # of the modules that share a tied tensor, one merges it


@dataclass(frozen=True)
class Moves:
    """What an adapter moves in one module, by the name of the parameter in it."""

    tensors: dict[str, MovedTensor]
    seed: int


class IntrinsicLayer(TunerLayer):
    """W -> W + lambda P theta for the parameters that the wrapped module itself holds.

    P theta has the size of W, so it is made when the module runs and made again for the backward
    pass: at no time does it exist for more than one module."""

    other_param_names = ("moves",)

    def __init__(self, base_layer: nn.Module, shared: SharedParameters) -> None:
        super().__init__(base_layer, shared)
        self.moves: dict[str, Moves] = {}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        adapter = self.shared.active
        output: Tensor
        if adapter is None or adapter not in self.moves:
            output = self.base_layer(*args, **kwargs)
        elif torch.is_grad_enabled():
            output = checkpoint(self._forward_moved, adapter, *args, use_reentrant=False, **kwargs)
        else:
            output = self._forward_moved(adapter, *args, **kwargs)
        return output

    def _forward_moved(self, adapter: str, *args: Any, **kwargs: Any) -> Tensor:
        moved = {name: self._moved(name, adapter) for name in self.moves[adapter].tensors}
        output: Tensor = functional_call(self.base_layer, moved, args, kwargs, tie_weights=False)
        return output

    @property
    def weight(self) -> Tensor:
        """The moved weight for models that read the weight of an embedding instead of calling it
        (DeBERTa's relative positions). Others are only asked for their dtype (T5's wo), for which
        the projection would be wasted."""
        adapter = self.shared.active
        is_read = isinstance(self.base_layer, nn.Embedding)
        if is_read and adapter is not None and adapter in self.moves:
            return self._moved("weight", adapter)
        return cast(Tensor, self.base_layer.weight)

    def _moved(self, name: str, adapter: str) -> Tensor:
        parameter = self._parameter(name)
        return parameter + self.delta(name, adapter).to(parameter.dtype)

    def delta(self, name: str, adapter: str) -> Tensor:
        """lambda_j P_j theta in the shape of the parameter."""
        tensor, parameter = self.moves[adapter].tensors[name], self._parameter(name)
        theta, lambdas = self.shared.get("theta", adapter), self.shared.get("lambda", adapter)
        assert theta is not None
        assert lambdas is not None
        theta, scale = theta.to(parameter.device), lambdas[tensor.index].to(parameter.device)
        seed = self.moves[adapter].seed
        fastfood = Fastfood(theta.numel(), parameter.numel(), seed, tensor.name)
        return scale * fastfood(theta).reshape(parameter.shape)

    def merge_into_base(self, adapter: str) -> None:
        self._add_to_base(adapter, 1.0)

    def unmerge_from_base(self, adapter: str) -> None:
        self._add_to_base(adapter, -1.0)

    @torch.no_grad()
    def _add_to_base(self, adapter: str, sign: float) -> None:
        for name, tensor in self.moves[adapter].tensors.items():
            if tensor.owner:
                parameter = self._parameter(name)
                parameter.add_(self.delta(name, adapter).to(parameter.dtype), alpha=sign)

    def _parameter(self, name: str) -> nn.Parameter:
        return self.base_layer.get_parameter(name)

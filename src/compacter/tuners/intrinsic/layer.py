"""A module of which every weight moves along the intrinsic vector theta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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


class IntrinsicLayer(TunerLayer):
    """W -> W + lambda P theta for the parameters that the wrapped module itself holds.

    P theta has the size of W, so it is made when the module runs and made again for the backward
    pass: at no time does it exist for more than one module."""

    other_param_names = ("projection_seeds",)

    def __init__(self, base_layer: nn.Module, shared: SharedParameters) -> None:
        super().__init__(base_layer, shared)
        self.tensors: dict[str, MovedTensor] = {}
        self.projection_seeds: dict[str, int] = {}
        self._has_children = any(True for _ in base_layer.children())

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        adapter = self.shared.active
        output: Tensor
        if adapter is None:
            output = self.base_layer(*args, **kwargs)
        elif torch.is_grad_enabled():
            output = checkpoint(
                self._forward_moved,
                adapter,
                *args,
                use_reentrant=False,
                preserve_rng_state=self._has_children,  # a single layer draws nothing at random
                **kwargs,
            )
        else:
            output = self._forward_moved(adapter, *args, **kwargs)
        return output

    def _forward_moved(self, adapter: str, *args: Any, **kwargs: Any) -> Tensor:
        moved = {
            name: self._parameter(name) + self.delta(name, adapter).to(self._parameter(name).dtype)
            for name in self.tensors
        }
        output: Tensor = functional_call(self.base_layer, moved, args, kwargs, tie_weights=False)
        return output

    def delta(self, name: str, adapter: str) -> Tensor:
        """lambda_j P_j theta in the shape of the parameter."""
        tensor, parameter = self.tensors[name], self._parameter(name)
        theta, lambdas = self.shared.get("theta", adapter), self.shared.get("lambda", adapter)
        assert theta is not None
        assert lambdas is not None
        theta, scale = theta.to(parameter.device), lambdas[tensor.index].to(parameter.device)
        seed = self.projection_seeds[adapter]
        fastfood = Fastfood(theta.numel(), parameter.numel(), seed, tensor.name)
        return scale * fastfood(theta).reshape(parameter.shape)

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        super().merge(safe_merge, adapter_names)
        self._add_to_base(self.merged_adapters, 1.0)

    def unmerge(self) -> None:
        self._add_to_base(self.merged_adapters, -1.0)
        super().unmerge()

    @torch.no_grad()
    def _add_to_base(self, adapters: list[str], sign: float) -> None:
        for adapter in adapters:
            for name, tensor in self.tensors.items():
                if tensor.owner:
                    parameter = self._parameter(name)
                    parameter.add_(self.delta(name, adapter).to(parameter.dtype), alpha=sign)

    def _parameter(self, name: str) -> nn.Parameter:
        return self.base_layer.get_parameter(name)

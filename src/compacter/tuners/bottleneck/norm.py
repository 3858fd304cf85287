"""The norm layer of the adapter methods, which train a copy of every layer norm."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn

from compacter.nn import is_watched, rms_epsilon, rms_norm
from compacter.tuners.bottleneck.config import CompacterConfig
from compacter.tuners.layers import SharedParameters, Shortcut, TunerLayer, can_fuse, fused_norm
from compacter.tuners.rows import Group, Rows, stack_of

_is_compiling = torch.compiler.is_compiling

TORCH_NORMS = (nn.LayerNorm.forward, nn.RMSNorm.forward)


class RowNorm(nn.Module):
    """Norms of torch, whose fused operations take one set of parameters: the norm without them,
    then a row of parameters for each row of a batch."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self._parameters = norm._parameters
        self.bare = copy.copy(norm)
        self.bare._parameters = dict.fromkeys(norm._parameters)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.bare(x)
        weight, bias = self._parameters["weight"], self._parameters.get("bias")
        if weight is not None:
            output = output * weight
        return output if bias is None else output + bias


FusableNorm = tuple[dict[str, Any], float]
"""The parameters of an RMS norm, looked up when they are used, and its eps."""


class NormLayer(TunerLayer):
    """A layer norm of which every adapter has a trained copy."""

    adapter_layer_names = ("compacter_norm",)

    def __init__(self, base_layer: nn.Module, shared: SharedParameters) -> None:
        super().__init__(base_layer, shared)
        self.compacter_norm = nn.ModuleDict()
        self.rms_epsilon = rms_epsilon(base_layer)
        weight = base_layer._parameters.get("weight")
        self.dims = 1 if weight is None else weight.dim()

    def add_adapter(self, adapter: str, config: CompacterConfig) -> None:
        self.compacter_norm[adapter] = copy.deepcopy(self.get_base_layer())

    def active_norm(self) -> nn.Module:
        modules: dict[str, Any] = self._modules
        norm: nn.Module = modules["compacter_norm"]._modules.get(self._shared[0].active)
        return modules["base_layer"] if norm is None else norm

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """In a training pass all norms are looked up by the first one, which takes less time than
        if each did so when the weights of a layer have just passed through the cache."""
        here = self._shared[0].here
        if here.shortcuts is not None and torch.is_grad_enabled() and not _is_compiling():
            if here.norms is None:
                here.norms = self._fusable_norms()
            found = here.norms.get(self)
            if found is not None and len(args) == 1 and not kwargs:
                x, (parameters, eps) = args[0], found
                weight = parameters["weight"]
                if weight.dtype is x.dtype:
                    return rms_norm(x, weight, eps)
        return super().forward(*args, **kwargs)

    def _fusable_norms(self) -> dict[NormLayer, FusableNorm]:
        """Of all layers that are like this one."""
        adapter, found = self.shared.active, {}
        if adapter is not None:
            for layer in self.shared.layers:
                fusable = layer.fusable(adapter) if isinstance(layer, NormLayer) else None
                if fusable is not None:
                    found[layer] = fusable
        return found

    def fusable(self, adapter: str) -> FusableNorm | None:
        """If nothing but an RMS norm is computed, in the dtype of the base model."""
        modules: dict[str, Any] = self._modules
        norm, eps = modules["compacter_norm"]._modules.get(adapter), self.rms_epsilon
        if norm is None or eps is None:
            return None
        weight = norm._parameters.get("weight")
        if weight is None or not can_fuse(norm, weight):
            return None
        return (norm._parameters, eps) if weight.dtype is _dtype(modules["base_layer"]) else None

    def forward_adapted(self, adapter: str, *args: Any, **kwargs: Any) -> Tensor:
        modules: dict[str, Any] = self._modules  # by attribute it takes longer, in every pass
        norm = modules["compacter_norm"]._modules.get(adapter)
        if norm is None:
            return cast(Tensor, modules["base_layer"](*args, **kwargs))
        return self._in_its_dtype(norm, args, kwargs)

    def shortcut(self, adapter: str) -> Shortcut | None:
        modules: dict[str, Any] = self._modules
        base, norm = modules["base_layer"], modules["compacter_norm"]._modules.get(adapter)
        if norm is None:
            return cast(Shortcut, base)
        fusable = self.fusable(adapter)
        if fusable is None or is_watched():
            return None
        parameters, eps = fusable

        def forward(*args: Any, **kwargs: Any) -> Tensor:
            x, weight = args[0] if len(args) == 1 and not kwargs else None, parameters["weight"]
            if x is not None and weight.dtype is x.dtype:
                return rms_norm(x, weight, eps)
            return self.forward_adapted(adapter, *args, **kwargs)

        return forward

    def _in_its_dtype(self, norm: nn.Module, args: Any, kwargs: Any) -> Tensor:
        """In the dtype of the copy: float32 under a half-precision base, whose steps around 1
        (2^-8 in bfloat16) would swallow most updates."""
        base: Any = self._modules["base_layer"]
        trained_as, stored_as = _dtype(norm), _dtype(base)
        if trained_as is not stored_as:
            args = (args[0].to(trained_as), *args[1:])
        eps = None if type(norm) is RowNorm else self.rms_epsilon
        output = fused_norm(norm, eps, norm._parameters.get("weight"), args, kwargs)
        if output is None:
            output = cast(Tensor, norm(*args, **kwargs))
        return output if trained_as is stored_as else output.to(stored_as)

    def forward_rows(self, rows: Rows, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        groups = [group for group in rows.groups if self.has(group.adapters[0])]
        covered = len(groups) == 1 and groups[0].is_all
        output = x if covered else self.base_layer(x, *args, **kwargs)
        if not groups:
            return output
        folded, inputs = rows.fold(output, self.dims), rows.fold(x, self.dims)
        for group in groups:
            norm = group.kept.get(self)
            if norm is None:
                norm = group.kept[self] = self._row_norm(group)
            part = self._in_its_dtype(norm, (group.rows_of(inputs), *args), kwargs)
            folded = group.put(folded, part)
        return folded.reshape(x.shape)

    def _row_norm(self, group: Group) -> nn.Module:
        """The norm with a row of parameters for each row of a batch."""
        norms: dict[str, Any] = cast(nn.ModuleDict, self._modules["compacter_norm"])._modules
        own = [norms[adapter] for adapter in group.adapters]
        rows: dict[str, Any] = {
            name: None if parameter is None else group.gather(stack_of(own, name)).unsqueeze(1)
            for name, parameter in own[0]._parameters.items()
        }
        norm = copy.copy(own[0])
        norm._parameters = rows
        return RowNorm(norm) if type(norm).forward in TORCH_NORMS else norm

    @property
    def weight(self) -> Tensor:
        return cast(Tensor, self.active_norm().weight)

    @property
    def bias(self) -> Tensor:
        return cast(Tensor, self.active_norm().bias)


def _dtype(norm: nn.Module) -> torch.dtype:
    for parameter in norm._parameters.values():
        if parameter is not None:
            return parameter.dtype
    return cast(Tensor, norm.weight).dtype  # of a replica, whose parameters are plain attributes

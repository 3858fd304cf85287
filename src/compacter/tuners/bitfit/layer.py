"""A wrapped module with a learned bias, or a learned change to the bias it has."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from compacter.errors import AdapterError
from compacter.models import is_layer_norm, output_width
from compacter.tuners.bitfit.config import BitFitConfig
from compacter.tuners.layers import ParametersByAdapter, SharedParameters, TunerLayer
from compacter.tuners.rows import Group, Rows

CHANNELS_FIRST = (_ConvNd, nn.GroupNorm, _NormBase)
"""Modules whose output is (batch, channels, ...), with one bias per channel."""


def bias_shape(module: nn.Module) -> tuple[int, ...] | None:
    """Of the biases that a module has, or could have; None if it cannot have any."""
    if isinstance(module, _ConvNd):
        return (module.out_channels,)
    weight = module._parameters.get("weight")
    if weight is not None and (is_layer_norm(module) or isinstance(module, CHANNELS_FIRST)):
        return tuple(weight.shape)
    width = output_width(module)
    return None if width is None else (width,)


class BitFitLayer(TunerLayer):
    """y -> y + b."""

    adapter_layer_names = ("bitfit_bias",)

    def __init__(self, base_layer: nn.Module, shared: SharedParameters) -> None:
        super().__init__(base_layer, shared)
        self.bitfit_bias = ParametersByAdapter()
        self.dims = len(bias_shape(base_layer) or (1,))

    def add_adapter(self, adapter: str, config: BitFitConfig) -> None:
        shape = bias_shape(self.base_layer)
        assert shape is not None  # planned
        self.bitfit_bias[adapter] = nn.Parameter(torch.zeros(shape))

    def adapt(self, adapter: str, output: Tensor) -> Tensor:
        if adapter not in self.bitfit_bias:
            return output
        bias = self.bitfit_bias.here(adapter).to(output.dtype)
        if isinstance(self.base_layer, CHANNELS_FIRST):
            bias = bias.reshape(-1, *[1] * (output.dim() - 2))
        changed: Tensor = output + bias
        return changed

    def adapt_rows(self, group: Group, output: Tensor) -> Tensor:
        biases = group.kept.get(self)
        if biases is None:
            stack = torch.stack([self.bitfit_bias.here(adapter) for adapter in group.adapters])
            biases = group.kept[self] = group.gather(stack).unsqueeze(1)
        changed: Tensor = output + biases.to(output.dtype)
        return changed

    def _adapt_groups(self, rows: Rows, output: Tensor) -> Tensor:
        if not isinstance(self.base_layer, CHANNELS_FIRST):
            return super()._adapt_groups(rows, output)
        return super()._adapt_groups(rows, output.movedim(1, -1)).movedim(-1, 1)

    @property
    def bias(self) -> Tensor:
        """With the learned one, for models that read it instead of calling the module (WavLM's
        attention, torch's TransformerEncoderLayer)."""
        bias = cast(Tensor, self.base_layer.bias)
        adapter = self.shared.active
        if bias is None or adapter is None or adapter not in self.bitfit_bias:
            return bias
        if self.shared.here.rows is not None:
            raise AdapterError(
                "adapter_names were given, but the model reads the bias of a module instead of "
                "calling it, once for all rows: call it for each adapter alone"
            )
        learned: Tensor = self.bitfit_bias[adapter]
        return bias + learned.to(bias)

    def merge_into_base(self, adapter: str) -> None:
        super().merge_into_base(adapter)
        self._add_to_base(adapter, 1.0)

    def unmerge_from_base(self, adapter: str) -> None:
        self._add_to_base(adapter, -1.0)
        super().unmerge_from_base(adapter)

    @torch.no_grad()
    def _add_to_base(self, adapter: str, sign: float) -> None:
        if adapter in self.bitfit_bias:
            bias = self.base_layer.bias  # the tuner saw to it that there is one
            assert isinstance(bias, Tensor)
            bias.add_(self.bitfit_bias[adapter].to(bias.dtype), alpha=sign)

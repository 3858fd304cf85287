"""A wrapped module with a learned bias, or a learned change to the bias it has."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from compacter.errors import AdapterError
from compacter.models import output_width
from compacter.tuners.bitfit.config import BitFitConfig
from compacter.tuners.layers import SharedParameters, TunerLayer


def bias_width(module: nn.Module) -> int | None:
    """The number of biases that a module has, or could have; None if it cannot have any."""
    if isinstance(module, _ConvNd):
        return module.out_channels
    width = output_width(module)
    if width is not None:
        return width
    weight = module._parameters.get("weight")
    return weight.numel() if weight is not None and weight.dim() == 1 else None


class BitFitLayer(TunerLayer):
    """y -> y + b."""

    adapter_layer_names = ("bitfit_bias",)

    def __init__(self, base_layer: nn.Module, shared: SharedParameters) -> None:
        super().__init__(base_layer, shared)
        self.bitfit_bias = nn.ParameterDict()

    def add_adapter(self, adapter: str, config: BitFitConfig) -> None:
        width = bias_width(self.base_layer)
        assert width is not None  # planned
        self.bitfit_bias[adapter] = nn.Parameter(torch.zeros(width))

    def adapt(self, adapter: str, output: Tensor) -> Tensor:
        if adapter not in self.bitfit_bias:
            return output
        bias = self.bitfit_bias[adapter].to(output.dtype)
        if isinstance(self.base_layer, _ConvNd):  # channels come before the spatial dimensions
            bias = bias.reshape(-1, *[1] * len(self.base_layer.kernel_size))
        changed: Tensor = output + bias
        return changed

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        super().merge(safe_merge, adapter_names)
        self._add_to_base(self.merged_adapters, 1.0)

    def unmerge(self) -> None:
        self._add_to_base(self.merged_adapters, -1.0)
        super().unmerge()

    def _add_to_base(self, adapters: list[str], sign: float) -> None:
        for adapter in adapters:
            if adapter in self.bitfit_bias:
                if getattr(self.base_layer, "bias", None) is None:
                    raise AdapterError(
                        f"{type(self.base_layer).__name__} has no bias to merge into"
                    )
                self.base_layer.bias.data += sign * self.bitfit_bias[adapter].data.to(
                    self.base_layer.bias.dtype
                )

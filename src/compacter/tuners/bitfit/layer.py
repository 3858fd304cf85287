"""A wrapped module with a learned bias, or a learned change to the bias it has."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from compacter.errors import AdapterError
from compacter.models import is_layer_norm, output_width
from compacter.nn import Layout
from compacter.tuners.layers import Adapters, TunerLayer
from compacter.tuners.mixing import Batch

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

    def __init__(self, base_layer: nn.Module, adapters: Adapters, path: str) -> None:
        super().__init__(base_layer, adapters, path)
        self.dims = len(bias_shape(base_layer) or (1,))
        self.has_channels_first = isinstance(base_layer, CHANNELS_FIRST)

    def adapt(self, part: Any, layout: Layout, output: Tensor) -> Tensor:
        bias = part.to(output.dtype)
        if self.has_channels_first:
            bias = bias.reshape(-1, *[1] * (output.dim() - 2))
        return output + cast(Tensor, bias)

    def adapt_examples(self, part: Any, layout: Layout, output: Tensor) -> Tensor:
        return output + cast(Tensor, part.unsqueeze(1).to(output.dtype))

    def forward_batch(self, batch: Batch, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not self.has_channels_first:
            return super().forward_batch(batch, x, *args, **kwargs)
        output = self.base_layer(x, *args, **kwargs).movedim(1, -1)
        return batch.change(self.path, output, self.adapt_examples, self.dims).movedim(-1, 1)

    @property
    def bias(self) -> Tensor:
        """With the learned one, for models that read it instead of calling the module (WavLM's
        attention, torch's TransformerEncoderLayer)."""
        bias = cast(Tensor, self.base_layer.bias)
        if bias is None:
            return bias
        batch, weights = self.adapters.batch, self.adapters.active
        if batch is not None and batch.at(self.path):
            raise AdapterError(
                "adapter_names were given, but the model reads the bias of a module instead of "
                "calling it, once for all examples: call it for each adapter alone"
            )
        learned = None if weights is None else weights(self.path, bias.device)
        return bias if learned is None else bias + learned.to(bias)

    def merge_into_base(self, adapter: str) -> None:
        super().merge_into_base(adapter)
        self._add_to_base(adapter, 1.0)

    def unmerge_from_base(self, adapter: str) -> None:
        self._add_to_base(adapter, -1.0)
        super().unmerge_from_base(adapter)

    @torch.no_grad()
    def _add_to_base(self, adapter: str, sign: float) -> None:
        bias = getattr(self.base_layer, "bias", None)
        learned = self.adapters.by_name[adapter](self.path)
        if learned is not None:  # then there is a bias to take it, as the tuner saw to
            assert isinstance(bias, Tensor)
            bias.add_(learned.to(bias), alpha=sign)

"""The two layers of the adapter methods: a bottleneck behind a module, and a trained layer norm."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from compacter.models import is_called_plainly
from compacter.nn import (
    AdapterWeights,
    Layout,
    bottleneck,
    call_with,
    project,
    rms_epsilon,
    rms_norm,
)
from compacter.tuners.layers import Adapters, TunerLayer, in_dtype_of
from compacter.tuners.mixing import Batch, Group


class BottleneckLayer(TunerLayer):
    """y -> y + act(y W + b) V + c on the output y of an attention or feed-forward block, before
    its dropout and skip connection."""

    def adapt(self, part: Any, layout: Layout, output: Tensor) -> Tensor:
        W, b, V, c = part
        activation = layout.activation
        assert activation is not None
        return in_dtype_of(W, output, lambda y: bottleneck(y, W, b, activation, V, c))

    def adapt_examples(self, part: Any, layout: Layout, output: Tensor) -> Tensor:
        down, b, up, c = part
        activation = layout.activation
        assert activation is not None

        def adapted(y: Tensor) -> Tensor:
            return y + project(activation(project(y, down, b)), up, c)

        return in_dtype_of(down[0], output, adapted)


class NormLayer(TunerLayer):
    """A layer norm of which every adapter has a trained copy."""

    def __init__(self, base_layer: nn.Module, adapters: Adapters, path: str) -> None:
        super().__init__(base_layer, adapters, path)
        self.rms_epsilon = rms_epsilon(base_layer)
        self.dims = next(base_layer.parameters()).dim()

    def forward_adapted(self, weights: AdapterWeights, *args: Any, **kwargs: Any) -> Tensor:
        own = weights(self.path, args[0].device)
        if own is None:
            return cast(Tensor, self.base_layer(*args, **kwargs))
        return in_dtype_of(
            own["weight"], args[0], lambda x: self._norm(own, x, *args[1:], **kwargs)
        )

    def _norm(self, own: dict[str, Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        eps = self.rms_epsilon
        is_rms = eps is not None and not args and not kwargs and x.dtype is own["weight"].dtype
        if is_rms and torch.is_grad_enabled() and is_called_plainly(self.base_layer):
            return rms_norm(x, own["weight"], cast(float, eps))
        return cast(Tensor, call_with(self.base_layer, own, x, *args, **kwargs))

    def forward_batch(self, batch: Batch, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        groups = batch.at(self.path)
        covered = len(groups) == 1 and groups[0].is_all
        output: Tensor = x if covered else self.base_layer(x, *args, **kwargs)
        if not groups:
            return output
        folded, inputs = batch.fold(output, self.dims), batch.fold(x, self.dims)
        for group in groups:
            folded = group.put(folded, self._norm_examples(group, group.examples_of(inputs)))
        return folded.reshape(x.shape)

    def _norm_examples(self, group: Group, x: Tensor) -> Tensor:
        own = {k: t.unsqueeze(1) for k, t in group.part(self.path, x.device).items()}

        def normed(x: Tensor) -> Tensor:
            if isinstance(self.base_layer, nn.LayerNorm | nn.RMSNorm):  # takes one set of weights
                bare = call_with(self.base_layer, dict.fromkeys(own), x)
                return cast(Tensor, bare * own["weight"] + own.get("bias", 0))
            return cast(Tensor, call_with(self.base_layer, own, x))

        return in_dtype_of(own["weight"], x, normed)

    @property
    def weight(self) -> Tensor:
        return self._read("weight")

    @property
    def bias(self) -> Tensor:
        return self._read("bias")

    def _read(self, name: str) -> Tensor:
        weights = self.adapters.active
        own = None if weights is None else weights(self.path)
        return cast(Tensor, getattr(self.base_layer, name) if own is None else own.get(name))

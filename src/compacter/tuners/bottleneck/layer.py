"""The two layers of the adapter methods: one adapts a module's output, one is a trained norm."""

from __future__ import annotations

import copy
from typing import Any, cast

from torch import Tensor, nn

from compacter.models import output_width
from compacter.nn import Projection, bottleneck, make_projection
from compacter.tuners.bottleneck.activation import find_activation
from compacter.tuners.bottleneck.config import CompacterConfig
from compacter.tuners.layers import SharedParameters, TunerLayer, in_dtype_of


def make_projections(width: int, config: CompacterConfig) -> tuple[Projection, Projection]:
    """Down to the bottleneck and up again."""
    settings: dict[str, Any] = {
        "n": config.n,
        "rank": config.rank,
        "shared_A": config.share_A,
        "A_std": config.initial_A_std,
        "bias": config.use_bias,
    }
    down = make_projection(config.projection, width, config.bottleneck, **settings)
    up = make_projection(config.projection, config.bottleneck, width, **settings)
    return down, up


class BottleneckLayer(TunerLayer):
    """y -> y + U(act(D(y))) on the output y of an attention or feed-forward block, before its
    dropout and skip connection."""

    adapter_layer_names = ("compacter_down", "compacter_up")
    other_param_names = ("activations",)

    def __init__(self, base_layer: nn.Module, shared: SharedParameters) -> None:
        super().__init__(base_layer, shared)
        self.compacter_down = nn.ModuleDict()
        self.compacter_up = nn.ModuleDict()
        self.activations: dict[str, nn.Module] = {}

    def add_adapter(self, adapter: str, config: CompacterConfig) -> None:
        width = output_width(self.get_base_layer())
        assert width is not None  # planned
        self.compacter_down[adapter], self.compacter_up[adapter] = make_projections(width, config)
        self.activations[adapter] = find_activation(config.activation)

    def adapt(self, adapter: str, output: Tensor) -> Tensor:
        if adapter not in self.activations:
            return output
        down, up = self.compacter_down[adapter], self.compacter_up[adapter]
        assert isinstance(down, Projection)
        assert isinstance(up, Projection)
        activation = self.activations[adapter]
        A = self.shared.get("A", adapter)
        if A is not None:
            A = A.to(output.device)
        return in_dtype_of(
            next(down.parameters()), output, lambda y: bottleneck(y, down, activation, up, A)
        )


class NormLayer(TunerLayer):
    """A layer norm of which every adapter has a trained copy."""

    adapter_layer_names = ("compacter_norm",)

    def __init__(self, base_layer: nn.Module, shared: SharedParameters) -> None:
        super().__init__(base_layer, shared)
        self.compacter_norm = nn.ModuleDict()

    def add_adapter(self, adapter: str, config: CompacterConfig) -> None:
        self.compacter_norm[adapter] = copy.deepcopy(self.get_base_layer())

    def active_norm(self) -> nn.Module:
        adapter = self.shared.active
        if adapter is None or adapter not in self.compacter_norm:
            return self.base_layer
        return self.compacter_norm[adapter]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """In the dtype of the copy: float32 under a half-precision base, whose steps around 1
        (2^-8 in bfloat16) would swallow most updates."""
        norm = self.active_norm()
        trained, base = next(norm.parameters()), next(self.base_layer.parameters())
        output: Tensor
        if trained.dtype == base.dtype:
            output = norm(*args, **kwargs)
        else:
            output = norm(args[0].to(trained.dtype), *args[1:], **kwargs).to(base.dtype)
        return output

    @property
    def weight(self) -> Tensor:
        return cast(Tensor, self.active_norm().weight)

    @property
    def bias(self) -> Tensor:
        return cast(Tensor, self.active_norm().bias)

"""The tuner of the adapter methods."""

from __future__ import annotations

from torch import nn

from compacter.errors import AdapterError
from compacter.models import (
    base_modules,
    drop_layers,
    find_blocks,
    layer_norms,
    output_width,
    targets_of,
)
from compacter.nn import Bottlenecks, Norms, Projection, require_divisible
from compacter.tuners.bottleneck.activation import find_activation
from compacter.tuners.bottleneck.config import CompacterConfig
from compacter.tuners.bottleneck.layer import BottleneckLayer, NormLayer
from compacter.tuners.plan import Plan, saved_whole_paths
from compacter.tuners.tuner import Tuner


class CompacterModel(Tuner):
    """Adapters after attention and feed-forward, and a trained copy of every layer norm."""

    prefix = "compacter_"

    def plan(self, model: nn.Module, config: CompacterConfig) -> Plan:
        plan = Plan(config.n if config.shares_A else None, find_activation(config.activation))
        modules = base_modules(model)
        blocks = () if config.target_modules else find_blocks(model, config.positions)
        found = self.targets(model, config, targets_of(blocks, config.positions))
        for target in drop_layers(found, config.drop_layers):
            width = output_width(modules[target.path])
            assert width is not None  # targets have one
            plan.add(target.path, BottleneckLayer, _bottlenecks(width, config))
        if config.train_layer_norms:
            elsewhere = saved_whole_paths(model, config.modules_to_save)
            for path, norm in layer_norms(model).items():
                if path not in elsewhere:
                    shapes = ((name, tuple(p.shape)) for name, p in norm.named_parameters())
                    plan.add(path, NormLayer, Norms((), tuple(shapes)))
        if config.tune_output_layer:
            self.plan_output_layer(plan, model)
        return plan

    def check_mergeable(self, adapter: str) -> None:
        raise AdapterError(
            "bottleneck adapters cannot be merged: y + U(gelu(D(y))) is not linear in y, so no "
            "weight of the base model can take it; use unload() to get the base model back"
        )


def _bottlenecks(width: int, config: CompacterConfig) -> Bottlenecks:
    """Down to the bottleneck and up again."""
    if config.is_hypercomplex:
        require_divisible(config.n, width=width, bottleneck=config.bottleneck)

    def projection(inputs: int, outputs: int) -> Projection:
        return Projection(
            config.projection,
            inputs,
            outputs,
            n=config.n,
            rank=config.rank,
            shared_A=config.share_A,
            bias=config.use_bias,
            A_std=config.initial_A_std,
        )

    return Bottlenecks(
        (), projection(width, config.bottleneck), projection(config.bottleneck, width)
    )

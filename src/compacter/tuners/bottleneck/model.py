"""The tuner of the adapter methods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from compacter.errors import AdapterError
from compacter.models import (
    base_modules,
    drop_layers,
    find_blocks,
    layer_norms,
    named_targets,
    output_width,
    targets_of,
)
from compacter.nn.projections import require_divisible, slow_weights
from compacter.tuners.bottleneck.config import CompacterConfig
from compacter.tuners.bottleneck.layer import BottleneckLayer, make_projections
from compacter.tuners.bottleneck.norm import NormLayer
from compacter.tuners.bottleneck.weights import trace_weights
from compacter.tuners.layers import SharedParameters
from compacter.tuners.tuner import Plan, Tuner, meta_shapes, saved_whole_paths


class CompacterModel(Tuner):
    """Adapters after attention and feed-forward, and a trained copy of every layer norm."""

    prefix = "compacter_"
    shared_kinds = ("A", "output_weight", "output_bias")

    def plan(self, model: nn.Module, config: CompacterConfig) -> Plan:
        plan = Plan()
        modules = base_modules(model)
        if config.target_modules is not None:
            targets = named_targets(model, config.target_modules)
        else:
            targets = targets_of(find_blocks(model, config.positions), config.positions)
        for target in drop_layers(targets, config.drop_layers):
            width = output_width(modules[target.path])
            assert width is not None  # targets have one
            if config.is_hypercomplex:
                require_divisible(config.n, width=width, bottleneck=config.bottleneck)
            with torch.device("meta"):
                down, up = make_projections(width, config)
            plan.layers[target.path] = BottleneckLayer
            plan.own[target.path] = meta_shapes(down, "compacter_down") | meta_shapes(
                up, "compacter_up"
            )
        if config.train_layer_norms:
            elsewhere = saved_whole_paths(model, config)
            for path, norm in layer_norms(model).items():
                if path not in elsewhere:
                    plan.layers[path] = NormLayer
                    plan.own[path] = meta_shapes(norm, "compacter_norm")
        if config.shares_A:
            plan.shared["A"] = (config.n, config.n, config.n)
        if config.tune_output_layer:
            self.plan_output_layer(plan, model)
        return plan

    def shared_parameters(self, config: CompacterConfig, plan: Plan) -> dict[str, nn.Parameter]:
        return {"A": slow_weights(config.n, config.initial_A_std)} if config.shares_A else {}

    def slow_weights(self, adapter: str) -> list[nn.Parameter]:
        """A of the adapter: one for all layers, or one of each projection; none if it has no A."""
        if not self.peft_config[adapter].is_hypercomplex:
            return []
        shared: SharedParameters = getattr(self.model, SharedParameters.NAME)
        layers = BottleneckLayer.all_with(adapter, shared)
        own = [p._parameters.get("A") for m in layers for p in m.projections(adapter)]
        return [A for A in (shared.holder("A").get(adapter), *own) if A is not None]

    @contextmanager
    def _enable_peft_forward_hooks(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """As of all tuners; a compiler finds here what is built for the pass that it traces."""
        with super()._enable_peft_forward_hooks(*args, **kwargs):
            shared: SharedParameters = getattr(self.model, SharedParameters.NAME)
            adapter = shared.active
            if not torch.compiler.is_compiling() or shared.here.rows is not None or adapter is None:
                yield
                return
            layers = BottleneckLayer.all_with(adapter, shared)
            trace_weights(layers, adapter, shared.get("A", adapter))
            shared.is_traced = True
            try:
                yield
            finally:
                shared.is_traced = False
                for layer in layers:
                    layer.built = None

    def check_mergeable(self, adapter: str) -> None:
        raise AdapterError(
            "bottleneck adapters cannot be merged: y + U(gelu(D(y))) is not linear in y, so no "
            "weight of the base model can take it; use unload() to get the base model back"
        )

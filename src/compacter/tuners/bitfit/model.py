"""The tuner of BitFit."""

from __future__ import annotations

from torch import nn

from compacter.errors import AdapterError, ArchitectureError
from compacter.models import (
    base_modules,
    find_blocks,
    layer_norms,
    named_targets,
    output_layer,
    output_width,
)
from compacter.tuners.bitfit.config import BitFitConfig
from compacter.tuners.bitfit.layer import BitFitLayer, bias_shape
from compacter.tuners.tuner import Plan, Tuner, saved_whole_paths


class BitFitModel(Tuner):
    """A learned bias on the output of every module that has, or is given, one."""

    prefix = "bitfit_"
    shared_kinds = ("output_weight", "output_bias")
    output_layer_cls = BitFitLayer

    def plan(self, model: nn.Module, config: BitFitConfig) -> Plan:
        plan = Plan()
        modules = base_modules(model)
        elsewhere = saved_whole_paths(model, config)
        inside = tuple(f"{p}." for p, m in modules.items() if isinstance(m, nn.MultiheadAttention))
        for path in self._paths(model, modules, config):
            shape = bias_shape(modules[path])
            reads_its_children = inside and path.startswith(inside)  # a wrapper would be bypassed
            if path not in elsewhere and shape is not None and not reads_its_children:
                plan.layers[path] = BitFitLayer
                plan.own[path] = {"bitfit_bias": shape}
        if config.tune_output_layer:
            self.plan_output_layer(plan, model)
        return plan

    def shared_parameters(self, config: BitFitConfig, plan: Plan) -> dict[str, nn.Parameter]:
        return {}

    def _paths(
        self, model: nn.Module, modules: dict[str, nn.Module], config: BitFitConfig
    ) -> list[str]:
        if config.target_modules is not None:
            return [target.path for target in named_targets(model, config.target_modules)]
        existing = [path for path, module in modules.items() if _has_bias(module)]
        if config.biases == "existing":
            if not existing:
                raise ArchitectureError(
                    f"biases='existing', but {type(model).__name__} has no biases; "
                    "set biases='added' to give it some"
                )
            return existing
        blocks = tuple(f"{block.path}." for block in find_blocks(model, positions=()))
        if config.biases == "auto" and any(path.startswith(blocks) for path in existing):
            return existing
        norms = layer_norms(model)
        added = [
            path
            for path, module in modules.items()
            if path.startswith(blocks) and (path in norms or output_width(module) is not None)
        ]
        return added + self._output_path(model)

    def _output_path(self, model: nn.Module) -> list[str]:
        try:
            return [next(iter(output_layer(model)))]
        except ArchitectureError:  # a model without one, such as an encoder
            return []

    def check_mergeable(self, adapter: str) -> None:
        homeless = [
            name
            for name, module in self.model.named_modules()
            if isinstance(module, BitFitLayer)
            and adapter in module.bitfit_bias
            and getattr(module.base_layer, "bias", None) is None
        ]
        if homeless:
            raise AdapterError(
                f"this adapter cannot be merged: {len(homeless)} of its biases belong to modules "
                f"that have none to take them, {homeless[0]} for one; use unload() to get the base "
                "model back"
            )


def _has_bias(module: nn.Module) -> bool:
    return module._parameters.get("bias") is not None and bias_shape(module) is not None

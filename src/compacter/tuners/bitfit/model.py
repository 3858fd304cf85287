"""The tuner of BitFit."""

from __future__ import annotations

from torch import Tensor, nn

from compacter.errors import AdapterError, ArchitectureError
from compacter.models import (
    base_modules,
    find_blocks,
    layer_norms,
    output_layer,
    output_width,
    target_at,
)
from compacter.nn import Biases
from compacter.tuners.bitfit.config import BitFitConfig
from compacter.tuners.bitfit.layer import BitFitLayer, bias_shape
from compacter.tuners.plan import Plan, saved_whole_paths
from compacter.tuners.tuner import Tuner


class BitFitModel(Tuner):
    """A learned bias on the output of every module that has, or is given, one."""

    prefix = "bitfit_"
    output_layer_cls = BitFitLayer

    def plan(self, model: nn.Module, config: BitFitConfig) -> Plan:
        plan = Plan()
        modules = base_modules(model)
        elsewhere = saved_whole_paths(model, config.modules_to_save)
        inside = tuple(f"{p}." for p, m in modules.items() if isinstance(m, nn.MultiheadAttention))
        found = [target_at(path) for path in self._paths(model, modules, config)]
        for path in (target.path for target in self.targets(model, config, found)):
            shape = bias_shape(modules[path])
            reads_its_children = inside and path.startswith(inside)  # a wrapper would be bypassed
            if path not in elsewhere and shape is not None and not reads_its_children:
                plan.add(path, BitFitLayer, Biases((), shape))
        if config.tune_output_layer:
            self.plan_output_layer(plan, model)
        return plan

    def _paths(
        self, model: nn.Module, modules: dict[str, nn.Module], config: BitFitConfig
    ) -> list[str]:
        if config.target_modules is not None:
            return []
        existing = [path for path, module in modules.items() if _has_bias(module)]
        if config.biases == "existing":
            if not existing:
                raise ArchitectureError(
                    f"biases='existing', but {type(model).__name__} has no biases; "
                    "set biases='added' to give it some"
                )
            return existing
        try:
            found = find_blocks(model, positions=())
        except ArchitectureError as error:
            hint = "or train the biases that it has with biases='existing'" if existing else ""
            raise ArchitectureError(f"{error}; {hint}".removesuffix("; ")) from None
        blocks = tuple(f"{block.path}." for block in found)
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
        """As the paper has it for T5. Trainers of decoders may read the output layer's weight in
        place of calling it, so that a bias would not be trained."""
        if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
            return []
        try:
            return [next(iter(output_layer(model)))]
        except ArchitectureError:  # a model without one
            return []

    def check_mergeable(self, adapter: str) -> None:
        modules = base_modules(self.model)
        layout = self.adapters.by_name[adapter].layout
        places = (p for s in layout.stacks if isinstance(s, Biases) for p in s.paths)
        homeless = [path for path in places if getattr(modules[path], "bias", None) is None]
        if homeless:
            raise AdapterError(
                f"this adapter cannot be merged: {len(homeless)} of its biases belong to modules "
                f"that have none to take them, {homeless[0]} for one; use unload() to get the base "
                "model back"
            )


def _has_bias(module: nn.Module) -> bool:
    """GPTQ and AWQ keep a bias as a buffer."""
    return isinstance(getattr(module, "bias", None), Tensor) and bias_shape(module) is not None

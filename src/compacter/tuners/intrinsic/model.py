"""The tuner of Intrinsic-SAID."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from compacter.errors import ArchitectureError, SettingError
from compacter.models import (
    READ_DIRECTLY,
    base_modules,
    check_not_quantised,
    outer_modules,
    target_at,
)
from compacter.nn import Fastfood
from compacter.tuners.intrinsic.config import IntrinsicSAIDConfig
from compacter.tuners.intrinsic.layer import IntrinsicLayer, MovedTensor, Moves
from compacter.tuners.plan import Plan, saved_whole_paths
from compacter.tuners.tuner import Tuner


class IntrinsicSAIDModel(Tuner):
    """One theta and one lambda per weight tensor move the whole model."""

    prefix = "intrinsic_said_"
    one_adapter_only = (
        "Intrinsic-SAID moves every weight of the model, so examples of different adapters have no "
        "computation in common; set one adapter for the whole batch with set_adapter()"
    )

    def plan(self, model: nn.Module, config: IntrinsicSAIDConfig) -> Plan:
        check_not_quantised(
            model,
            "Intrinsic-SAID moves every weight and needs a model that is not quantised; adapters "
            "and BitFit fit this one",
        )
        tensors = moved_tensors(model, config)
        count = len({tensor.name for moved in tensors.values() for tensor in moved.values()})
        if config.intrinsic_dim <= count:
            raise SettingError(
                f"intrinsic_dim={config.intrinsic_dim} is too small: {count} of it are lambdas, "
                f"one for each weight tensor of this model, so it must be at least {count + 1}"
            )
        plan = Plan(layers=dict.fromkeys(tensors, IntrinsicLayer))
        plan.whole = {"theta": ((config.intrinsic_dim - count,), 0.0), "lambda": ((count,), 1.0)}
        return plan

    def wrap_all(self, plan: Plan) -> None:
        super().wrap_all(plan)
        outer = outer_modules(self.model)
        for adapter, weights in self.adapters.by_name.items():
            config, known = self.peft_config[adapter], dict[str, Fastfood]()
            (dim,) = weights.layout.shapes["theta"]
            for path, tensors in moved_tensors(self.model, config).items():
                layer = outer[path]
                assert isinstance(layer, IntrinsicLayer)
                if adapter in layer.moves:
                    continue
                for name, tensor in tensors.items():
                    size = layer.base_layer.get_parameter(name).numel()
                    fastfood = Fastfood(dim, size, config.projection_seed, tensor.name)
                    known.setdefault(tensor.name, fastfood)
                projections = {name: known[tensor.name] for name, tensor in tensors.items()}
                layer.moves[adapter] = Moves(tensors, projections)

    def check_mergeable(self, adapter: str) -> None:
        """A sum of weights can always be merged."""


def moved_tensors(
    model: nn.Module, config: IntrinsicSAIDConfig
) -> dict[str, dict[str, MovedTensor]]:
    """Module path -> parameter name -> tensor, for all weights of the bare model.

    A tied tensor is one tensor, named after its first place. Lambdas are in the order of names,
    so that the order in which a model registers its modules is of no account."""
    elsewhere = saved_whole_paths(model, config.modules_to_save)
    places: dict[int, list[tuple[str, str]]] = {}
    for path, name, parameter in _weights(model):
        if path not in elsewhere and config.includes(path, target_at(path).index):
            places.setdefault(id(parameter), []).append((path, name))
    names = {key: ".".join(found[0]) for key, found in places.items()}
    order = {name: index for index, name in enumerate(sorted(names.values()))}
    tensors: dict[str, dict[str, MovedTensor]] = {}
    for key, found in places.items():
        for place in found:
            moved = MovedTensor(names[key], order[names[key]], owner=place == found[0])
            tensors.setdefault(place[0], {})[place[1]] = moved
    return tensors


def _weights(model: nn.Module) -> Iterator[tuple[str, str, nn.Parameter]]:
    """(module path, parameter name, parameter): the module is the one whose call uses it."""
    opaque: list[str] = []
    for path, module in base_modules(model).items():
        if any(path.startswith(f"{outer}.") for outer in opaque):
            continue
        is_opaque = isinstance(module, READ_DIRECTLY)
        if is_opaque:
            opaque.append(path)
        for name, parameter in module.named_parameters(recurse=is_opaque):
            _check_movable(path, name, module)
            yield path, name, parameter


def _check_movable(path: str, name: str, module: nn.Module) -> None:
    if not path or isinstance(module, (nn.ParameterList, nn.ParameterDict)):
        where = f"a {type(module).__name__} at {path!r}" if path else "the model itself"
        raise ArchitectureError(
            f"the parameter {name!r} belongs to {where}, which cannot be wrapped; Intrinsic-SAID "
            "moves every weight and does not fit this model"
        )

"""The tuner of Intrinsic-SAID."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from compacter.errors import ArchitectureError, SettingError
from compacter.models import READ_DIRECTLY, base_modules
from compacter.nn import Fastfood
from compacter.tuners.intrinsic.config import IntrinsicSAIDConfig
from compacter.tuners.intrinsic.layer import IntrinsicLayer, MovedTensor, Moves
from compacter.tuners.tuner import Plan, Tuner, saved_whole_paths


class IntrinsicSAIDModel(Tuner):
    """One theta and one lambda per weight tensor move the whole model."""

    prefix = "intrinsic_said_"
    shared_kinds = ("theta", "lambda")
    one_adapter_only = (
        "Intrinsic-SAID moves every weight of the model, so rows of different adapters have no "
        "computation in common; set one adapter for the whole batch with set_adapter()"
    )

    def plan(self, model: nn.Module, config: IntrinsicSAIDConfig) -> Plan:
        tensors = moved_tensors(model, config)
        count = len({tensor.name for moved in tensors.values() for tensor in moved.values()})
        if config.intrinsic_dim <= count:
            raise SettingError(
                f"intrinsic_dim={config.intrinsic_dim} is too small: {count} of it are lambdas, "
                f"one for each weight tensor of this model, so it must be at least {count + 1}"
            )
        self._tensors = tensors
        return Plan(
            layers=dict.fromkeys(tensors, IntrinsicLayer),
            shared={"theta": (config.intrinsic_dim - count,), "lambda": (count,)},
        )

    def shared_parameters(self, config: IntrinsicSAIDConfig, plan: Plan) -> dict[str, nn.Parameter]:
        return {
            "theta": nn.Parameter(torch.zeros(plan.shared["theta"])),
            "lambda": nn.Parameter(torch.ones(plan.shared["lambda"])),
        }

    def inject_adapter(
        self, model: nn.Module, adapter_name: str, *args: object, **kwargs: object
    ) -> None:
        super().inject_adapter(model, adapter_name, *args, **kwargs)
        seed = self.peft_config[adapter_name].projection_seed
        (dim,) = self._plan.shared["theta"]
        known: dict[str, Fastfood] = {}
        for path, tensors in self._tensors.items():
            layer = model.get_submodule(path)
            assert isinstance(layer, IntrinsicLayer)
            for name, tensor in tensors.items():
                size = layer.base_layer.get_parameter(name).numel()
                known.setdefault(tensor.name, Fastfood(dim, size, seed, tensor.name))
            projections = {name: known[tensor.name] for name, tensor in tensors.items()}
            layer.moves[adapter_name] = Moves(tensors, projections)

    def check_mergeable(self, adapter: str) -> None:
        """A sum of weights can always be merged."""


def moved_tensors(
    model: nn.Module, config: IntrinsicSAIDConfig
) -> dict[str, dict[str, MovedTensor]]:
    """Module path -> parameter name -> tensor, for all weights of the bare model.

    A tied tensor is one tensor, named after its first place. Lambdas are in the order of names,
    so that the order in which a model registers its modules is of no account."""
    elsewhere = saved_whole_paths(model, config)
    places: dict[int, list[tuple[str, str]]] = {}
    for path, name, parameter in _weights(model):
        if path not in elsewhere:
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
            _check_movable(path, name, module, parameter)
            yield path, name, parameter


def _check_movable(path: str, name: str, module: nn.Module, parameter: nn.Parameter) -> None:
    if not parameter.is_floating_point():
        raise ArchitectureError(
            f"{path}.{name} is stored as {parameter.dtype}; Intrinsic-SAID moves every weight and "
            "needs a model that is not quantised"
        )
    if not path or isinstance(module, (nn.ParameterList, nn.ParameterDict)):
        where = f"a {type(module).__name__} at {path!r}" if path else "the model itself"
        raise ArchitectureError(
            f"the parameter {name!r} belongs to {where}, which cannot be wrapped; Intrinsic-SAID "
            "moves every weight and does not fit this model"
        )

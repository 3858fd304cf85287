"""Loading many adapters.

PEFT walks through the whole model, the adapters in it included, a dozen times for each adapter that
it loads, so that the thousandth takes hundreds of times as long as the first. Here only the first
of all adapters with the same settings goes that way; the others are put beside it."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from typing import Any

from peft import PeftModel
from peft.utils import load_peft_weights
from peft.utils.other import ModulesToSaveWrapper
from torch import Tensor, nn

from compacter.errors import AdapterError
from compacter.tuners.config import AdapterConfig
from compacter.tuners.files import MODEL_PREFIX
from compacter.tuners.layers import SharedParameters
from compacter.tuners.names import check_adapter_name, parts_of_paths
from compacter.tuners.tuner import Plan, Tuner

NOT_SETTINGS = frozenset(
    {"base_model_name_or_path", "revision", "inference_mode", "peft_version", "tensor_digest"}
)
"""Fields of a configuration in which adapters of the same settings can differ."""


def load_adapters(model: PeftModel, adapters: Mapping[str, str | os.PathLike[str]]) -> None:
    """Load adapters, name -> folder or hub repository, beside those that the model has. All are
    frozen, and the active adapter stays active.

    As `model.load_adapter` for each of them, which also puts the model in evaluation mode, but in a
    time that does not grow with their number. All files are checked before the model is changed."""
    tuner = getattr(model, "base_model", None)
    if not isinstance(tuner, Tuner):
        raise AdapterError(
            f"adapters can be loaded beside others of this package; found a {type(model).__name__} "
            "without any: load the first with PeftModel.from_pretrained"
        )
    configs = _check(tuner, adapters)
    alike: dict[str, str] = {_settings(c): name for name, c in tuner.peft_config.items()}
    for name, config in configs.items():
        folder = os.fspath(adapters[name])
        sibling = alike.setdefault(_settings(config), name)
        if sibling == name:
            model.load_adapter(folder, adapter_name=name)
        else:
            _add_beside(tuner, sibling, name, config, load_peft_weights(folder, device="cpu"))
    model.eval()


def _check(
    tuner: Tuner, adapters: Mapping[str, str | os.PathLike[str]]
) -> dict[str, AdapterConfig]:
    """The adapters' configurations, after all checks of names and files."""
    config_cls = type(next(iter(tuner.peft_config.values())))
    parts = parts_of_paths(tuner.model)
    plans: dict[str, Plan] = {}
    configs: dict[str, AdapterConfig] = {}
    for name, folder in adapters.items():
        if name in tuner.peft_config:
            raise AdapterError(
                f"the model has an adapter called {name!r} already; choose another name, or "
                "delete_adapter() it first"
            )
        check_adapter_name(name, parts, tuner.prefix)
        config = config_cls.from_pretrained(os.fspath(folder))
        config.inference_mode = True
        settings = _settings(config)
        if settings not in plans:
            plans[settings] = tuner.plan(tuner.model, config)
        tuner.check_stored(plans[settings], tuner.model, config)
        configs[name] = config
    return configs


def _settings(config: AdapterConfig) -> str:
    fields = {k: v for k, v in config.to_dict().items() if k not in NOT_SETTINGS}
    return json.dumps(fields, sort_keys=True, default=str)


def _add_beside(
    tuner: Tuner, sibling: str, name: str, config: AdapterConfig, tensors: dict[str, Tensor]
) -> None:
    """An adapter with everything that its sibling has, and its own tensors."""
    for path, place in tuner.places.items():
        if isinstance(place, ModulesToSaveWrapper):
            modules = place.modules_to_save
            if sibling in modules:
                modules[name] = _like(modules[sibling], f"{MODEL_PREFIX}{path}", tensors)
                place._adapters.add(name)
            continue
        for attribute in place.adapter_layer_names:
            entries = getattr(place, attribute)
            if sibling in entries:
                key = f"{MODEL_PREFIX}{path}.{attribute}"
                entries[name] = _like(entries[sibling], key, tensors)
        for attribute in place.other_param_names:
            entries = getattr(place, attribute)
            if sibling in entries:
                entries[name] = entries[sibling]
        if isinstance(place, SharedParameters):
            place.adapters[name] = None
    tuner.peft_config[name] = config


def _like(original: nn.Module | Tensor, prefix: str, tensors: Mapping[str, Tensor]) -> Any:
    """A frozen parameter, or a module with parameters and buffers, like another one."""

    def value(like: Tensor, name: str) -> Tensor:
        return tensors[name].to(like.device, like.dtype, copy=True)

    if isinstance(original, Tensor):
        return nn.Parameter(value(original, prefix), requires_grad=False)
    memo: dict[int, Any] = {}
    for name, parameter in original.named_parameters():
        memo[id(parameter)] = nn.Parameter(
            value(parameter, f"{prefix}.{name}"), requires_grad=False
        )
    for name, buffer in original.named_buffers():
        if f"{prefix}.{name}" in tensors:
            memo[id(buffer)] = value(buffer, f"{prefix}.{name}")
    return copy.deepcopy(original, memo)

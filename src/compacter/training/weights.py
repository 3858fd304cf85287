"""The weights of a run, put back where they were trained. What would answer with weights that were
never trained, or that are no numbers, is refused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from peft import PeftConfig, get_peft_model
from peft.utils import CONFIG_NAME as ADAPTER_CONFIG
from peft.utils import (
    SAFETENSORS_WEIGHTS_NAME,
    get_peft_model_state_dict,
    set_peft_model_state_dict,
)
from safetensors.torch import load_file
from torch import Tensor, nn

from compacter.errors import CompacterError, TrainingError
from compacter.methods import Method
from compacter.methods.attach import CONFIG_CLASSES, settings_of
from compacter.training.recipe import METHOD_SETTINGS
from compacter.tuners.files import read_shapes
from compacter.tuners.plan import check_shapes, shapes_of

_PEFT_NAMES = {"num_tokens": "num_virtual_tokens"}

_ONLY_AT_START = ("init",)  # of a prompt; nothing of it is in what was trained


def load_adapter(
    model: nn.Module,
    folder: Path,
    method: Method,
    settings: Mapping[str, Any],
    new_heads: Iterable[str],
) -> nn.Module:
    """The model with the adapter in a folder, which must be one of the method with these settings,
    and bring the heads that the model has no weights for."""
    config = _read_config(folder, method)
    _check_settings(config, folder, method, settings)
    lacking = [name for name in new_heads if name not in (config.modules_to_save or ())]
    if lacking:
        raise TrainingError(
            f"the base model has no weights for {', '.join(lacking)}, nor has the adapter in "
            f"{str(folder)!r}; expected the base model that the adapter was trained on"
        )
    stored = read_shapes(str(folder), None, {})
    if stored is None:
        raise TrainingError(f"{str(folder)!r} holds no {SAFETENSORS_WEIGHTS_NAME}")
    adapted: nn.Module = get_peft_model(model, config)
    state = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    check_shapes(shapes_of(state), stored, str(folder))
    tensors = load_file(folder / SAFETENSORS_WEIGHTS_NAME)
    check_finite(tensors, folder)
    set_peft_model_state_dict(adapted, tensors)
    return adapted


def check_finite(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Refuse weights that are no numbers: nor are the answers that they give."""
    for name, tensor in tensors.items():
        wrong = int(tensor.isfinite().logical_not().sum())
        if wrong:
            raise TrainingError(
                f"the weights in {str(folder)!r} cannot be used: {wrong} of {tensor.numel()} "
                f"numbers of {name} are NaN or infinite, as a run that diverges leaves them; "
                "expected finite numbers"
            )


def used_settings(config: PeftConfig, method: Method) -> dict[str, Any]:
    """The method's settings as they are in an adapter."""
    known = settings_of(method)
    names = {name: _PEFT_NAMES.get(name, name) for name in METHOD_SETTINGS if name in known}
    return {name: getattr(config, own) for name, own in names.items() if hasattr(config, own)}


def _read_config(folder: Path, method: Method) -> PeftConfig:
    """The adapter's configuration, if the adapter is of the method's type."""
    path, config_cls = folder / ADAPTER_CONFIG, CONFIG_CLASSES[method.family]
    wanted = config_cls().peft_type.value
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["peft_type"]
        config = config_cls.from_pretrained(str(folder)) if found == wanted else None
    except CompacterError:
        raise
    except FileNotFoundError:
        raise TrainingError(f"{str(folder)!r} holds no {ADAPTER_CONFIG}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(
            f"{str(path)!r} is not the configuration of an adapter ({error})"
        ) from None
    if config is None:
        raise TrainingError(
            f"the adapter in {str(folder)!r} is of the type {found!r}, and the run trained "
            f"{method.name}; expected the type {wanted!r}"
        )
    config.inference_mode = True
    config.base_model_name_or_path = None  # where it was then; PEFT warns that it has moved
    return config


def _check_settings(
    config: PeftConfig, folder: Path, method: Method, settings: Mapping[str, Any]
) -> None:
    """Refuse an adapter of another method of the same type, or with other settings."""
    wanted = {k: v for k, v in {**method.settings, **settings}.items() if k not in _ONLY_AT_START}
    for name, value in wanted.items():
        found = getattr(config, _PEFT_NAMES.get(name, name), None)
        if _plain(found) != _plain(value):
            raise TrainingError(
                f"the adapter in {str(folder)!r} has {name}={_plain(found)!r}, and the run trained "
                f"{method.name} with {name}={_plain(value)!r}; expected the adapter of the run"
            )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value

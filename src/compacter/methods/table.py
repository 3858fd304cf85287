"""The twelve methods of the paper, with the paper's structural settings.

Learning rates and schedules depend on task and model and are not here. Reading this table does
not import torch."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from compacter.errors import MethodError

Family = Literal["full", "adapter", "prompt", "bitfit", "intrinsic"]


@dataclass(frozen=True)
class Method:
    """A method by its name in the paper."""

    name: str
    title: str
    family: Family
    trains: str
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """What makes this method this method, as fields of its configuration."""
    n_preference: tuple[int, ...] = ()
    """Values of n in order of preference; the first that divides the widths is the default."""


def _method(
    name: str,
    title: str,
    family: Family,
    trains: str,
    n_preference: tuple[int, ...] = (),
    **settings: Any,
) -> Method:
    return Method(name, title, family, trains, MappingProxyType(settings), n_preference)


FEED_FORWARD = ("feed_forward",)
ATTENTION = ("attention",)

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        method.name: method
        for method in (
            _method("full", "Full fine-tuning", "full", "every parameter of the model"),
            _method(
                "adapter",
                "Adapter",
                "adapter",
                "dense adapters after attention and feed-forward, and the layer norms",
                projection="dense",
            ),
            _method(
                "pfeiffer-adapter",
                "Pfeiffer-Adapter",
                "adapter",
                "dense adapters after attention, and the layer norms",
                projection="dense",
                positions=ATTENTION,
            ),
            _method(
                "adapter-drop",
                "AdapterDrop",
                "adapter",
                "dense adapters in all but the first five layers of each stack, and the "
                "layer norms",
                projection="dense",
                drop_layers=5,
            ),
            _method(
                "adapter-lowrank",
                "Adapter-LowRank",
                "adapter",
                "adapters of rank one after attention and feed-forward, and the layer norms",
                projection="low-rank",
            ),
            _method(
                "prompt-tuning-r",
                "Prompt Tuning-R",
                "prompt",
                "100 prompt vectors before the input, started at random",
                init="random",
            ),
            _method(
                "prompt-tuning-t",
                "Prompt Tuning-T",
                "prompt",
                "100 prompt vectors before the input, started from token embeddings",
                init="tokens",
            ),
            _method(
                "intrinsic-said",
                "Intrinsic-SAID",
                "intrinsic",
                "20,000 numbers that move every weight along random directions",
                intrinsic_dim=20_000,
            ),
            _method(
                "bitfit",
                "BitFit",
                "bitfit",
                "biases (added where the model has none)",
            ),
            _method(
                "phm-adapter",
                "PHM-Adapter",
                "adapter",
                "adapters W = sum A_i (x) B_i after attention and feed-forward, and the "
                "layer norms",
                (12, 4),
                projection="phm",
                share_A=False,
            ),
            _method(
                "compacter",
                "Compacter",
                "adapter",
                "adapters W = sum A_i (x) s_i t_i with A shared by all layers, after attention and "
                "feed-forward, and the layer norms",
                (4,),
                projection="lphm",
                share_A=True,
            ),
            _method(
                "compacter++",
                "Compacter++",
                "adapter",
                "as Compacter, after feed-forward only",
                (4,),
                projection="lphm",
                share_A=True,
                positions=FEED_FORWARD,
            ),
        )
    }
)


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "COMPACTER": "adapter",
        "BITFIT": "bitfit",
        "INTRINSIC_SAID": "intrinsic",
        "PROMPT_TUNING": "prompt",
    }
)
"""The type of an adapter in PEFT -> the family of its methods."""

DEFAULTS: Mapping[Family, Mapping[str, Any]] = MappingProxyType(
    {
        "adapter": {
            "projection": "lphm",
            "rank": 1,
            "share_A": True,
            "positions": ATTENTION + FEED_FORWARD,
            "drop_layers": 0,
            "use_bias": True,
            "activation": "gelu_new",
            "train_layer_norms": True,
            "tune_output_layer": False,
        },
        "bitfit": {"biases": "auto", "tune_output_layer": False},
        "intrinsic": {"projection_seed": 0},
    }
)
"""Settings that are not None where neither method nor user sets them. n and bottleneck are left
out, as they follow from the model. The configurations of the tuners have the same defaults, which a
test checks: reading those would import torch."""

NOT_SETTINGS = frozenset(
    {"format_version", "places", "peft_type", "auto_mapping", "peft_version"}
    | {"base_model_name_or_path", "revision", "inference_mode"}
)
"""Fields of a configuration that nobody sets."""

_IDLE: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "dense": frozenset({"n", "rank", "share_A", "A_std"}),
        "low-rank": frozenset({"n", "share_A", "A_std"}),
        "phm": frozenset({"rank"}),
    }
)


def idle_settings(settings: Mapping[str, Any]) -> frozenset[str]:
    """Settings that exist but do nothing for the projection: giving one is a mistake."""
    return _IDLE.get(settings.get("projection", ""), frozenset())


def changed_settings(method: Method, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that are not the method's own; n and bottleneck always."""
    own = {**DEFAULTS.get(method.family, {}), **method.settings}
    named = {k: v for k, v in settings.items() if k not in NOT_SETTINGS | idle_settings(settings)}
    return {k: v for k, v in named.items() if _in_order(v) != _in_order(own.get(k))}


def nearest_methods(family: Family, settings: Mapping[str, Any]) -> tuple[bool, list[Method]]:
    """Whether settings are those of a method, and the methods that come nearest: several where
    they come equally near."""
    methods = [method for method in METHODS.values() if method.family == family]
    telling = {name for method in methods for name in method.settings}

    def distance(method: Method) -> tuple[bool, int]:
        own = {**DEFAULTS.get(family, {}), **method.settings}
        changed = changed_settings(method, settings)
        others = [
            name
            for name in telling & changed.keys()
            if not (isinstance(own.get(name), int) and bool(changed[name]) == bool(own[name]))
        ]  # AdapterDrop may drop any number of layers, but not none
        return "projection" in others, len(others)

    least = min(map(distance, methods))
    return least == (False, 0), [method for method in methods if distance(method) == least]


def _in_order(value: Any) -> Any:
    return sorted(value) if isinstance(value, list | tuple) else value


def find_method(name: str) -> Method:
    """The method of that name, or an error with the nearest right one."""
    if name in METHODS:
        return METHODS[name]
    near = difflib.get_close_matches(str(name).lower(), METHODS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(METHODS)}"
    raise MethodError(f"there is no method {name!r}; {hint}")

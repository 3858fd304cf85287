"""Our methods as PEFT's tests take them: a configuration's class and its arguments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest
from peft import PeftConfig

from compacter import BitFitConfig, CompacterConfig, IntrinsicSAIDConfig


@dataclass(frozen=True)
class Method:
    name: str
    config_cls: type[PeftConfig]
    settings: dict[str, Any] = field(default_factory=dict)

    def arguments(self, **more: Any) -> dict[str, Any]:
        """Its settings and those of the others that it has."""
        names = {f.name for f in fields(self.config_cls)}
        if self.config_cls is IntrinsicSAIDConfig:
            names.discard("target_modules")  # it moves every weight
        return self.settings | {name: value for name, value in more.items() if name in names}

    def __call__(self, **more: Any) -> PeftConfig:
        return self.config_cls(**self.arguments(**more))

    def with_settings(self, suffix: str = "", **more: Any) -> Method:
        return replace(self, name=self.name + suffix, settings=self.settings | more)


def _bottleneck(name: str, **settings: Any) -> Method:
    return Method(name, CompacterConfig, {"n": 2, "bottleneck": 4, **settings})


METHODS = (
    _bottleneck("compacter"),
    _bottleneck("compacter++", positions=("feed_forward",)),
    _bottleneck("phm-adapter", projection="phm", share_A=False),
    _bottleneck("adapter-lowrank", projection="low-rank"),
    _bottleneck("adapter", projection="dense"),
    Method("bitfit", BitFitConfig),
    Method("intrinsic-said", IntrinsicSAIDConfig, {"intrinsic_dim": 200}),
)
BY_NAME = {method.name: method for method in METHODS}
WITH_OUTPUT_LAYER = tuple(
    BY_NAME[name].with_settings("+output", tune_output_layer=True)
    for name in ("compacter", "bitfit")
)
NAMES = sorted((m.name for m in (*METHODS, *WITH_OUTPUT_LAYER)), key=len, reverse=True)


def name_in(test_id: str) -> str:
    """The method that a test's id names, or an empty string."""
    return next((name for name in NAMES if f"-{name}-" in f"-{test_id}-"), "")


def transformers_configs(task_type: str | None, *, output_layer: bool = False) -> list[Any]:
    """PEFT's `config_cls,config_kwargs`."""
    methods = METHODS + (WITH_OUTPUT_LAYER if output_layer else ())
    return [
        pytest.param(m.config_cls, m.arguments(task_type=task_type), id=m.name) for m in methods
    ]


CUSTOM_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "one layer": ("MLP", {"target_modules": "lin0"}),
    "two layers": ("MLP", {"target_modules": ["lin0", "lin1"]}),
    "head": ("MLP", {"target_modules": ["lin0"], "modules_to_save": ["lin1"]}),
    "norms": ("MLP_LayerNorm", {"target_modules": ["lin0"]}),
    "embedding": ("EmbConv1D", {"target_modules": ["lin0"]}),
    "attention": ("MHA", {"target_modules": ["lin0"]}),
}
CONVOLUTIONS = ("Conv1d", "Conv2d", "Conv2dGroups", "Conv3d")  # without transformer blocks


def custom_cases() -> list[Any]:
    """PEFT's `test_name, model_id, config_cls, config_kwargs`."""
    return [
        pytest.param(where, model, m.config_cls, m.arguments(**more), id=f"{m.name}-{where}")
        for m, where, model, more in _custom()
    ]


def _custom() -> Iterator[tuple[Method, str, str, dict[str, Any]]]:
    for method in METHODS:
        for where, (model, more) in CUSTOM_MODELS.items():
            if "target_modules" in method.arguments(**more) or where != "one layer":
                yield method, where, model, more
        if method.config_cls is not CompacterConfig:  # whose adapters follow linear layers
            for model in CONVOLUTIONS:
                yield method, model, model, {"biases": "existing"}


def classes() -> list[Any]:
    """PEFT's `config_cls`, for tests that call it with modules to adapt."""
    return [pytest.param(method, id=method.name) for method in METHODS]


def pairs(first: dict[str, Any], second: dict[str, Any]) -> list[Any]:
    """PEFT's `test_name, config0, config1`."""
    return [pytest.param(m.name, m(**first), m(**second), id=m.name) for m in METHODS]

"""How many parameters a method trains, counted on the model itself.

A method is attached to a model without weights (on the meta device) and its parameters are
counted, so that the figure is what training would train, not a formula beside it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from peft import PeftModel
from peft.utils import ModulesToSaveWrapper
from torch import nn

from compacter.errors import CompacterError
from compacter.methods.attach import attach, default_bottleneck
from compacter.methods.table import METHODS, Method
from compacter.models import find_blocks, hidden_size
from compacter.nn import AdapterWeights, Norms
from compacter.tuners.layers import OUTPUT_NAMES
from compacter.tuners.tuner import Tuner

N_CHOICES = (4, 8, 12, 16)  # the paper's, {4, 8, 12} for T5-base and {4, 8, 16} for T5-small


@dataclass(frozen=True)
class Breakdown:
    """What the trained parameters of an adapter method are made of (Appendix B)."""

    layer_norms: int
    block_layer_norms: int
    """Without the final norm of each stack, as Appendix B counts."""
    biases: int
    weights: int
    slow_weights: int


@dataclass(frozen=True)
class Count:
    """The parameters of one method on one model."""

    method: str
    n: int | None
    bottleneck: int | None
    trainable: int
    head: int
    """Parameters of a task head that is trained beside the method, counted apart."""
    output_layer: int
    """Parameters of a tuned output layer, a part of `trainable`."""
    base: int
    breakdown: Breakdown | None

    @property
    def percent(self) -> float:
        return 100.0 * self.trainable / self.base

    def total_multiple(self, tasks: int) -> float:
        """Parameters for `tasks` tasks in multiples of the model: one model and an addition per
        task, or a model per task. As in the paper, an adapter's copies of the layer norms and of
        the output layer are not counted as additions."""
        if METHODS[self.method].family == "full":
            return float(tasks)
        norms = self.breakdown.layer_norms if self.breakdown else 0
        added = self.trainable - norms - self.output_layer
        return (tasks * added + self.base) / self.base


def count_all(model: nn.Module, left_out: dict[str, str] | None = None) -> Iterator[Count]:
    """Every method with the paper's settings, those with an n for each n that fits. Methods that
    do not fit the model (no prompt for images, too few layers to drop five) are left out, for a
    reason that is put into `left_out`."""
    width = hidden_size(model)
    bottleneck = default_bottleneck(width)
    fitting = [n for n in N_CHOICES if width % n == 0 and bottleneck % n == 0]
    for method in METHODS.values():
        choices = [{"n": n} for n in _preferred_first(method, fitting)] or [{}]
        for settings in choices if method.n_preference else [{}]:
            try:
                yield count(model, method.name, **settings)
            except CompacterError as error:
                if left_out is not None:
                    left_out[method.name] = str(error)


def count(model: nn.Module, name: str, **settings: Any) -> Count:
    """Attach, count, and take the method off again."""
    base = sum(p.numel() for p in model.parameters())
    adapted = attach(model, name, **settings)
    try:
        config = adapted.peft_config["default"] if isinstance(adapted, PeftModel) else None
        trained = {n: p.numel() for n, p in adapted.named_parameters() if p.requires_grad}
        head = sum(k for n, k in trained.items() if ".modules_to_save." in n)
        return Count(
            method=name,
            n=config.n if METHODS[name].n_preference and config is not None else None,
            bottleneck=getattr(config, "bottleneck", None),
            trainable=sum(trained.values()) - head,
            head=head,
            output_layer=_output_layer(adapted),
            base=base,
            breakdown=_breakdown(adapted) if METHODS[name].family == "adapter" else None,
        )
    finally:
        if isinstance(adapted, PeftModel):
            _take_off(adapted)


def _take_off(adapted: PeftModel) -> None:
    """As `unload`, also for prompts, beside which PEFT wraps a task head and leaves it so."""
    if not adapted.active_peft_config.is_prompt_learning:
        adapted.unload()
        return
    model = adapted.get_base_model()
    for path, module in list(model.named_modules()):
        if isinstance(module, ModulesToSaveWrapper):
            parent, _, child = path.rpartition(".")
            setattr(model.get_submodule(parent), child, module.original_module)


@dataclass(frozen=True)
class Formulas:
    """Section 4: parameters of the adapters alone, without biases, for adapters after attention
    and feed-forward in L layers (encoder and decoder together)."""

    k: int
    d: int
    n: int
    layers: int

    @property
    def adapter(self) -> int:
        return 2 * self.layers * (2 * self.k * self.d)

    @property
    def phm_adapter(self) -> int:
        return 4 * self.layers * (self.k * self.d // self.n + self.n**3)

    @property
    def compacter(self) -> int:
        return 4 * self.layers * (self.k + self.d) + self.n**3

    @property
    def phm_saves(self) -> bool:
        """kd > n^4: then kd/n dominates n^3 in a PHM layer."""
        return self.k * self.d > self.n**4


def formulas(model: nn.Module) -> list[Formulas]:
    """Section 4 for this model and every n that fits."""
    width = hidden_size(model)
    bottleneck = default_bottleneck(width)
    layers = len(find_blocks(model, positions=()))
    return [
        Formulas(width, bottleneck, n, layers)
        for n in N_CHOICES
        if width % n == 0 and bottleneck % n == 0
    ]


def _weights(adapted: nn.Module) -> AdapterWeights | None:
    """The adapter, where the method is a tuner of this package."""
    tuner = getattr(adapted, "base_model", None)
    return tuner.adapters.by_name["default"] if isinstance(tuner, Tuner) else None


def _output_layer(adapted: nn.Module) -> int:
    weights = _weights(adapted)
    shapes = {} if weights is None else weights.layout.shapes
    return sum(math.prod(shapes[name]) for name in OUTPUT_NAMES.values() if name in shapes)


def _breakdown(adapted: nn.Module) -> Breakdown:
    weights = _weights(adapted)
    assert weights is not None
    numbers: Counter[str] = Counter()
    shapes = weights.layout.shapes
    for name, kind in weights.layout.kinds().items():
        numbers[kind] += math.prod(shapes[name])
    in_blocks = tuple(f"{block.path}." for block in find_blocks(adapted, positions=()))
    block_norms = sum(
        len([path for path in stack.paths if path.startswith(in_blocks)])
        * sum(math.prod(shape) for _, shape in stack.parameters)
        for stack in weights.layout.stacks
        if isinstance(stack, Norms)
    )
    return Breakdown(
        layer_norms=numbers["norm"],
        block_layer_norms=block_norms,
        biases=numbers["bias"],
        weights=numbers["fast"],
        slow_weights=numbers["slow"],
    )


def _preferred_first(method: Method, fitting: list[int]) -> list[int]:
    preferred = [n for n in method.n_preference if n in fitting][:1]
    return preferred + [n for n in fitting if n not in preferred]

"""Measuring every method on one model."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from compacter.bench.memory import Memory, MemoryLine, count_step, optimizer_bytes, tensor_bytes
from compacter.bench.report import REFERENCE, Report, Row
from compacter.bench.timing import take_turns
from compacter.bench.work import (
    adapted_copy,
    check_measurable,
    check_positions,
    decoding,
    make_inputs,
    make_optimizer,
    training_step,
)
from compacter.errors import BenchError, CompacterError
from compacter.methods import METHODS, find_method
from compacter.methods.attach import DEFAULT_NUM_TOKENS, settings_of
from compacter.methods.counting import Count, count
from compacter.models import random_model, skeleton
from compacter.tasks import find_task, training_rows

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "table3": MappingProxyType(
            {
                "model": "t5-base",
                "task": "mnli",
                "memory_budget": 24 * 10**9,
                "settings": {"bottleneck": 24, "n": 4, "num_tokens": 100, "intrinsic_dim": 1_400},
            }
        )
    }
)
"""Fields of BenchSettings. table3: the paper's, except for its batch, the largest that fits."""


@dataclass(frozen=True)
class BenchSettings:
    """What to measure, and how often."""

    model: str = "t5-small"
    methods: tuple[str, ...] = ()
    """None named: all that fit the model. Full fine-tuning is always measured, to compare with."""
    batch: int = 8
    length: int = 128
    target_length: int = 4
    new_tokens: int = 20
    rounds: int = 5
    task: str = "mnli"
    memory_budget: int = 24 * 10**9
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the methods; each gets those that it has."""
    head: str | None = None
    device: str | None = None
    """None: an accelerator where there is one."""

    def __post_init__(self) -> None:
        for name in ("batch", "length", "target_length", "new_tokens", "rounds"):
            if getattr(self, name) < 1:
                raise BenchError(
                    f"{name}={getattr(self, name)} does not fit; expected a whole number from 1"
                )
        for method in self.methods:
            find_method(method)
        find_task(self.task)

    def of_method(self, name: str) -> dict[str, Any]:
        """The settings that a method has among those given."""
        known = settings_of(find_method(name))
        return {key: value for key, value in self.settings.items() if key in known}

    @property
    def names(self) -> tuple[str, ...]:
        chosen = self.methods or tuple(METHODS)
        return (REFERENCE, *(name for name in METHODS if name in chosen and name != REFERENCE))


@dataclass
class _Subject:
    """A method that is being measured."""

    count: Count
    model: nn.Module
    optimizer: torch.optim.Optimizer
    memory: Memory
    line: MemoryLine
    cuda_peak: int | None


def measure(
    settings: BenchSettings, on_progress: Callable[[str], object] = lambda text: None
) -> Report:
    """Memory first, which is counted and takes no turns, then time."""
    bones = skeleton(settings.model, head=settings.head)
    check_measurable(bones, settings.model)
    check_positions(bones, settings.length, settings.target_length, settings.new_tokens)
    left_out: dict[str, str] = {}
    counts = _counts(bones, settings, left_out)
    bare = random_model(settings.model, head=settings.head).to(_device(settings.device))
    subjects: list[_Subject] = []
    for found in counts:
        on_progress(f"counting the memory of {found.method}")
        subjects.append(_subject(bare, found, settings))
    _check_budget(subjects, settings.memory_budget)
    steps = {
        s.count.method: training_step(s.model, s.optimizer, _inputs(s.model, settings))
        for s in subjects
    }
    wait = torch.accelerator.synchronize if _on_accelerator(bare) else lambda: None
    step_times = take_turns(
        steps,
        settings.rounds,
        wait=wait,
        on_round=lambda number: on_progress(
            f"timing steps, round {number + 1} of {settings.rounds}"
        ),
    )
    for subject in subjects:
        subject.optimizer.zero_grad(set_to_none=True)
        subject.model.eval()
    decodes = {
        s.count.method: decode
        for s in subjects
        if (decode := decoding(s.model, _inputs(s.model, settings), settings.new_tokens))
    }
    for decode in decodes.values():
        decode()  # what is set up once is not timed
    decode_times = take_turns(
        decodes,
        settings.rounds,
        wait=wait,
        on_round=lambda number: on_progress(
            f"timing decoding, round {number + 1} of {settings.rounds}"
        ),
    )
    return Report(
        model=settings.model,
        batch=settings.batch,
        length=settings.length,
        target_length=settings.target_length,
        new_tokens=settings.new_tokens,
        task=settings.task,
        task_rows=training_rows(find_task(settings.task)),
        memory_budget=settings.memory_budget,
        settings=dict(settings.settings),
        machine=_machine(bare),
        rows=[
            Row(
                count=s.count,
                memory=s.memory,
                line=s.line,
                step=step_times[s.count.method],
                decode=decode_times.get(s.count.method),
                cuda_peak=s.cuda_peak,
            )
            for s in subjects
        ],
        left_out=left_out,
    )


def _counts(bones: nn.Module, settings: BenchSettings, left_out: dict[str, str]) -> list[Count]:
    """The methods that fit the model, with their parameters. What was asked for by name must."""
    counts: list[Count] = []
    for name in settings.names:
        own = settings.of_method(name)
        try:
            if METHODS[name].family == "prompt":
                prompt = own.get("num_tokens", DEFAULT_NUM_TOKENS)
                lengths = (settings.length, settings.target_length, settings.new_tokens)
                check_positions(bones, *lengths, prompt)
            counts.append(count(bones, name, **own))
        except CompacterError as error:
            if name in settings.methods:
                raise
            left_out[name] = str(error)
    return counts


def _subject(bare: nn.Module, found: Count, settings: BenchSettings) -> _Subject:
    """Attach a method and count its memory, in steps that also warm it up."""
    model = adapted_copy(bare, found.method, settings.of_method(found.method))
    optimizer = make_optimizer(model)
    known: dict[int, Memory] = {}
    for batch in sorted({*line_batches(settings.batch), settings.batch}):
        known[batch] = count_step(model, _inputs(model, settings, batch), optimizer)
    totals = {batch: known[batch].total for batch in line_batches(settings.batch)}
    return _Subject(
        count=found,
        model=model,
        optimizer=optimizer,
        memory=known[settings.batch],
        line=MemoryLine.through(totals),
        cuda_peak=_cuda_peak(model, optimizer, _inputs(model, settings)),
    )


def line_batches(batch: int) -> tuple[int, int]:
    """The two batch sizes that tell all others; not 1, which some code treats as a case apart."""
    return (2, 4) if batch < 4 else (batch // 2, batch)


def _inputs(model: nn.Module, settings: BenchSettings, batch: int | None = None) -> Any:
    size = settings.batch if batch is None else batch
    return make_inputs(model, size, settings.length, settings.target_length)


def _cuda_peak(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Any) -> int | None:
    """The most that the allocator held in a step, without what belongs to other models."""
    if next(model.parameters()).device.type != "cuda":
        return None
    optimizer.zero_grad(set_to_none=True)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    training_step(model, optimizer, inputs)()
    risen = torch.cuda.max_memory_allocated() - before
    return risen + tensor_bytes(model) + optimizer_bytes(optimizer)


def _check_budget(subjects: list[_Subject], budget: int) -> None:
    if any(s.line.largest_batch(budget) for s in subjects):
        return
    least = min(subjects, key=lambda s: s.line.at(1))
    raise BenchError(
        f"no method fits a memory budget of {budget / 1e6:,.1f} MB: one row takes "
        f"{least.line.at(1) / 1e6:,.1f} MB with {least.count.method}, which takes least; expected "
        "a larger budget, a smaller model or a shorter length"
    )


def _device(name: str | None) -> torch.device:
    if name is None:
        found = (
            torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        )
        return found or torch.device("cpu")
    try:
        torch.zeros(1, device=name).item()  # "meta" has no numbers
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise BenchError(
            f"the device {name!r} cannot be used ({reason}); expected cpu, or cuda where there is "
            "one"
        ) from None


def _on_accelerator(model: nn.Module) -> bool:
    return next(model.parameters()).device.type != "cpu"


def _machine(model: nn.Module) -> dict[str, Any]:
    return {
        "device": str(next(model.parameters()).device),
        "threads": torch.get_num_threads(),
        "processor": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }

"""Where the time of a training step goes, beside one that trains the layer norms alone.

    python benchmarks/profile_step.py                                  # Compacter
    python benchmarks/profile_step.py --methods compacter,adapter,lora --batch 8 --length 128

The steps take turns under torch's profiler. Operators are told apart by the shapes of their inputs,
so that those which a method adds, and those which it does without, can be added up by themselves.
Their time is steadier than that of whole steps, most of which the frozen model's operators take:
these waver by more than all that is added. Time spent in Python between operators is not seen."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from textwrap import shorten

import torch
from torch.profiler import ProfilerActivity, profile

from compacter.bench.work import make_inputs, make_optimizer, training_step
from compacter.models import random_model
from subjects import make

REFERENCE = "layer norms"


@dataclass(frozen=True)
class Operator:
    """All calls of an operator with inputs of certain shapes, in one step."""

    name: str
    shapes: str
    milliseconds: float
    """In the operator itself, not in those that it calls: the median over the steps."""
    calls: int


Operators = dict[tuple[str, str], Operator]


def profiled(steps: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Operators]:
    """The operators of each step."""
    times: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    calls: dict[tuple[str, str, str], int] = {}
    for step in steps.values():
        step()
    for _ in range(rounds):
        for of, step in steps.items():
            with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
                step()
            for event in found.key_averages(group_by_input_shape=True):
                key = (of, event.key, shapes(event.input_shapes))
                times[key].append(event.self_cpu_time_total / 1e3)
                calls[key] = event.count
    result: dict[str, Operators] = {of: {} for of in steps}
    for key, each in times.items():
        of, name, inputs = key
        result[of][name, inputs] = Operator(name, inputs, median(each), calls[key])
    return result


def shapes(sizes: list[list[int]]) -> str:
    """As in `1024x512, 512x16`."""
    return ", ".join("x".join(map(str, size)) for size in sizes if size)


def added(operators: Operators, reference: Operators) -> list[Operator]:
    """What a step has beyond another, the longest first: of operators that both have with the same
    shapes, the calls that are more."""
    found = []
    for key, operator in operators.items():
        more = operator.calls - (reference[key].calls if key in reference else 0)
        if more > 0:
            time = operator.milliseconds * more / operator.calls
            found.append(Operator(operator.name, operator.shapes, time, more))
    return sorted(found, key=lambda operator: -operator.milliseconds)


def total(operators: Iterable[Operator]) -> float:
    return sum(operator.milliseconds for operator in operators)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--methods", default="compacter", help="names with commas between them")
    parser.add_argument("--model", default="t5-small")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15, help="steps of each that are profiled")
    parser.add_argument("--rows", type=int, default=12, help="operators to show")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    bare = random_model(arguments.model)
    steps = {}
    for name in (REFERENCE, *arguments.methods.split(",")):
        model = make(bare, name)
        inputs = make_inputs(model, arguments.batch, arguments.length, 4)
        steps[name] = training_step(model, make_optimizer(model), inputs)
    found = profiled(steps, arguments.rounds)
    reference = found.pop(REFERENCE)
    whole = total(reference.values())
    print(f"{REFERENCE}: {whole:.1f} ms")
    for name, operators in found.items():
        more, fewer = added(operators, reference), added(reference, operators)
        time = total(more) - total(fewer)
        print(f"\n{name}: {total(operators.values()):.1f} ms, {time:+.1f} ms, {time / whole:+.2%}")
        for sign, some in (("+", more), ("-", fewer)):
            print(f"{sign} {total(some):.1f} ms")
            print(f"{'ms':>8} {'calls':>6}  operator")
            for operator in some[: arguments.rows]:
                what = f"{operator.name} {operator.shapes}"
                print(f"{operator.milliseconds:8.2f} {operator.calls:6}  {shorten(what, 80)}")


if __name__ == "__main__":
    main()

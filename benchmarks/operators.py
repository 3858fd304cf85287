"""What the operators of a step take, beside those of another.

Operators are told apart by the shapes of their inputs, so that those which a method adds, and those
which it does without, can be added up by themselves. Their time is steadier than that of whole
steps, most of which the frozen model's operators take: these waver by more than all that is added.
Time spent in Python between operators is not seen, and the profiler's own time is in it, which
grows with the number of calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from torch.profiler import ProfilerActivity, profile


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


def net(operators: Operators, reference: Operators) -> float:
    """Milliseconds of what a step has beyond another, less what it does without."""
    return total(added(operators, reference)) - total(added(reference, operators))

"""Where the time of a training step goes: operators of a method beside those of a step that trains
the layer norms alone.

    python benchmarks/profile_step.py --method compacter --model t5-small --batch 8 --length 128"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from compacter.bench.work import make_inputs, make_optimizer, training_step
from compacter.models import random_model
from subjects import make

REFERENCE = "layer norms"


def operators(step: Callable[[], object], rounds: int) -> dict[str, tuple[float, float]]:
    """Name -> milliseconds in the operator itself and calls, for one step."""
    step()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(rounds):
            step()
    return {
        event.key: (event.self_cpu_time_total / 1e3 / rounds, event.count / rounds)
        for event in found.key_averages()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--method", default="compacter")
    parser.add_argument("--model", default="t5-small")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=20, help="operators to show")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    bare = random_model(arguments.model)
    found = {}
    for name in (REFERENCE, arguments.method):
        model = make(bare, name)
        inputs = make_inputs(model, arguments.batch, arguments.length, 4)
        step = training_step(model, make_optimizer(model), inputs)
        found[name] = operators(step, arguments.rounds)
    before, after = found[REFERENCE], found[arguments.method]
    total = {name: sum(ms for ms, _ in rows.values()) for name, rows in found.items()}
    print(f"{arguments.method}: {total[arguments.method]:.1f} ms, {REFERENCE}: ", end="")
    print(f"{total[REFERENCE]:.1f} ms; operators by the difference")
    print(f"{'difference':>10} {'ms':>8} {'calls':>7} {'more':>6}  operator")
    zero = (0.0, 0.0)

    def difference(name: str) -> float:
        return after.get(name, zero)[0] - before.get(name, zero)[0]

    for name in sorted({*before, *after}, key=difference, reverse=True)[: arguments.rows]:
        ms, calls = after.get(name, zero)
        more = calls - before.get(name, zero)[1]
        print(f"{difference(name):+10.2f} {ms:8.2f} {calls:7.0f} {more:+6.0f}  {name}")


if __name__ == "__main__":
    main()

"""Where the time of a training step goes, beside one that trains the layer norms alone.

    python benchmarks/profile_step.py                                  # Compacter
    python benchmarks/profile_step.py --methods compacter,adapter,lora --batch 8 --length 128

The steps take turns under torch's profiler; operators.py says what is added up."""

from __future__ import annotations

import argparse
from textwrap import shorten

import torch

from compacter.bench.work import make_inputs, make_optimizer, training_step
from compacter.models import random_model
from operators import added, net, profiled, total
from subjects import make

REFERENCE = "layer norms"


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
        time = net(operators, reference)
        print(f"\n{name}: {total(operators.values()):.1f} ms, {time:+.1f} ms, {time / whole:+.2%}")
        for sign, some in (("+", more), ("-", fewer)):
            print(f"{sign} {total(some):.1f} ms")
            print(f"{'ms':>8} {'calls':>6}  operator")
            for operator in some[: arguments.rows]:
                what = f"{operator.name} {operator.shapes}"
                print(f"{operator.milliseconds:8.2f} {operator.calls:6}  {shorten(what, 80)}")


if __name__ == "__main__":
    main()

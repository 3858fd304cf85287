"""The Compacter of `adapters`, in an environment of its own."""

from __future__ import annotations

import adapters
from adapters import CompacterConfig
from adapters.composition import BatchSplit
from plain import REFERENCE, Order, answer, compare, decoding, forward_pass, training_step
from torch import nn


def adapted(order: Order, name: str, count: int = 1) -> nn.Module:
    """With the paper's bottleneck, k / 32, which is also their default."""
    model = order.bare(name)
    adapters.init(model)
    for index in range(count):
        model.add_adapter(f"task{index}", config=CompacterConfig(reduction_factor=32))
    model.train_adapter("task0")
    return model


def main() -> None:
    order = Order()
    figures = {}
    for label, rows, length in (("step 8 x 128", 8, 128), ("step 1 x 16", 1, 16)):
        works = {
            REFERENCE: training_step(order.norms_only("t5-small"), rows, length),
            "compacter": training_step(adapted(order, "t5-small"), rows, length),
        }
        figures[label] = compare(works, order.rounds[label])
    works = {
        REFERENCE: decoding(order.bare("t5-base")),
        "compacter": decoding(adapted(order, "t5-base")),
    }
    figures["decode"] = compare(works, order.rounds["decode"])
    rows = order.mixed_rows
    one, many = adapted(order, "t5-small", rows), adapted(order, "t5-small", rows)
    names = [f"task{index}" for index in range(rows)]
    many.set_active_adapters(BatchSplit(*names, batch_sizes=[1] * rows))
    works = {REFERENCE: forward_pass(one, rows), "mixed": forward_pass(many, rows)}
    figures["mixed"] = {"compacter": compare(works, order.rounds["mixed"])["mixed"]}
    answer(figures, "adapters")


main()

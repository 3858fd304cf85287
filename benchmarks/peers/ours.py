"""This package's methods and PEFT's LoRA, in the environment of this package."""

from __future__ import annotations

import copy

from peft import LoraConfig, PeftModel, get_peft_model
from plain import (
    REFERENCE,
    Order,
    Work,
    answer,
    compare,
    decoding,
    forward_pass,
    training_step,
)

import compacter

LORA_RANK = 8
OURS = ("compacter", "compacter++", "adapter")


def adapted(order: Order, model: str, method: str) -> PeftModel:
    bare = order.bare(model)
    if method == "lora":
        return get_peft_model(bare, LoraConfig(r=LORA_RANK, task_type="SEQ_2_SEQ_LM"))
    found = compacter.attach(bare, method)
    assert isinstance(found, PeftModel)
    return found


def mixed(order: Order, method: str) -> dict[str, Work]:
    """One adapter for all rows, and one for each."""
    rows = order.mixed_rows
    model = adapted(order, "t5-small", method)
    for index in range(1, rows):
        model.add_adapter(f"task{index}", copy.deepcopy(model.peft_config["default"]))
    names = ["default", *(f"task{index}" for index in range(1, rows))]
    return {
        REFERENCE: forward_pass(model, rows),
        "mixed": forward_pass(model, rows, adapter_names=names),
    }


def main() -> None:
    order = Order()
    figures = {}
    for label, rows, length in (("step 8 x 128", 8, 128), ("step 1 x 16", 1, 16)):
        works = {REFERENCE: training_step(order.norms_only("t5-small"), rows, length)}
        for method in (*OURS, "lora"):
            works[method] = training_step(adapted(order, "t5-small", method), rows, length)
        figures[label] = compare(works, order.rounds[label])
    works = {REFERENCE: decoding(order.bare("t5-base"))}
    for method in (*OURS, "lora"):
        works[method] = decoding(adapted(order, "t5-base", method))
    figures["decode"] = compare(works, order.rounds["decode"])
    figures["mixed"] = {
        method: compare(mixed(order, method), order.rounds["mixed"])["mixed"]
        for method in ("compacter", "lora")
    }
    answer(figures, "peft")


main()

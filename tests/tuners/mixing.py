"""Models with several adapters, and their batches example by example."""

from __future__ import annotations

import torch
from peft import get_peft_model

import compacter
from adapting import SMALL_ENOUGH, logits
from tiny_models import TINY

BASE = "__base__"


def adapted(family, configs, base=None):
    """A model with an adapter for each configuration, each different from the others."""
    torch.manual_seed(1)
    names = list(configs)
    model = get_peft_model(base or TINY[family](), configs[names[0]], adapter_name=names[0])
    for name in names[1:]:
        model.add_adapter(name, configs[name])
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if set(name.split(".")) & set(names):
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_((0.2 * noise).to(parameter.dtype))
    return model.eval()


def config_of(family, method, **settings):
    """The configuration by which a method is attached, for further adapters."""
    settings = {**SMALL_ENOUGH.get(method, {}), **settings}
    model = compacter.attach(TINY[family](), method, **settings)
    return lambda: type(model.peft_config["default"])(
        **{
            name: value
            for name, value in model.peft_config["default"].to_dict().items()
            if name not in ("peft_type", "auto_mapping", "peft_version", "tensor_digest")
        }
    )


def alone(model, name, run):
    if name == BASE:
        with model.disable_adapter():
            return run()
    model.set_adapter(name)
    return run()


def example(inputs, index):
    return {key: value[index : index + 1] for key, value in inputs.items()}


def check_examples(model, names, inputs, tolerance=1e-5):
    found = logits(model, **inputs, adapter_names=names)
    active = model.active_adapter
    for index, name in enumerate(names):
        one = example(inputs, index)
        expected = alone(model, name, lambda one=one: logits(model, **one))
        scale = max(1.0, expected.abs().max().item())
        difference = (found[index : index + 1] - expected).abs().max() / scale
        assert difference <= tolerance, (name, difference)
    model.set_adapter(active)

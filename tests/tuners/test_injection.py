"""`peft.inject_adapter_in_model`: adapters in a model that is no `PeftModel`."""

from __future__ import annotations

import pytest
import torch
from peft import get_peft_model_state_dict, inject_adapter_in_model, set_peft_model_state_dict

from adapting import inputs_of, logits, scramble
from tiny_models import TINY

INPUTS = inputs_of("t5")


def injected(config, compiled=False, **settings):
    torch.manual_seed(1)
    base = TINY["t5"]()
    model = torch.compile(base, backend="eager") if compiled else base
    return inject_adapter_in_model(config(), model, **settings).eval()


@pytest.mark.parametrize("compiled", [False, True])
def test_with_the_tensors_that_will_be_loaded(config, compiled):
    torch._dynamo.reset()
    source = injected(config)
    scramble(source, std=0.1)
    expected, tensors = logits(source, **INPUTS), get_peft_model_state_dict(source)
    model = injected(config, compiled, state_dict=tensors)
    before = logits(model, **INPUTS)
    assert not torch.allclose(before, expected)
    prefix = "_orig_mod." if compiled else ""
    set_peft_model_state_dict(model, {f"{prefix}{name}": t for name, t in tensors.items()})
    torch.testing.assert_close(logits(model, **INPUTS), expected)


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_reach_the_adapter_alone(config, compiled):
    torch._dynamo.reset()
    model = injected(config, compiled)
    scramble(model, std=0.1)
    model(**INPUTS).loss.backward()
    found = {name for name, p in model.named_parameters() if p.grad is not None}
    assert found
    assert all(".adapters." in f".{name}" for name in found)

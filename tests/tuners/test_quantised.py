"""Every method on quantised base models: bitsandbytes in 8 and 4 bits, torchao in 8 bits.

What an adapter does is compared with the same adapter on a base of plain float weights, those that
the quantised ones stand for. torchao computes with exactly these, and so does bitsandbytes in 4
bits, unless it computes in bfloat16, as on some CPUs in eval mode; in 8 bits it rounds the inputs
too. These two are compared more coarsely, against what the adapter changes."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel

import compacter
from adapting import ADAPTED_METHODS, SMALL_ENOUGH, TUNER_METHODS, logits, save, train
from quantised_models import (
    SCHEMES,
    batch_of,
    distance,
    gradients,
)

BASE = "__base__"
FAMILIES = ("t5", "llama")
METHODS = tuple(name for name in ADAPTED_METHODS if name != "intrinsic-said")
TUNERS = tuple(name for name in TUNER_METHODS if name != "intrinsic-said")

COARSE = 0.05
"""Of what adapters change: how far two ways to compute the same may be apart where inputs are
rounded, so that a change in the last bit can become one of a whole step."""

pytestmark = [
    pytest.mark.parametrize("family", FAMILIES),
    pytest.mark.parametrize("scheme", SCHEMES),
]


def attached(base, method, **settings):
    torch.manual_seed(1)
    return compacter.attach(base, method, **{**SMALL_ENOUGH.get(method, {}), **settings}).eval()


def tokens_alone(inputs):
    return {key: value for key, value in inputs.items() if key != "labels"}


def check_greedy(model, inputs, allowed, **names):
    """Every token that is generated has the highest logit in one pass over all of them, but for
    the rounding that is allowed."""
    prompt = tokens_alone(inputs)
    made = model.generate(**prompt, **names, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    if model.config.is_encoder_decoder:
        scores = logits(model, **prompt, **names, decoder_input_ids=made[:, :-1])
    else:
        scores = logits(model, input_ids=made, attention_mask=torch.ones_like(made), **names)
        scores = scores[:, :-1]
    scores = scores[:, -5:].clone()
    scores[..., model.config.eos_token_id] = -torch.inf
    chosen = scores.gather(2, made[:, -5:].unsqueeze(2)).squeeze(2)
    assert (scores.amax(2) - chosen).max() <= allowed
    return made


@pytest.mark.parametrize("method", METHODS)
def test_training_saving_loading_and_generating(bases, family, scheme, method, tmp_path):
    inputs = batch_of(family)
    model = attached(bases(family, scheme), method)
    start, first = logits(model, **inputs), model(**inputs).loss.item()
    found = gradients(model, inputs)
    assert all(gradient.isfinite().all() for gradient in found.values())
    assert any(gradient.any() for gradient in found.values())
    last = train(model, inputs, steps=4)
    assert last < first
    expected = logits(model, **inputs)
    changed = distance(expected, start)
    assert changed > 0.01
    with model.disable_adapter():
        assert torch.equal(logits(model, **inputs), logits(bases(family, scheme), **inputs))
    loaded = PeftModel.from_pretrained(bases(family, scheme), save(model, tmp_path)).eval()
    assert torch.equal(logits(loaded, **inputs), expected)
    check_greedy(loaded, inputs, allowed=1e-5 if scheme == "torchao" else COARSE * changed)


@pytest.mark.parametrize("method", TUNERS)
def test_as_on_a_base_of_the_same_weights(bases, family, scheme, method, tmp_path):
    inputs = batch_of(family)
    base = bases(family, scheme)
    without = logits(base, **inputs)
    model = attached(bases(family, scheme), method)
    plain = attached(bases.dequantised(family, scheme), method)
    exact = scheme != "int8"
    found, expected = gradients(model, inputs), gradients(plain, inputs)
    assert list(found) == list(expected)
    error = sum((found[name] - expected[name]).square().sum() for name in found).sqrt()
    size = sum(gradient.square().sum() for gradient in expected.values()).sqrt()
    assert error / size < (1e-4 if exact else COARSE)
    train(model, inputs, steps=4)
    plain.load_adapter(save(model, tmp_path), "trained")
    plain.set_adapter("trained")
    expected = logits(plain, **inputs)
    changed = distance(expected, without)
    assert changed > 0.1
    assert distance(logits(model, **inputs), expected) < (1e-5 if exact else COARSE) * changed


@pytest.mark.parametrize("method", TUNERS)
def test_a_mixed_batch_is_each_example_alone(bases, family, scheme, method, tmp_path):
    """On a base as transformers loads it."""
    inputs = batch_of(family, batch=4)
    model = attached(bases(family, scheme), method)
    train(model, inputs, steps=3)
    first = save(model, tmp_path / "first")
    train(model, {**inputs, "labels": inputs["labels"].flip(0)}, steps=3, lr=0.03)
    second = save(model, tmp_path / "second")
    model = PeftModel.from_pretrained(
        bases(family, scheme, as_it_is=True), first, adapter_name="first"
    )
    model.load_adapter(second, "second")
    model.eval()
    names = ["second", BASE, "first", "second"]
    with model.disable_adapter():
        outputs = {BASE: alone(model, inputs)}
    for name in ("first", "second"):
        model.set_adapter(name)
        outputs[name] = alone(model, inputs)
    expected = torch.stack([outputs[name][index] for index, name in enumerate(names)])
    between = min(
        distance(outputs[one][index], outputs[other][index])
        for index in range(4)
        for one, other in (("first", "second"), ("first", BASE), ("second", BASE))
    )
    assert between > 0.1
    allowed = 1e-5 if scheme == "torchao" else COARSE * between
    assert distance(logits(model, **inputs, adapter_names=names), expected) < allowed
    check_greedy(model, inputs, allowed, adapter_names=names)


def alone(model, inputs):
    """The logits of each example in a batch of its own."""
    rows = range(len(inputs["input_ids"]))
    return torch.cat(
        [logits(model, **{k: v[row : row + 1] for k, v in inputs.items()}) for row in rows]
    )

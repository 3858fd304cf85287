"""Several adapters on one model: each computes with its own weights, whenever it is switched."""

from __future__ import annotations

import torch
from peft import get_peft_model

from adapting import inputs_of, logits, scramble
from by_formula import (
    assert_as_by_formula,
    assert_same,
    compacted,
    expected_of,
    gradients_of,
    install,
    saved,
)
from compacter import BitFitConfig, CompacterConfig
from tiny_models import TINY

INPUTS = inputs_of("t5")


def base():
    return TINY["t5"]()


def expected(model):
    return expected_of(model, base(), INPUTS)


def two_adapters():
    model = compacted()
    model.add_adapter("second", CompacterConfig(bottleneck=12, n=2, rank=2, share_A=False))
    model.add_adapter("top", CompacterConfig(bottleneck=8, drop_layers=1))
    for name in ("second", "top"):
        model.set_adapter(name)
        scramble(model.double(), std=0.1)
    return model


def test_switching_between_passes():
    model = two_adapters()
    for name in ("second", "default", "top", "second", "default"):
        model.set_adapter(name)
        assert_as_by_formula(model, INPUTS, base())


def test_switching_between_forward_and_backward():
    """Both stay trained, so that both losses have gradients."""
    model = two_adapters()
    wanted = {}
    for name in ("default", "second"):
        model.set_adapter(name)
        wanted[name] = expected(model).gradients
    losses = []
    for name in ("default", "second"):
        model.set_adapter(name)
        for other in ("default", "second"):
            model.set_requires_grad(other, True)
        losses.append(model(**INPUTS).loss)
    for loss in losses:
        loss.backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    for name, gradient in wanted.items():
        own = {n.replace(f".{name}", ""): g for n, g in found.items() if f".{name}." in n}
        assert_same(own, gradient)


def test_switching_in_the_middle_of_a_pass():
    """Encoder by one adapter, decoder by another; as PEFT does it, what is not active is frozen."""
    model, bare = two_adapters(), base().double()
    with saved(model, "second") as folder:
        tensors = install(bare, folder)
    encoder = TINY["t5"]().double()
    with saved(model, "default") as folder:
        install(encoder, folder)
    encoded = encoder.encoder(input_ids=INPUTS["input_ids"]).last_hidden_state.detach()
    bare(encoder_outputs=(encoded,), labels=INPUTS["labels"]).loss.backward()
    model.set_adapter("default")
    decoder = model.get_base_model().decoder
    switch = decoder.register_forward_pre_hook(lambda *_: model.set_adapter("second"))
    model(**INPUTS).loss.backward()
    switch.remove()
    wanted = {n: torch.zeros_like(t) if t.grad is None else t.grad for n, t in tensors.items()}
    assert_same(gradients_of(model, "second"), wanted)
    assert not any(p.grad is not None for n, p in model.named_parameters() if ".default" in n)


def test_disabled_adapters_are_not_used():
    model = compacted()
    logits(model, **INPUTS)
    with model.disable_adapter():
        assert torch.equal(logits(model, **INPUTS), logits(base().double(), **INPUTS))
    assert_as_by_formula(model, INPUTS, base())


def test_bitfit_follows_changes_too():
    model = get_peft_model(base(), BitFitConfig()).double()
    scramble(model)
    logits(model, **INPUTS)
    for parameter in (p for p in model.parameters() if p.requires_grad):
        parameter.data.mul_(0.5)
    assert_as_by_formula(model, INPUTS, base())

"""What layers remember in a call of `generate`, and that nothing is remembered for too long."""

from __future__ import annotations

from threading import Thread

import pytest
import torch
from peft import get_peft_model
from transformers import LogitsProcessorList

from adapting import ADAPTER_METHODS, attach_tiny, inputs_of, scramble
from by_formula import SLOW, by_formula, compacted
from compacter import CompacterConfig
from compacter.tuners.bottleneck.layer import BottleneckLayer
from compacter.tuners.bottleneck.norm import NormLayer
from compacter.tuners.bottleneck.weights import Built
from compacter.tuners.layers import TunerLayer
from tiny_models import TINY

TOKENS = 6


def scores(model, judge=None, **settings):
    """Of every token that is written; `judge` is called between two of them."""

    def process(ids, found):
        judge(ids.shape[1])
        return found

    written = model.generate(
        input_ids=inputs_of("t5")["input_ids"],
        max_new_tokens=TOKENS,
        min_new_tokens=TOKENS,
        logits_processor=LogitsProcessorList([process] if judge else []),
        output_logits=True,
        return_dict_in_generate=True,
        **settings,
    )
    return torch.stack(written.logits)


def assert_as_by_formula(found, model):
    expected = scores(by_formula(model))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.fixture
def asked(monkeypatch):
    """How often layers asked whether their matrices can be used, and what their norm is."""
    count = {"matrices": 0, "norms": 0}
    take, forward_adapted = Built.take, NormLayer.forward_adapted

    def counted_take(built):
        count["matrices"] += 1
        return take(built)

    def counted_forward(layer, *args, **kwargs):
        count["norms"] += 1
        return forward_adapted(layer, *args, **kwargs)

    monkeypatch.setattr(Built, "take", counted_take)
    monkeypatch.setattr(NormLayer, "forward_adapted", counted_forward)
    return count


def test_from_the_third_token_on_nothing_is_asked(asked):
    model = compacted()
    layers = list(model.get_base_model().decoder.modules())
    adapters = sum(isinstance(layer, BottleneckLayer) for layer in layers)
    norms = sum(isinstance(layer, NormLayer) for layer in layers)
    found = {}
    for tokens in (1, 2, 3, 20):
        for kind in asked:
            asked[kind] = 0
        model.generate(
            input_ids=inputs_of("t5")["input_ids"], max_new_tokens=tokens, min_new_tokens=tokens
        )
        found[tokens] = dict(asked)
    assert found[2]["norms"] - found[1]["norms"] == norms
    assert found[2]["matrices"] >= found[1]["matrices"] + adapters - 1
    assert found[3] == found[2]
    assert found[20] == found[2]


def assert_same_without(monkeypatch, model, **settings):
    found = scores(model, **settings)
    monkeypatch.setattr(BottleneckLayer, "shortcut", TunerLayer.shortcut)
    monkeypatch.setattr(NormLayer, "shortcut", TunerLayer.shortcut)
    assert torch.equal(found, scores(model, **settings))


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("method", ADAPTER_METHODS)
def test_every_token_is_as_without_shortcuts(method, beams, monkeypatch):
    model = attach_tiny("t5", method)
    scramble(model)
    assert_same_without(monkeypatch, model, num_beams=beams)


def test_under_autocast(monkeypatch):
    with torch.autocast("cpu", torch.bfloat16):
        assert_same_without(monkeypatch, compacted().float())


@pytest.mark.parametrize("precise", [True, False])
def test_with_a_base_in_half_precision(precise, monkeypatch):
    base = TINY["t5"]().bfloat16()
    model = get_peft_model(base, CompacterConfig(bottleneck=8), autocast_adapter_dtype=precise)
    scramble(model.eval())
    assert_same_without(monkeypatch, model)


def two_adapters():
    model = compacted()
    model.add_adapter("second", CompacterConfig(bottleneck=8))
    scramble(model.double())
    return model


def test_adapters_that_are_switched_between_tokens():
    """As when the answers of two adapters are weighed against each other."""
    model = two_adapters()

    def switching(model):
        return lambda length: model.set_adapter("second" if length % 2 else "default")

    found = scores(model, switching(model))
    clone = by_formula(model)
    torch.testing.assert_close(found, scores(clone, switching(clone)), rtol=0, atol=1e-6)
    model.set_adapter("default")
    assert not torch.allclose(found, scores(model))


def test_adapters_that_are_disabled_between_tokens():
    def switching(model):
        return lambda length: model.base_model._enable_adapter_layers(enabled=length < 4)

    model = compacted()
    clone = by_formula(model)
    found = scores(model, switching(model))
    torch.testing.assert_close(found, scores(clone, switching(clone)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("whole", [True, False], ids=["PeftModel", "base model"])
def test_an_adapter_that_is_trained_between_tokens(whole):
    """With an optimiser whose steps raise no versions, through the model or what is inside."""

    def training(model):
        inner = model if whole else model.get_base_model()
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.1, fused=True)

        def step(length):
            with torch.enable_grad():
                inner(**inputs_of("t5")).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    model = compacted()
    clone, before = by_formula(model), scores(model)
    found = scores(model, training(model))
    torch.testing.assert_close(found, scores(clone, training(clone)), rtol=0, atol=1e-6)
    assert not torch.allclose(found, before)


def test_a_change_between_two_calls_is_seen():
    model = compacted()
    before = scores(model)
    with torch.no_grad():
        model.get_parameter(SLOW).add_(0.5)
    after = scores(model)
    assert not torch.allclose(after, before)
    assert_as_by_formula(after, model)


def test_a_call_inside_of_a_call():
    model = two_adapters()

    def other(length):
        with model.disable_adapter(), torch.no_grad():
            model(**inputs_of("t5"))
        names = ["default", "second"]
        with torch.no_grad():
            model(**inputs_of("t5", batch=2), adapter_names=names)

    torch.testing.assert_close(scores(model, other), scores(model), rtol=0, atol=1e-12)


def test_nothing_is_left_after_a_call_or_an_error():
    model = compacted()
    here = model.get_base_model().shared_parameters.here

    def fail(length):
        assert here.shortcuts
        if length > 3:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        scores(model, fail)
    assert here.shortcuts is None
    scores(model)
    assert here.shortcuts is None


def test_the_encoder_called_alone_takes_no_shortcuts():
    model = compacted()
    encoder, ids = model.get_base_model().encoder, inputs_of("t5")["input_ids"]
    scores(model)
    with torch.no_grad():
        before = [encoder(input_ids=ids).last_hidden_state for _ in range(3)][-1]
        model.get_parameter(SLOW).add_(0.5)
        after = encoder(input_ids=ids).last_hidden_state
        expected = by_formula(model).get_base_model().encoder(input_ids=ids).last_hidden_state
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-6)


def test_hooks_on_wrapped_modules_and_norms_run_for_every_token():
    model = compacted()
    calls = {"norm": 0, "linear": 0}

    def count(name):
        def hook(*given):
            calls[name] += 1

        return hook

    block = model.get_base_model().decoder.block[1].layer[0]
    block.layer_norm.compacter_norm["default"].register_forward_hook(count("norm"))
    block.SelfAttention.o.base_layer.register_forward_hook(count("linear"))
    found = scores(model)
    assert calls == {"norm": TOKENS, "linear": TOKENS}
    assert_as_by_formula(found, model)


def test_threads_have_their_own():
    model = compacted()
    expected, found = scores(model), {}

    def write(number):
        found[number] = scores(model)

    threads = [Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in found.values():
        torch.testing.assert_close(each, expected, rtol=0, atol=1e-12)
    assert len(found) == 3


def test_a_compiler_sees_no_shortcuts():
    """A pass that is compiled inside of a call, after passes that were not."""
    torch._dynamo.reset()
    model = compacted()
    encoder, ids = model.get_base_model().encoder, inputs_of("t5")["input_ids"]
    compiled = torch.compile(encoder, backend="eager")
    with torch.no_grad(), model._enable_peft_forward_hooks():
        for _ in range(3):
            expected = encoder(input_ids=ids).last_hidden_state
        assert model.get_base_model().shared_parameters.here.shortcuts
        found = compiled(input_ids=ids).last_hidden_state
        torch.testing.assert_close(found, expected)
        model.get_parameter(SLOW).add_(0.5)
        changed = compiled(input_ids=ids).last_hidden_state
    assert not torch.allclose(changed, expected)

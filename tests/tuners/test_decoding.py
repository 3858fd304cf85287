"""Writing token after token, while adapters are switched, disabled, trained and used by others.

What is expected is decoded by hand, by bare models that compute by formula."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from peft import get_peft_model
from transformers import LogitsProcessorList

from adapting import ADAPTER_METHODS, attach_tiny, inputs_of, logits, scramble
from by_formula import WEIGHTS, compacted, install, saved
from compacter import CompacterConfig
from tiny_models import TINY

TOKENS = 6
INPUTS = inputs_of("t5")
IDS = INPUTS["input_ids"]


def scores(model, between=None, **settings):
    """Of every token that is written; `between` is called with their number so far."""

    def process(ids, found):
        between(ids.shape[1])
        return found

    written = model.generate(
        input_ids=IDS,
        max_new_tokens=TOKENS,
        min_new_tokens=TOKENS,
        logits_processor=LogitsProcessorList([process] if between else []),
        output_logits=True,
        return_dict_in_generate=True,
        **settings,
    )
    return torch.stack(written.logits)


@torch.no_grad()
def by_hand(models, between=None):
    """The same, greedily, each token by a model of its own: they hand on the keys and values."""
    encoded = models[0].encoder(input_ids=IDS)
    tokens, past, found = torch.zeros(len(IDS), 1, dtype=torch.long), None, []
    for count, model in enumerate(models, 1):
        output = model(
            encoder_outputs=encoded,
            decoder_input_ids=tokens,
            past_key_values=past,
            use_cache=True,
        )
        found.append(output.logits[:, -1])
        allowed = found[-1].clone()
        allowed[:, 1] = -torch.inf  # no end: so many tokens are the least
        tokens, past = allowed.argmax(-1, keepdim=True), output.past_key_values
        if between:
            between(count)
    return torch.stack(found)


def bare_with(model, adapter="default", dtype=torch.float64):
    """The bare model with an adapter by formula, and the tensors of the adapter."""
    bare = TINY["t5"]().to(dtype)
    with saved(model, adapter) as folder:
        tensors = install(bare, folder)
    return bare, tensors


def two_adapters():
    model = compacted()
    model.add_adapter("second", CompacterConfig(bottleneck=8))
    model.set_adapter("second")
    scramble(model.double())
    model.set_adapter("default")
    return model


def assert_same(found, expected):
    """Without gradients norms take means in float32, as transformers' own do."""
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", ADAPTER_METHODS)
def test_every_token_of_every_method(method):
    model = attach_tiny("t5", method).double()
    scramble(model, std=0.1)
    assert_same(scores(model), by_hand([bare_with(model)[0]] * TOKENS))


def test_beams():
    model = compacted()
    settings = {"num_beams": 3, "do_sample": False}
    assert_same(scores(model, **settings), scores(bare_with(model)[0], **settings))


@pytest.mark.parametrize("precise", [True, False])
def test_with_a_base_in_half_precision(precise):
    """Against a base with the same rounded weights that computes in float32, on the same tokens."""
    base = TINY["t5"]().bfloat16()
    model = get_peft_model(base, CompacterConfig(bottleneck=8), autocast_adapter_dtype=precise)
    scramble(model.eval(), std=0.1)
    written = model.generate(input_ids=IDS, max_new_tokens=TOKENS, min_new_tokens=TOKENS)
    exact = TINY["t5"]().bfloat16().float()
    with saved(model) as folder:
        install(exact, folder)
    expected = logits(exact, input_ids=IDS, decoder_input_ids=written[:, :-1]).transpose(0, 1)
    found = scores(model).float()
    assert (found - expected).abs().max() < 0.05 * expected.abs().max()


def test_adapters_that_are_switched_between_tokens():
    """As when the answers of two adapters are weighed against each other."""
    model = two_adapters()

    def name(count):
        return "second" if count % 2 else "default"

    bare = {adapter: bare_with(model, adapter)[0] for adapter in ("default", "second")}
    expected = by_hand([bare[name(count)] for count in range(TOKENS)])
    found = scores(model, lambda count: model.set_adapter(name(count)))
    assert_same(found, expected)
    model.set_adapter("default")
    assert not torch.allclose(found, scores(model))


def test_adapters_that_are_disabled_between_tokens():
    model, base = compacted(), TINY["t5"]().double()

    def switch(count):
        if count >= 3:
            model.base_model.disable_adapter_layers()

    expected = by_hand([bare_with(model)[0]] * 3 + [base] * (TOKENS - 3))
    assert_same(scores(model, switch), expected)


def test_an_adapter_that_is_deleted_between_tokens():
    model = two_adapters()
    first, second = (bare_with(model, name)[0] for name in ("default", "second"))

    def delete(count):
        if count == 2:
            model.delete_adapter("default")

    assert_same(scores(model, delete), by_hand([first] * 2 + [second] * (TOKENS - 2)))


def training_step(model, trained):
    """With an optimiser whose steps raise no versions."""
    optimizer = torch.optim.SGD(trained, lr=0.1, fused=True)

    def step(_):
        with torch.enable_grad():
            model(**INPUTS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.parametrize("whole", [True, False], ids=["PeftModel", "base model"])
def test_an_adapter_that_is_trained_between_tokens(whole):
    model = compacted()
    before, (bare, tensors) = scores(model), bare_with(model)
    expected = by_hand([bare] * TOKENS, training_step(bare, [*tensors.values()]))
    inner = model if whole else model.get_base_model()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = scores(model, training_step(inner, trained))
    assert_same(found, expected)
    assert not torch.allclose(found, before, atol=1e-3)


def test_a_change_between_two_calls_is_seen():
    model = compacted()
    before = scores(model)
    with torch.no_grad():
        model.get_parameter(f"{WEIGHTS}.A").add_(0.5)
    after = scores(model)
    assert not torch.allclose(after, before)
    assert_same(after, by_hand([bare_with(model)[0]] * TOKENS))


def mixed_call(model):
    return logits(model, **INPUTS, adapter_names=["default", "second"])


def disabled_call(model):
    with model.disable_adapter():
        return logits(model, **INPUTS)


def written_inside(model):
    return scores(model, adapter_names=["second", "default"])


@pytest.mark.parametrize("inner", [mixed_call, disabled_call, written_inside])
@pytest.mark.parametrize("outer", [{}, {"adapter_names": ["second", "__base__"]}])
def test_a_call_inside_of_a_call(inner, outer):
    model, found = two_adapters(), []
    alone, expected = inner(model), scores(model, **outer)
    assert_same(scores(model, lambda _: found.append(inner(model)), **outer), expected)
    assert len(found) == TOKENS
    for each in found:
        assert_same(each, alone)


@pytest.mark.parametrize("outer", [{}, {"adapter_names": ["second", "__base__"]}])
def test_nothing_is_left_after_an_error(outer):
    model = two_adapters()
    expected = scores(model)

    def fail(count):
        if count > 3:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        scores(model, fail, **outer)
    assert torch.equal(scores(model), expected)


def test_hooks_on_adapted_modules_run_for_every_token():
    model, calls = compacted(), []
    linear = model.get_base_model().decoder.block[1].layer[0].SelfAttention.o
    linear.register_forward_hook(lambda *_: calls.append("outer"))
    linear.base_layer.register_forward_hook(lambda *_: calls.append("inner"))
    found = scores(model)
    assert calls == ["inner", "outer"] * TOKENS
    assert_same(found, by_hand([bare_with(model)[0]] * TOKENS))


@pytest.fixture
def fast_switching():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_threads_that_write_with_different_adapters_at_once(fast_switching):
    model = two_adapters()
    batches = [
        {"adapter_names": ["default", "second"]},
        {"adapter_names": ["second", "__base__"]},
        {"adapter_names": "second"},
        {},
    ]
    expected = [scores(model, **names) for names in batches]
    assert not any(torch.allclose(a, b) for a, b in pairwise(expected))

    def run(index):
        for _ in range(3):
            assert_same(scores(model, **batches[index]), expected[index])

    with ThreadPoolExecutor(len(batches)) as pool:
        list(pool.map(run, range(len(batches))))


def test_a_compiled_part_of_a_call():
    """A pass that is compiled inside of a call, after passes that were not."""
    torch._dynamo.reset()
    model, found = compacted(), []
    encoder = model.get_base_model().encoder
    compiled = torch.compile(encoder, backend="eager")

    def encode(_):
        found.append(compiled(input_ids=IDS).last_hidden_state)

    with torch.no_grad():
        expected = encoder(input_ids=IDS).last_hidden_state
        scores(model, encode)
        for each in found:
            assert_same(each, expected)
        model.get_parameter(f"{WEIGHTS}.A").add_(0.5)
        assert_same(
            compiled(input_ids=IDS).last_hidden_state, encoder(input_ids=IDS).last_hidden_state
        )
        assert not torch.allclose(compiled(input_ids=IDS).last_hidden_state, expected)

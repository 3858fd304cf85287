"""How often matrices are built of their factors, and what a training step keeps of them.

Building takes some einsums, of which these models have none of their own. They are counted, and
must be as many whatever the number of layers and tokens is."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch.profiler import ProfilerActivity, profile

import compacter
from adapting import attach_tiny, inputs_of, logits, scramble
from compacter.bench import SavedTensors
from tiny_models import FEED_FORWARD, HEADS, HIDDEN, VOCAB

INPUTS = inputs_of("t5")
DEPTHS = (1, 3)


def of_depth(layers, share_A=True):
    config = transformers.T5Config(
        vocab_size=VOCAB,
        d_model=HIDDEN,
        d_kv=HIDDEN // HEADS,
        d_ff=FEED_FORWARD,
        num_layers=layers,
        num_heads=HEADS,
        dropout_rate=0.0,
    )
    config.decoder_start_token_id = 0
    base = transformers.T5ForConditionalGeneration(config)
    model = compacter.attach(base, "compacter", n=4, bottleneck=8, share_A=share_A)
    scramble(model, std=0.1)
    return model.eval()


def einsums(run):
    with profile(activities=[ProfilerActivity.CPU]) as found:
        run()
    return sum(event.count for event in found.key_averages() if event.key == "aten::einsum")


def forward(model):
    logits(model, **INPUTS)


def write(model, tokens=20):
    written = model.generate(
        input_ids=INPUTS["input_ids"],
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
    )
    assert written.shape[1] == tokens + 1


def step(model, **settings):
    model.train()
    model(**INPUTS, **settings).loss.backward()
    model.eval()


def checkpointed(model):
    model.gradient_checkpointing_enable({"use_reentrant": False})
    step(model, use_cache=False)


RUNS = {
    "forward": forward,
    "generate": write,
    "step": step,
    "checkpointed": checkpointed,
}


@pytest.mark.parametrize("share_A", [True, False])
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_all_layers_are_built_at_once(run, share_A):
    few, many = (of_depth(layers, share_A) for layers in DEPTHS)
    counted = einsums(lambda: run(few))
    assert counted > 0
    assert einsums(lambda: run(many)) == counted


def test_tokens_share_what_was_built():
    model = of_depth(2)
    once = einsums(lambda: forward(model))
    assert once > 0
    assert einsums(lambda: forward(model)) == 0
    model = of_depth(2)
    assert einsums(lambda: write(model)) == once
    assert einsums(lambda: write(model, 3)) == 0


def test_a_step_builds_for_the_forward_and_for_the_backward_pass():
    once = einsums(lambda: forward(of_depth(2)))
    model = of_depth(2)
    for _ in range(3):
        assert einsums(lambda: step(model)) == 2 * once


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("compacter", {"n": 4}),
        ("compacter", {"n": 8, "rank": 2}),
        ("phm-adapter", {"n": 4}),
        ("adapter-lowrank", {}),
    ],
)
@pytest.mark.parametrize("family", ["t5", "llama"])
def test_a_step_keeps_what_a_dense_adapter_keeps_and_the_built_matrices(family, method, settings):
    def kept(method, **settings):
        model = attach_tiny(family, method, bottleneck=8, **settings).train()
        with SavedTensors(model) as saved:
            loss = model(**inputs_of(family)).loss
        found = saved.bytes()
        loss.backward()
        return found

    dense = attach_tiny(family, "adapter", bottleneck=8)
    matrices = sum(
        parameter.nbytes for name, parameter in dense.named_parameters() if name.endswith("_W")
    )
    assert kept("adapter") < kept(method, **settings) <= kept("adapter") + matrices


def test_a_batch_without_gradients_keeps_nothing_for_a_backward_pass():
    model = attach_tiny("t5", "compacter")
    with SavedTensors(model) as saved, torch.no_grad():
        model(**INPUTS)
    assert saved.bytes() == 0

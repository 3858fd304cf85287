"""Every family, with each of the three tuners: attach, train, save, load, generate."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel

from adapting import (
    adapted_paths,
    attach_tiny,
    changed,
    inputs_of,
    logits,
    parameters_of,
    places_of,
    save,
    train,
)
from compacter.models import find_blocks, layer_norms
from tiny_models import TINY

IDLE = {"gemma3": ("vision_tower", "multi_modal_projector")}
"""Parts of a model that take no part in a pass over text, so that their norms stay as they are."""


@pytest.mark.parametrize("method", ["compacter", "bitfit", "intrinsic-said"])
@pytest.mark.parametrize("family", TINY)
def test_attach_train_save_load_generate(family, method, tmp_path):
    inputs = inputs_of(family, length=16)
    model = attach_tiny(family, method)
    before = parameters_of(model)
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    train(model, inputs, steps=2)
    unmoved = trainable - changed(before, model)
    assert changed(before, model) <= trainable
    places = places_of(model)
    idle = [path for name in unmoved for path in places[name.rpartition(".")[2]]]
    assert all(any(part in path for part in IDLE.get(family, ())) for path in idle), unmoved
    expected = logits(model, **inputs)
    loaded = PeftModel.from_pretrained(TINY[family](), save(model, tmp_path)).eval()
    assert torch.equal(logits(loaded, **inputs), expected)
    if loaded.get_base_model().can_generate():
        prompt = {k: v for k, v in inputs.items() if k in ("input_ids", "attention_mask")}
        tokens = loaded.generate(**prompt, max_new_tokens=4, do_sample=False, num_beams=2)
        again = model.generate(**prompt, max_new_tokens=4, do_sample=False, num_beams=2)
        assert torch.equal(tokens, again)


@pytest.mark.parametrize("family", TINY)
def test_compacter_adapts_both_positions_of_every_block_and_every_norm(family):
    base = TINY[family]()
    blocks, norms = find_blocks(base), layer_norms(base)
    model = attach_tiny(family, "compacter")
    assert sorted(adapted_paths(model)) == sorted(
        path for block in blocks for path in (block.attention, block.feed_forward)
    )
    trained = [p for n, paths in places_of(model).items() if "layernorm_weight" in n for p in paths]
    assert sorted(trained) == sorted(norms)

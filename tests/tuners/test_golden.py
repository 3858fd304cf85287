"""Adapters saved by 0.1.0 must load for ever: the files in tests/golden are never written again.

What they are is described in tests/golden/make.py."""

from __future__ import annotations

import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

import compacter
from adapting import logits
from golden.make import CASES, FOLDER, base_of, inputs_of

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
SET_BY_PEFT = ("peft_version", "base_model_name_or_path", "auto_mapping", "modules_to_save")
"""PEFT adds its own names of heads to `modules_to_save`, again whenever an adapter is loaded."""

each = pytest.mark.parametrize("name", CASES)


def loaded(name):
    model = PeftModel.from_pretrained(base_of(CASES[name]), FOLDER / name)
    return model.eval()


def assert_as_expected(found, name):
    expected = load_file(FOLDER / name / "expected.safetensors")["logits"]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_there_is_a_case_for_every_folder():
    folders = {path.parent.name for path in FOLDER.glob(f"*/{CONFIG}")}
    assert folders == CASES.keys()


@each
def test_logits_are_what_they_were(name):
    case = CASES[name]
    model = loaded(name)
    assert_as_expected(logits(model, **inputs_of(case)), name)
    with model.disable_adapter():
        bare = logits(model, **inputs_of(case))
    expected = load_file(FOLDER / name / "expected.safetensors")["logits"]
    assert (bare - expected).abs().max() > 1e-2


@each
def test_saving_again_gives_the_same_files(name, tmp_path):
    loaded(name).save_pretrained(tmp_path)
    found, expected = load_file(tmp_path / WEIGHTS), load_file(FOLDER / name / WEIGHTS)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in expected.items())
    ours, theirs = (json.loads((f / CONFIG).read_text()) for f in (tmp_path, FOLDER / name))
    assert theirs["format_version"] == 1
    same = theirs.keys() - set(SET_BY_PEFT)
    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}


@each
def test_loaded_beside_another(name):
    model = compacter.attach(base_of(CASES[name]), CASES[name].method, **CASES[name].settings)
    compacter.load_adapters(model, {"golden": FOLDER / name})
    model.set_adapter("golden")
    assert_as_expected(logits(model, **inputs_of(CASES[name])), name)

"""PEFT's tests of torch.compile. Graphs are captured and differentiated, but not turned into
machine code, which takes minutes and has nothing to do with adapters."""

import os

import pytest

from adopt import adopt
from local_models import local, quotes
from our_methods import METHODS
from sdist import load

BACKEND = {"backend": "aot_eager", "torch_compile_backend": "aot_eager"}

with pytest.MonkeyPatch.context() as patch:
    patch.setitem(os.environ, "PEFT_DEBUG_WITH_TORCH_COMPILE", "1")
    theirs = load("test_torch_compile")
theirs.load_dataset_english_quotes = quotes

TestTorchCompileCausalLM = adopt(
    theirs.TestTorchCompileCausalLM,
    {"settings": [pytest.param((m(task_type="CAUSAL_LM"), BACKEND), id=m.name) for m in METHODS]},
    model_id=local("AutoModelForCausalLM", "opt"),
)

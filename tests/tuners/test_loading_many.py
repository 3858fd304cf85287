"""Many adapters on one model: loaded at once, small in memory, each as if it were alone."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
import torch
from peft import PeftModel, get_peft_model
from torch import nn

import compacter
from adapting import attach_tiny, inputs_of, logits, parameters_of, save, scramble, unchanged
from compacter import BitFitConfig, CompacterConfig
from compacter.errors import AdapterError
from tiny_models import TINY

CASES = [
    ("t5", "compacter", {"bottleneck": 8}),
    ("t5", "phm-adapter", {}),
    ("t5", "compacter++", {"tune_output_layer": True}),
    ("bert", "adapter", {}),
    ("bert", "bitfit", {}),
    ("gpt2", "intrinsic-said", {}),
]


def saved_adapters(family, method, count, folder, **settings):
    """Folders of adapters that differ, and the logits of each alone."""
    folders, expected = {}, {}
    for index in range(count):
        model = attach_tiny(family, method, **settings)
        scramble(model, std=0.05 * (index + 1))
        name = f"task-{index}"
        expected[name] = logits(model, **inputs_of(family))
        folders[name] = save(model, folder / name)
    return folders, expected


def first_of(family, folders):
    folders = dict(folders)
    name = next(iter(folders))
    base = TINY[family]()
    return PeftModel.from_pretrained(base, folders.pop(name), adapter_name=name).eval(), folders


@pytest.mark.parametrize(("family", "method", "settings"), CASES)
def test_loaded_at_once_as_loaded_alone(family, method, settings, tmp_path):
    folders, expected = saved_adapters(family, method, 3, tmp_path, **settings)
    model, others = first_of(family, folders)
    compacter.load_adapters(model, others)
    assert list(model.peft_config) == list(folders)
    assert not any(p.requires_grad for p in model.parameters())
    assert not any(module.training for module in model.modules())
    inputs = inputs_of(family)
    assert torch.equal(logits(model, **inputs), expected["task-0"])
    for name, value in expected.items():
        model.set_adapter(name)
        assert torch.equal(logits(model, **inputs), value)
    slow, others = first_of(family, folders)
    for name, folder in others.items():
        slow.load_adapter(folder, adapter_name=name)
    model.set_adapter("task-0", inference_mode=True)
    found, wanted = parameters_of(model), parameters_of(slow)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_they_can_be_saved_trained_deleted_and_mixed(tmp_path):
    folders, expected = saved_adapters("t5", "compacter", 4, tmp_path / "in")
    model, others = first_of("t5", folders)
    compacter.load_adapters(model, others)
    inputs = inputs_of("t5")
    names = ["task-3", "task-1"]
    mixed = logits(model, **inputs, adapter_names=names)
    for index, name in enumerate(names):
        torch.testing.assert_close(mixed[index], expected[name][index], rtol=1e-5, atol=1e-4)
    model.save_pretrained(str(tmp_path / "out"))
    again = PeftModel.from_pretrained(TINY["t5"](), tmp_path / "out" / "task-2").eval()
    assert torch.equal(logits(again, **inputs), expected["task-2"])
    model.delete_adapter("task-1")
    model.set_adapter("task-2")
    model(**inputs).loss.backward()
    gradients = {n for n, p in model.named_parameters() if p.grad is not None}
    assert gradients
    assert all(".task-2" in name for name in gradients)


def test_each_further_adapter_adds_no_module_and_no_parameter(tmp_path):
    folders, _ = saved_adapters("t5", "compacter", 6, tmp_path)
    model, others = first_of("t5", folders)
    modules, before = [*model.modules()], [*model.parameters()]
    compacter.load_adapters(model, others)
    logits(model, **inputs_of("t5"), adapter_names=["task-1", "task-5"])
    assert [*map(id, model.modules())] == [*map(id, modules)]
    assert [*map(id, model.parameters())] == [*map(id, before)]


def test_time_does_not_grow_with_the_number_of_adapters(tmp_path, monkeypatch):
    """Counted as modules that are looked at."""
    folders, _ = saved_adapters("t5", "compacter", 14, tmp_path)
    looks = Counter()
    named_modules = nn.Module.named_modules

    def counted(self, *args, **kwargs):
        for found in named_modules(self, *args, **kwargs):
            looks["modules"] += 1
            yield found

    monkeypatch.setattr(nn.Module, "named_modules", counted)
    model, others = first_of("t5", folders)
    compacter.load_adapters(model, {"task-1": others.pop("task-1")})  # makes the pool
    counts = []
    for start in (0, 4, 8):
        looks.clear()
        compacter.load_adapters(model, dict(list(others.items())[start : start + 4]))
        counts.append(looks["modules"])
    assert counts[0] == counts[1] == counts[2]


@pytest.mark.parametrize(
    ("family", "call"), [("t5", "forward"), ("t5", "generate"), ("bert", "forward")]
)
def test_a_mixed_batch_costs_the_same_with_many_loaded(family, call, tmp_path):
    """Counted as Python calls, which is what many modules would add."""
    folders, _ = saved_adapters(family, "compacter", 12, tmp_path)
    model, others = first_of(family, folders)
    batch = inputs_of(family)
    if call == "generate":
        batch = {"input_ids": batch["input_ids"], "max_new_tokens": 3, "do_sample": False}

    @torch.no_grad()
    def run():
        getattr(model, call)(**batch, adapter_names=["task-0", "task-1"])

    def calls():
        count = 0

        def trace(frame, event, argument):
            nonlocal count
            count += event == "call"

        run()
        sys.setprofile(trace)
        try:
            run()
        finally:
            sys.setprofile(None)
        return count

    compacter.load_adapters(model, {"task-1": others.pop("task-1")})
    few = calls()
    compacter.load_adapters(model, others)
    assert calls() == pytest.approx(few, rel=0.01)


def test_nothing_is_changed_if_one_does_not_fit(tmp_path):
    folders, _ = saved_adapters("t5", "compacter", 3, tmp_path)
    model, others = first_of("t5", folders)
    other = attach_tiny("llama", "compacter")
    bitfit = get_peft_model(TINY["t5"](), BitFitConfig())
    damaged = save(attach_tiny("t5", "compacter"), tmp_path / "damaged")
    weights = tmp_path / "damaged" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    bad = {
        save(other, tmp_path / "llama"): "does not fit this model",
        save(bitfit, tmp_path / "bitfit"): "holds a BitFitConfig, expected a CompacterConfig",
        damaged: "is damaged or not complete",
    }
    for folder, message in bad.items():
        with unchanged(model), pytest.raises(AdapterError, match=message):
            compacter.load_adapters(model, others | {"bad": folder})
        assert list(model.peft_config) == ["task-0"]
    with unchanged(model), pytest.raises(AdapterError, match="has an adapter called 'task-0'"):
        compacter.load_adapters(model, others | {"task-0": folders["task-1"]})
    with unchanged(model), pytest.raises(AdapterError, match="cannot be called 'encoder'"):
        compacter.load_adapters(model, others | {"encoder": folders["task-1"]})
    with pytest.raises(AdapterError, match="load the first with PeftModel"):
        compacter.load_adapters(TINY["t5"](), others)


def test_under_a_half_precision_base(tmp_path):
    """Adapters stay in float32 in the pool, and when they are taken out of it."""
    folders, _ = saved_adapters("t5", "compacter", 3, tmp_path)
    name, *rest = folders
    base = TINY["t5"]().to(torch.bfloat16)
    model = PeftModel.from_pretrained(base, folders[name], adapter_name=name).eval()
    inputs, expected = inputs_of("t5"), []
    for other in rest:
        alone = PeftModel.from_pretrained(TINY["t5"]().to(torch.bfloat16), folders[other]).eval()
        expected.append(logits(alone, **inputs))
    compacter.load_adapters(model, {n: folders[n] for n in rest})
    mixed = logits(model, **inputs, adapter_names=rest)
    for index, other in enumerate(rest):
        torch.testing.assert_close(mixed[index], expected[index][index], rtol=0.05, atol=0.05)
        model.set_adapter(other)
        assert torch.equal(logits(model, **inputs), expected[index])
    own = {p.dtype for n, p in model.named_parameters() if ".compacter_" in n}
    assert own == {torch.float32}


def test_beside_an_adapter_that_is_trained(tmp_path):
    folders, expected = saved_adapters("t5", "compacter", 2, tmp_path)
    model = get_peft_model(TINY["t5"](), CompacterConfig(bottleneck=24))
    before = {n for n, p in model.named_parameters() if p.requires_grad}
    compacter.load_adapters(model, folders)
    assert {n for n, p in model.named_parameters() if p.requires_grad} == before
    model.set_adapter("task-1")
    assert torch.equal(logits(model.eval(), **inputs_of("t5")), expected["task-1"])

"""The pool: any number of adapters beside one model, each as if it were alone."""

from __future__ import annotations

import copy
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import torch
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import BertForSequenceClassification

import compacter
from adapting import attach_tiny, inputs_of, logits, save, scramble
from compacter import AdapterPool, CompacterConfig, IntrinsicSAIDConfig
from compacter.errors import AdapterError
from tiny_models import TINY

COUNT = 5


def saved(folder: Path, family="t5", method="compacter", count=COUNT, **settings):
    """Adapters in folders, and the logits of each alone."""
    folders, expected = {}, {}
    for index in range(count):
        model = attach_tiny(family, method, **settings)
        scramble(model, std=0.05 * (index + 1))
        name = f"task-{index}"
        expected[name] = logits(model, **inputs_of(family))
        folders[name] = save(model, folder / name)
    return folders, expected


def pooled(folders, family="t5", method="compacter", capacity=1, **settings):
    model = attach_tiny(family, method, **settings)
    pool = AdapterPool(model, capacity)
    for name, folder in folders.items():
        pool.put(name, folder)
    return model, pool


def check(model, names, expected, family="t5"):
    found = logits(model, **inputs_of(family), adapter_names=names)
    for index, name in enumerate(names):
        torch.testing.assert_close(found[index], expected[name][index], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "method", "settings"),
    [
        ("t5", "compacter", {}),
        ("t5", "compacter++", {"tune_output_layer": True}),
        ("t5", "adapter", {}),
        ("llama", "phm-adapter", {}),
        ("bert", "bitfit", {}),
    ],
)
def test_each_as_alone(family, method, settings, tmp_path):
    folders, expected = saved(tmp_path, family, method, **settings)
    model, pool = pooled(folders, family, method, **settings)
    assert list(pool) == list(folders)
    check(model, ["task-4", "task-0"], expected, family)
    for name, value in expected.items():
        found = logits(model, **inputs_of(family), adapter_names=name)
        torch.testing.assert_close(found, value, rtol=1e-5, atol=1e-5)


def test_beside_adapters_of_the_model_and_the_base(tmp_path):
    folders, expected = saved(tmp_path)
    model, _ = pooled(folders)
    scramble(model)
    own = logits(model, **inputs_of("t5"))
    expected |= {"default": own, "__base__": logits(TINY["t5"](), **inputs_of("t5"))}
    check(model, ["default", "task-2"], expected)
    check(model, ["task-3", "__base__"], expected)


def test_adapters_of_several_settings(tmp_path):
    """Also at places where the model's own adapter has none."""
    folders, expected = saved(tmp_path / "a")
    for method, settings in (
        ("compacter", {"bottleneck": 8, "rank": 2}),
        ("adapter", {"drop_layers": 1}),
        ("pfeiffer-adapter", {}),
    ):
        more, logits_of_more = saved(tmp_path / method, method=method, count=1, **settings)
        folders[method], expected[method] = more["task-0"], logits_of_more["task-0"]
    model, _ = pooled(folders, method="compacter++")
    check(model, ["adapter", "compacter"], expected)
    check(model, ["pfeiffer-adapter", "task-1"], expected)


def test_replace_and_drop(tmp_path):
    folders, expected = saved(tmp_path)
    model, pool = pooled(folders)
    pool.put("task-0", folders["task-3"])
    check(model, ["task-0", "task-1"], expected | {"task-0": expected["task-3"]})
    pool.drop("task-1")
    assert "task-1" not in pool
    assert "task-1" not in model.peft_config
    with pytest.raises(AdapterError, match="has 'task-1', which is no adapter of this model"):
        logits(model, **inputs_of("t5"), adapter_names=["task-1", "task-2"])
    with pytest.raises(AdapterError, match="the pool has no adapter 'task-1'"):
        pool.drop("task-1")
    pool.put("new", folders["task-1"])
    check(model, ["new", "task-2"], expected | {"new": expected["task-1"]})


def test_adapters_given_as_tensors(tmp_path):
    folders, expected = saved(tmp_path, count=2)
    model, pool = pooled({})
    for name, folder in folders.items():
        tensors = load_file(Path(folder) / "adapter_model.safetensors")
        pool.put(name, tensors, CompacterConfig.from_pretrained(folder))
        found = pool.state_dict(name)
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[key], tensor) for key, tensor in tensors.items())
    check(model, ["task-1", "task-0"], expected)
    with pytest.raises(AdapterError, match="config is a NoneType; expected the CompacterConfig"):
        pool.put("more", tensors)


def test_bytes_of_an_adapter(tmp_path):
    folders, _ = saved(tmp_path)
    model, pool = pooled(folders)
    assert pool.nbytes == len(folders) * sum(
        p.nbytes for p in model.parameters() if p.requires_grad
    )


@pytest.mark.parametrize("call", ["forward", "generate"])
def test_puts_never_change_a_batch_that_is_computed(call, tmp_path):
    """One thread replaces, adds and drops adapters, so that the stacks grow too; others compute."""
    folders, _ = saved(tmp_path, count=8)
    model, pool = pooled(folders)
    inputs, stop = inputs_of("t5"), Event()
    names = ["task-0", "task-1"]

    def run():
        if call == "forward":
            return logits(model, **inputs, adapter_names=names)
        ids = inputs["input_ids"]
        return model.generate(input_ids=ids, adapter_names=names, max_new_tokens=4, do_sample=False)

    expected = run()

    def disturb():
        number = 0
        while not stop.is_set():
            pool.put(f"extra-{number}", folders["task-7"])
            pool.put("task-2", folders[f"task-{3 + number % 4}"])
            if number > 3:
                pool.drop(f"extra-{number - 3}")
            number += 1
        return number

    def compute():
        return all(torch.equal(run(), expected) for _ in range(15))

    with ThreadPoolExecutor(3) as threads:
        disturbing = threads.submit(disturb)
        computing = [threads.submit(compute) for _ in range(2)]
        results = [future.result() for future in computing]
        stop.set()
        assert disturbing.result() > 1
    assert results == [True, True]


def test_a_replaced_adapter_answers_by_old_or_new_weights_and_no_mixture(tmp_path):
    folders, expected = saved(tmp_path, count=2)
    model, pool = pooled({"task": folders["task-0"]})
    inputs, stop = inputs_of("t5"), Event()
    known = [expected["task-0"][0], expected["task-1"][0]]

    def replace():
        while not stop.is_set():
            for folder in folders.values():
                pool.put("task", folder)

    with ThreadPoolExecutor(1) as threads:
        replacing = threads.submit(replace)
        for _ in range(30):
            found = logits(model, **inputs, adapter_names=["task", "task"])[0]
            assert any(torch.allclose(found, value, rtol=1e-5, atol=1e-5) for value in known)
        stop.set()
        replacing.result()


def classifier(labels: int):
    config = copy.deepcopy(TINY["bert"]().config)
    config.num_labels = labels
    torch.manual_seed(0)
    model = BertForSequenceClassification(config)
    model.bert.load_state_dict(TINY["bert"]().bert.state_dict())
    torch.manual_seed(labels)
    return compacter.attach(model, "compacter").eval()


def test_heads_of_different_sizes(tmp_path):
    inputs, folders, expected = inputs_of("bert"), {}, {}
    inputs.pop("labels")
    for labels in (2, 3, 5):
        model = classifier(labels)
        scramble(model)
        expected[f"of-{labels}"] = logits(model, **inputs)
        folders[f"of-{labels}"] = save(model, tmp_path / str(labels))
    model = classifier(2)
    compacter.load_adapters(model, folders)
    found = logits(model, **inputs, adapter_names=["of-5", "of-2"])
    assert found.shape == (2, 5)
    torch.testing.assert_close(found[0], expected["of-5"][0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1, :2], expected["of-2"][1], rtol=1e-5, atol=1e-5)
    assert torch.isneginf(found[1, 2:]).all()
    found = logits(model, **inputs, adapter_names=["of-3", "of-3"])
    torch.testing.assert_close(found, expected["of-3"], rtol=1e-5, atol=1e-5)


def test_taken_out_to_be_trained_and_saved(tmp_path):
    folders, expected = saved(tmp_path / "in", "bert")
    model, pool = pooled(folders, "bert")
    inputs = inputs_of("bert")
    model.save_pretrained(str(tmp_path / "out"), selected_adapters=["task-2"])
    model.set_adapter("task-3")
    assert "task-3" not in pool
    torch.testing.assert_close(logits(model, **inputs), expected["task-3"], rtol=1e-5, atol=1e-5)
    model(**inputs).loss.backward()
    trained = {n for n, p in model.named_parameters() if p.grad is not None}
    assert trained
    assert all(".task-3" in name for name in trained)
    model.delete_adapter("task-1")
    assert list(pool) == ["task-0", "task-2", "task-4"]
    again = PeftModel.from_pretrained(TINY["bert"](), tmp_path / "out" / "task-2").eval()
    torch.testing.assert_close(logits(again, **inputs), expected["task-2"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_have_a_pool_of_their_own(copied, tmp_path):
    folders, expected = saved(tmp_path, count=3)
    model, pool = pooled(folders)
    clone = copied(model)
    pool.put("task-0", folders["task-2"])
    check(clone, ["task-0", "task-1"], expected)


def test_refused_with_nothing_changed(tmp_path):
    folders, expected = saved(tmp_path, count=2)
    model, pool = pooled(folders)
    other = save(attach_tiny("llama", "compacter"), tmp_path / "llama")
    bitfit = save(attach_tiny("t5", "bitfit"), tmp_path / "bitfit")
    tokens = get_peft_model(TINY["t5"](), CompacterConfig(trainable_token_indices=[1]))
    old = save(attach_tiny("t5", "compacter"), tmp_path / "old")
    config = Path(old) / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"places": "none"}))
    for name, folder, message in (
        ("a", other, "does not fit this model"),
        ("a", bitfit, "holds a BitFitConfig, expected a CompacterConfig"),
        ("a", save(tokens, tmp_path / "tokens"), "trains single tokens"),
        ("a", old, "list of places is damaged"),
        ("default", folders["task-0"], "has an adapter called 'default' already"),
        ("encoder", folders["task-0"], "cannot be called 'encoder'"),
    ):
        with pytest.raises(AdapterError, match=message):
            pool.put(name, folder)
    with pytest.raises(AdapterError, match="does not fit"):
        pool.put_all({"new": folders["task-0"], "bad": other})
    assert list(pool) == list(folders)
    check(model, ["task-0", "task-1"], expected)


def test_what_cannot_be_pooled(tmp_path):
    model = attach_tiny("t5", "compacter")
    AdapterPool(model)
    with pytest.raises(AdapterError, match="has a pool already"):
        AdapterPool(model)
    with pytest.raises(AdapterError, match="load the first with PeftModel"):
        AdapterPool(TINY["t5"]())
    with pytest.raises(AdapterError, match="cannot be pooled: Intrinsic-SAID moves every weight"):
        AdapterPool(get_peft_model(TINY["t5"](), IntrinsicSAIDConfig(intrinsic_dim=300)))
    with pytest.raises(AdapterError, match="capacity=0 does not fit"):
        AdapterPool(attach_tiny("t5", "compacter"), capacity=0)

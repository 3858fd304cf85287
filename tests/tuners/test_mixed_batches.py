"""Batches whose examples have different adapters, against each example alone with its adapter."""

from __future__ import annotations

import copy
import pickle
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from mixing import BASE, adapted, alone, check_examples, config_of, example
from peft import PeftModel
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import compacter
from adapting import ADAPTER_METHODS, attach_tiny, inputs_of, logits, places_of, save, scramble
from compacter import BitFitConfig, CompacterConfig
from compacter.errors import AdapterError
from tiny_models import TINY


@pytest.mark.parametrize("method", [*ADAPTER_METHODS, "bitfit"])
def test_every_example_as_alone(method):
    config = config_of("t5", method)
    model = adapted("t5", {"one": config(), "two": config(), "three": config()})
    inputs = inputs_of("t5", batch=6)
    check_examples(model, ["two", "one", BASE, "three", "two", "one"], inputs)
    check_examples(model, ["two", "one", "three"], inputs_of("t5", batch=3))
    check_examples(model, ["two"] * 3, inputs_of("t5", batch=3))
    found = logits(model, **inputs, adapter_names=[BASE] * 6)
    torch.testing.assert_close(found, logits(TINY["t5"](), **inputs), rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", ["compacter", "bitfit"])
@pytest.mark.parametrize("family", TINY)
def test_every_family(family, method):
    config = config_of(family, method)
    model = adapted(family, {"one": config(), "two": config()})
    names = ["two", BASE, "one", "two"]
    if (family, method) in (("deberta", "bitfit"), ("deberta-v2", "bitfit")):
        with pytest.raises(AdapterError, match="computes something for all examples at once"):
            logits(model, **inputs_of(family, batch=4), adapter_names=names)
    else:
        check_examples(model, names, inputs_of(family, batch=4))


@pytest.mark.parametrize("family", ["t5", "llama", "bert"])
@pytest.mark.parametrize("method", ["compacter", "phm-adapter", "bitfit"])
def test_one_name_for_all(family, method):
    config = config_of(family, method)
    model = adapted(family, {"one": config(), "two": config()})
    inputs = inputs_of(family, batch=3)
    for name in ("two", BASE):
        expected = alone(model, name, lambda: logits(model, **inputs))
        model.set_adapter("one")
        found = logits(model, **inputs, adapter_names=name)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_generating_with_one_name_for_all():
    model = adapted("t5", {"one": CompacterConfig(), "two": CompacterConfig()})
    ids, settings = inputs_of("t5", batch=3)["input_ids"], {"max_new_tokens": 5, "num_beams": 2}
    expected = alone(model, "two", lambda: model.generate(input_ids=ids, **settings))
    model.set_adapter("one")
    found = model.generate(input_ids=ids, adapter_names="two", **settings)
    assert torch.equal(found, expected)


def operations(run):
    """How many operations of torch a call takes."""

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            Count.calls += 1
            return function(*args, **(kwargs or {}))

    with Count():
        run()
    return Count.calls


def test_tensors_are_gathered_once_for_the_whole_model():
    """A layer more costs its products alone: no stacking and no selecting."""

    def events(layers):
        config = transformers.LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_attention_heads=4,
            num_hidden_layers=layers,
        )
        base = transformers.LlamaForCausalLM(config)
        model = adapted("", {"one": CompacterConfig(), "two": CompacterConfig()}, base)
        ids = torch.arange(6, 16).reshape(2, 5)
        with profile(activities=[ProfilerActivity.CPU]) as found:
            logits(model, input_ids=ids, adapter_names=["two", "one"])
        return Counter({event.key: event.count for event in found.key_averages()})

    two, four = events(2), events(4)
    gathering = ("aten::stack", "aten::index_select", "aten::gather", "aten::einsum")
    assert two["aten::stack"] or two["aten::index_select"]
    assert {name: four[name] for name in gathering} == {name: two[name] for name in gathering}


def test_padded_examples():
    model = adapted("t5", {"one": CompacterConfig(), "two": CompacterConfig()})
    inputs = inputs_of("t5", batch=3)
    inputs["attention_mask"][1, 5:] = 0
    check_examples(model, ["two", "one", "two"], inputs)


def test_adapters_of_different_shapes():
    configs = {
        "small": CompacterConfig(bottleneck=8),
        "wide": CompacterConfig(bottleneck=12, n=2, rank=3),
        "dense": CompacterConfig(projection="dense", bottleneck=5, activation="relu"),
        "top": CompacterConfig(bottleneck=8, drop_layers=1, use_bias=False),
        "own": CompacterConfig(projection="phm", share_A=False, bottleneck=8),
        "plain": CompacterConfig(bottleneck=8, train_layer_norms=False),
        "relu": CompacterConfig(bottleneck=8, activation="relu"),
        "same": CompacterConfig(bottleneck=8),
    }
    model = adapted("t5", configs)
    check_examples(model, [*configs, BASE, "small", "wide"], inputs_of("t5", batch=11))


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3, "num_return_sequences": 2}])
@pytest.mark.parametrize("family", ["t5", "bart", "llama", "opt"])
def test_generating(family, settings):
    model = adapted(family, {"one": CompacterConfig(), "two": CompacterConfig()})
    ids, names = inputs_of(family, batch=4)["input_ids"], ["two", BASE, "one", "two"]
    settings = {"max_new_tokens": 5, "do_sample": False, **settings}
    count = settings.get("num_return_sequences", 1)
    found = model.generate(input_ids=ids, adapter_names=names, **settings)
    assert len(found) == 4 * count
    for index, name in enumerate(names):
        one = ids[index : index + 1]
        expected = alone(model, name, lambda one=one: model.generate(input_ids=one, **settings))
        mine = found[index * count : (index + 1) * count]
        width = min(mine.shape[1], expected.shape[1])
        assert torch.equal(mine[:, :width], expected[:, :width])


def test_several_sampled_sequences():
    """One example, three samples of it: all by its adapter."""
    model = adapted("t5", {"one": CompacterConfig(), "two": CompacterConfig()})
    ids = inputs_of("t5", batch=1)["input_ids"]
    settings = {"max_new_tokens": 4, "do_sample": True, "num_return_sequences": 3}
    torch.manual_seed(0)
    found = model.generate(input_ids=ids, adapter_names=["two"], **settings)
    model.set_adapter("two")
    torch.manual_seed(0)
    assert torch.equal(found, model.generate(input_ids=ids, **settings))


HEADS = [
    ("bert", "BertForSequenceClassification"),
    ("roberta", "RobertaForSequenceClassification"),
    ("distilbert", "DistilBertForSequenceClassification"),
    ("bert", "BertForTokenClassification"),
    ("bert", "BertForQuestionAnswering"),
    ("bert", "BertForMultipleChoice"),
    ("vit", "ViTForImageClassification"),
]


@pytest.mark.parametrize("method", ["compacter", "bitfit"])
@pytest.mark.parametrize(("family", "model_class"), HEADS)
def test_heads_of_encoders(family, model_class, method):
    def base():
        torch.manual_seed(2)
        return getattr(transformers, model_class)(TINY[family]().config).eval()

    template = compacter.attach(base(), method).peft_config["default"]
    config = type(template)
    settings = {"task_type": template.task_type, "modules_to_save": template.modules_to_save}
    assert template.modules_to_save
    model = adapted(family, {"one": config(**settings), "two": config(**settings)}, base())
    inputs = inputs_of(family, batch=4)
    inputs.pop("labels")
    if model_class == "BertForMultipleChoice":
        inputs = {name: value.unsqueeze(1).repeat(1, 3, 1) for name, value in inputs.items()}
    names = ["two", BASE, "one", "two"]

    def run(batch, **kwargs):
        with torch.no_grad():
            output = model(**batch, **kwargs)
        return output.start_logits if "start_logits" in output else output.logits

    found = run(inputs, adapter_names=names)
    for index, name in enumerate(names):
        one = example(inputs, index)
        expected = alone(model, name, lambda one=one: run(one))
        torch.testing.assert_close(found[index : index + 1], expected, rtol=0, atol=1e-5)
    heads = [m for n, m in model.named_modules() if n.endswith(template.modules_to_save[0])]
    assert not any(head._forward_hooks for head in heads)


@pytest.mark.parametrize("method", ["compacter", "bitfit"])
@pytest.mark.parametrize("family", ["t5", "opt"])
def test_tuned_output_layers(family, method):
    config = {"compacter": CompacterConfig, "bitfit": BitFitConfig}[method]
    configs = {"one": config(tune_output_layer=True), "two": config(tune_output_layer=True)}
    model = adapted(family, configs | {"three": config()})
    check_examples(model, ["two", BASE, "one", "three"], inputs_of(family, batch=4), tolerance=1e-4)


def test_half_precision_base():
    base = TINY["llama"]().to(torch.bfloat16)
    model = adapted("llama", {"one": CompacterConfig(), "two": CompacterConfig()}, base)
    check_examples(model, ["two", BASE, "one", "two"], inputs_of("llama", batch=4), tolerance=0.1)


def test_adapters_loaded_from_files(tmp_path):
    for name in ("one", "two"):
        model = attach_tiny("t5", "compacter", bottleneck=8)
        scramble(model, std=0.1 if name == "one" else 0.2)
        save(model, tmp_path / name)
    loaded = PeftModel.from_pretrained(TINY["t5"](), tmp_path / "one", adapter_name="one").eval()
    loaded.load_adapter(tmp_path / "two", adapter_name="two")
    check_examples(loaded, ["two", "one", BASE], inputs_of("t5", batch=3))


def test_the_active_adapter_does_not_matter_and_stays():
    model = adapted("t5", {"one": CompacterConfig(), "two": CompacterConfig()})
    inputs, names = inputs_of("t5"), ["two", BASE]
    model.set_adapter("one")
    found = logits(model, **inputs, adapter_names=names)
    before = logits(model, **inputs)
    model.set_adapter("two")
    assert torch.equal(logits(model, **inputs, adapter_names=names), found)
    model.set_adapter("one")
    assert torch.equal(logits(model, **inputs), before)


def test_disabled_adapters_stay_disabled():
    model = adapted("t5", {"one": CompacterConfig(), "two": CompacterConfig()})
    inputs = inputs_of("t5")
    model.base_model.disable_adapter_layers()
    expected = logits(TINY["t5"](), **inputs)
    assert torch.equal(logits(model, **inputs, adapter_names=["one", "two"]), expected)
    model.base_model.enable_adapter_layers()
    check_examples(model, ["one", "two"], inputs)


@pytest.mark.parametrize("method", ["compacter", "bitfit"])
def test_norms_of_each_attention_head(method):
    """Their weights are matrices."""
    settings = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    base = transformers.CohereForCausalLM(
        transformers.CohereConfig(
            vocab_size=96, hidden_size=32, intermediate_size=48, use_qk_norm=True, **settings
        )
    )
    config = {"compacter": CompacterConfig, "bitfit": BitFitConfig}[method]
    model = adapted("", {"one": config(), "two": config()}, base)
    check_examples(model, ["two", BASE, "one"], {"input_ids": torch.arange(7, 22).reshape(3, 5)})
    places, shapes = (
        places_of(model, "one"),
        {n: tuple(p.shape) for n, p in model.named_parameters()},
    )
    (name,) = (n for n, paths in places.items() if "model.layers.0.self_attn.q_norm" in paths)
    (shape,) = (shape for n, shape in shapes.items() if n.endswith(f".one.{name}"))
    assert shape[1:] == (4, 8)


def test_gradients_reach_the_adapters_of_the_examples():
    model = adapted("t5", {"one": CompacterConfig(), "two": CompacterConfig()})
    inputs = inputs_of("t5")
    for parameter in model.parameters():
        parameter.requires_grad_(True)

    def gradients():
        found = {n: p.grad for n, p in model.named_parameters() if ".compacter_weights." in n}
        model.zero_grad()
        return {n: torch.zeros(()) if g is None else g for n, g in found.items()}

    model(**inputs, adapter_names=["two", "one"]).logits.square().sum().backward()
    found = gradients()
    for index, name in enumerate(["two", "one"]):
        model.set_adapter(name)
        model(**example(inputs, index)).logits.square().sum().backward()
        own = {n: g for n, g in gradients().items() if f".{name}" in n}
        assert len(own) == len(found) // 2
        for parameter, gradient in own.items():
            torch.testing.assert_close(found[parameter], gradient, rtol=1e-3, atol=1e-3)


def test_adapters_are_stacked_not_looped_over():
    """The number of operations does not depend on the number of adapters in the batch."""
    model = adapted("t5", {f"task-{i}": CompacterConfig() for i in range(8)})
    inputs = inputs_of("t5", batch=8)

    def of(names):
        return operations(lambda: logits(model, **inputs, adapter_names=names))

    few = of([f"task-{i % 2}" for i in range(8)])
    assert of([f"task-{i}" for i in range(8)]) <= few


def test_an_error_inside_leaves_nothing_behind():
    model = adapted("t5", {"one": CompacterConfig(), "two": CompacterConfig()})
    inputs = inputs_of("t5")
    before = logits(model, **inputs)
    with pytest.raises(IndexError):
        model(input_ids=inputs["input_ids"] + 10_000, adapter_names=["two", "one"])
    assert torch.equal(logits(model, **inputs), before)


@pytest.fixture
def fast_switching():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.parametrize(
    ("family", "method", "settings"),
    [
        ("t5", "compacter", {}),
        ("t5", "compacter", {"tune_output_layer": True}),
        ("bert", "bitfit", {}),  # with heads, which are mixed too
    ],
)
def test_threads_that_mix_at_the_same_time(family, method, settings, fast_switching):
    """As in a server with a pool of threads."""
    config = config_of(family, method, **settings)
    model = adapted(family, {"one": config(), "two": config(), "three": config()})
    inputs = inputs_of(family, batch=3)
    batches = [["one", "two", "three"], ["three", BASE, "one"], ["two", "two", BASE]]
    if not settings:
        batches.append(None)
    expected = [logits(model, **inputs, adapter_names=names) for names in batches]

    def run(index):
        for _ in range(10):
            found = logits(model, **inputs, adapter_names=batches[index])
            torch.testing.assert_close(found, expected[index], rtol=0, atol=1e-5)

    with ThreadPoolExecutor(len(batches)) as pool:
        list(pool.map(run, range(len(batches))))


def test_a_copy_made_while_a_batch_is_mixed():
    model, copies = adapted("t5", {"one": CompacterConfig(), "two": CompacterConfig()}), []
    inputs = inputs_of("t5")
    hook = model.get_base_model().lm_head.register_forward_pre_hook(
        lambda *_: copies.append(copy.deepcopy(model))
    )
    logits(model, **inputs, adapter_names=["two", "one"])
    hook.remove()
    for clone in (*copies, pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(logits(clone, **inputs), logits(model, **inputs))


@pytest.mark.parametrize("inner", ["mixed", "plain", "disabled"])
def test_a_call_inside_of_a_mixed_one_has_its_own_examples(inner):
    """As a logits processor makes one."""
    model = adapted("t5", {"one": CompacterConfig(), "two": CompacterConfig()})
    inputs, names = inputs_of("t5"), {"adapter_names": ["two", "one"]}

    def call():
        if inner == "disabled":
            with model.disable_adapter():
                return logits(model, **inputs)
        return logits(model, **inputs, **(names if inner == "mixed" else {}))

    def scores(*processors):
        written = model.generate(
            input_ids=inputs["input_ids"],
            max_new_tokens=5,
            min_new_tokens=5,
            logits_processor=transformers.LogitsProcessorList(processors),
            output_logits=True,
            return_dict_in_generate=True,
            adapter_names=["two", "two"],
        )
        return torch.stack(written.logits)

    alone, expected, found = call(), scores(), []

    def process(ids, given):
        found.append(call())
        return given

    torch.testing.assert_close(scores(process), expected)
    assert len(found) == 5
    for each in found:
        torch.testing.assert_close(each, alone)

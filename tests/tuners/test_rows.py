"""Batches whose rows belong to different adapters, against each row alone under its adapter."""

from __future__ import annotations

import copy
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from peft import PeftModel, get_peft_model
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import compacter
from adapting import ADAPTER_METHODS, SMALL_ENOUGH, attach_tiny, inputs_of, logits, save, scramble
from compacter import BitFitConfig, CompacterConfig
from compacter.errors import AdapterError
from tiny_models import TINY

BASE = "__base__"


def adapted(family, configs, base=None):
    """A model with an adapter for each configuration, each different from the others."""
    torch.manual_seed(1)
    names = list(configs)
    model = get_peft_model(base or TINY[family](), configs[names[0]], adapter_name=names[0])
    for name in names[1:]:
        model.add_adapter(name, configs[name])
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if set(name.split(".")) & set(names):
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_((0.2 * noise).to(parameter.dtype))
    return model.eval()


def config_of(family, method, **settings):
    """The configuration by which a method is attached, for further adapters."""
    settings = {**SMALL_ENOUGH.get(method, {}), **settings}
    model = compacter.attach(TINY[family](), method, **settings)
    return lambda: type(model.peft_config["default"])(
        **{
            name: value
            for name, value in model.peft_config["default"].to_dict().items()
            if name not in ("peft_type", "auto_mapping", "peft_version", "tensor_digest")
        }
    )


def alone(model, name, run):
    if name == BASE:
        with model.disable_adapter():
            return run()
    model.set_adapter(name)
    return run()


def row(inputs, index):
    return {key: value[index : index + 1] for key, value in inputs.items()}


def check_rows(model, names, inputs, tolerance=1e-5):
    found = logits(model, **inputs, adapter_names=names)
    active = model.active_adapter
    for index, name in enumerate(names):
        one = row(inputs, index)
        expected = alone(model, name, lambda one=one: logits(model, **one))
        scale = max(1.0, expected.abs().max().item())
        difference = (found[index : index + 1] - expected).abs().max() / scale
        assert difference <= tolerance, (name, difference)
    model.set_adapter(active)


@pytest.mark.parametrize("method", [*ADAPTER_METHODS, "bitfit"])
def test_every_row_as_alone(method):
    config = config_of("t5", method)
    model = adapted("t5", {"one": config(), "two": config(), "three": config()})
    inputs = inputs_of("t5", batch=6)
    check_rows(model, ["two", "one", BASE, "three", "two", "one"], inputs)
    check_rows(model, ["two", "one", "three"], inputs_of("t5", batch=3))
    check_rows(model, ["two"] * 3, inputs_of("t5", batch=3))
    found = logits(model, **inputs, adapter_names=[BASE] * 6)
    torch.testing.assert_close(found, logits(TINY["t5"](), **inputs), rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", ["compacter", "bitfit"])
@pytest.mark.parametrize("family", TINY)
def test_every_family(family, method):
    config = config_of(family, method)
    model = adapted(family, {"one": config(), "two": config()})
    names = ["two", BASE, "one", "two"]
    if (family, method) in (("deberta", "bitfit"), ("deberta-v2", "bitfit")):
        with pytest.raises(AdapterError, match="computes something for all rows at once"):
            logits(model, **inputs_of(family, batch=4), adapter_names=names)
    else:
        check_rows(model, names, inputs_of(family, batch=4))


def test_padded_rows():
    model = adapted("t5", {"one": CompacterConfig(), "two": CompacterConfig()})
    inputs = inputs_of("t5", batch=3)
    inputs["attention_mask"][1, 5:] = 0
    check_rows(model, ["two", "one", "two"], inputs)


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
    check_rows(model, [*configs, BASE, "small", "wide"], inputs_of("t5", batch=11))


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
    """One row of a batch, three samples of it: all by the row's adapter."""
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
        one = row(inputs, index)
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
    check_rows(model, ["two", BASE, "one", "three"], inputs_of(family, batch=4), tolerance=1e-4)


def test_half_precision_base():
    base = TINY["llama"]().to(torch.bfloat16)
    model = adapted("llama", {"one": CompacterConfig(), "two": CompacterConfig()}, base)
    check_rows(model, ["two", BASE, "one", "two"], inputs_of("llama", batch=4), tolerance=0.1)


def test_adapters_loaded_from_files(tmp_path):
    for name in ("one", "two"):
        model = attach_tiny("t5", "compacter", bottleneck=8)
        scramble(model, std=0.1 if name == "one" else 0.2)
        save(model, tmp_path / name)
    loaded = PeftModel.from_pretrained(TINY["t5"](), tmp_path / "one", adapter_name="one").eval()
    loaded.load_adapter(tmp_path / "two", adapter_name="two")
    check_rows(loaded, ["two", "one", BASE], inputs_of("t5", batch=3))


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


def test_gradients_reach_the_adapters_of_the_rows():
    model = adapted("t5", {"one": CompacterConfig(), "two": CompacterConfig()})
    inputs = inputs_of("t5")
    for parameter in model.parameters():
        parameter.requires_grad_(True)

    def gradients():
        found = {n: p.grad for n, p in model.named_parameters() if ".compacter_" in n}
        model.zero_grad()
        return {n: torch.zeros(()) if g is None else g for n, g in found.items()}

    model(**inputs, adapter_names=["two", "one"]).logits.square().sum().backward()
    found = gradients()
    for index, name in enumerate(["two", "one"]):
        model.set_adapter(name)
        model(**row(inputs, index)).logits.square().sum().backward()
        own = {n: g for n, g in gradients().items() if f".{name}" in n}
        assert len(own) == len(found) // 2
        for parameter, gradient in own.items():
            torch.testing.assert_close(found[parameter], gradient, rtol=1e-3, atol=1e-3)


def test_adapters_are_stacked_not_looped_over():
    """The number of operations does not depend on the number of adapters in the batch."""

    class Count(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            Count.calls += 1
            return function(*args, **(kwargs or {}))

    model = adapted("t5", {f"task-{i}": CompacterConfig() for i in range(8)})
    inputs = inputs_of("t5", batch=8)

    def operations(names):
        Count.calls = 0
        with Count():
            logits(model, **inputs, adapter_names=names)
        return Count.calls

    few = operations([f"task-{i % 2}" for i in range(8)])
    assert operations([f"task-{i}" for i in range(8)]) <= few


@pytest.mark.parametrize(
    ("family", "call"), [("t5", "forward"), ("t5", "generate"), ("bert", "forward")]
)
@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["one", "nope"],
            r"adapter_names has 'nope', which is no adapter .* expected 'one', 'two'",
        ),
        (["one"], "adapter_names has 1 names for a batch of 2 rows; expected one each"),
        (["one", "two", "one", "two"], "has 4 names for a batch of 2 rows"),
        ([], "expected a list with one name for each row"),
        ("one", "expected a list with one name for each row"),
    ],
)
def test_names_that_do_not_fit_the_batch(family, call, names, message):
    model = compacter.attach(TINY[family](), "compacter", adapter_name="one").eval()
    model.add_adapter("two", CompacterConfig(task_type=model.peft_config["one"].task_type))
    inputs = inputs_of(family)
    before = logits(model, **inputs)
    run = model.forward if call == "forward" else model.generate
    batch = inputs if call == "forward" else {"input_ids": inputs["input_ids"]}
    with pytest.raises(AdapterError, match=message):
        run(**batch, adapter_names=names)
    assert torch.equal(logits(model, **inputs), before)


def test_an_error_inside_leaves_no_rows_behind():
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


def test_what_cannot_be_mixed_is_refused():
    inputs = inputs_of("t5")
    model = attach_tiny("t5", "intrinsic-said")
    with pytest.raises(AdapterError, match="moves every weight of the model"):
        model(**inputs, adapter_names=["default", BASE])
    model = attach_tiny("t5", "compacter").train()
    with pytest.raises(AdapterError, match=r"in training mode.*call model.eval\(\)"):
        model(**inputs, adapter_names=["default", BASE])
    model = attach_tiny("gpt2", "bitfit")
    model.merge_adapter()
    with pytest.raises(AdapterError, match="is merged into the base model, for all rows"):
        model(**inputs_of("gpt2"), adapter_names=["default", BASE])


XLNET = transformers.XLNetConfig(vocab_size=64, d_model=32, n_layer=2, n_head=4, d_inner=64)
LONGFORMER = transformers.LongformerConfig(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    attention_window=4,
    max_position_embeddings=64,
)


@pytest.mark.parametrize(
    ("base", "config"),
    [
        (lambda: transformers.XLNetLMHeadModel(XLNET), BitFitConfig),
        (
            lambda: transformers.XLNetLMHeadModel(XLNET),
            lambda: CompacterConfig(positions=("feed_forward",)),
        ),
        (lambda: transformers.LongformerForMaskedLM(LONGFORMER), BitFitConfig),
    ],
)
def test_modules_that_see_the_length_first_are_refused(base, config):
    """The length is a multiple of the batch, so that shapes do not tell."""
    model = adapted("", {"one": config(), "two": config()}, base())
    with pytest.raises(AdapterError, match=r"calls .* with \(length, batch, width\)"):
        model(input_ids=torch.arange(8, 24).reshape(2, 8), adapter_names=["one", "two"])


def longformer_with_a_decoder():
    decoder = transformers.BertConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        is_decoder=True,
        add_cross_attention=True,
    )
    return transformers.EncoderDecoderModel(
        encoder=transformers.LongformerModel(LONGFORMER),
        decoder=transformers.BertLMHeadModel(decoder),
    )


def mixture_of_experts():
    return transformers.NllbMoeForConditionalGeneration(
        transformers.NllbMoeConfig(
            vocab_size=64,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            num_experts=2,
            encoder_sparse_step=2,
            decoder_sparse_step=2,
            expert_capacity=64,
        )
    )


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (longformer_with_a_decoder, r"'longformer' calls encoder.* with \(length, batch, width\)"),
        (mixture_of_experts, "belongs to an expert, which is called with the tokens sent to it"),
    ],
)
def test_parts_of_a_model_that_see_no_rows_are_refused(base, message):
    model = adapted("", {"one": BitFitConfig(), "two": BitFitConfig()}, base())
    ids = torch.arange(8, 24).reshape(2, 8)
    with pytest.raises(AdapterError, match=message):
        model(input_ids=ids, decoder_input_ids=ids[:, :4], adapter_names=["one", "two"])


def with_images(first: int, second: int) -> dict[str, Tensor]:
    """Two rows for the tiny Gemma 3 with so many images, and their image tokens."""
    image = [94, *[95] * 4, 93]
    rows = [image * count + list(range(7, 7 + 6 * (2 - count))) for count in (first, second)]
    ids, pixels = torch.tensor(rows), torch.randn(first + second, 3, 16, 16)
    return {"input_ids": ids, "token_type_ids": (ids == 95).long(), "pixel_values": pixels}


def test_images_are_shared_out_among_the_adapters_where_every_row_has_as_many():
    base = TINY["gemma3"]()
    torch.manual_seed(0)
    nn.init.normal_(base.model.multi_modal_projector.mm_input_projection_weight, std=0.5)
    model = adapted("gemma3", {"one": CompacterConfig(), "two": CompacterConfig()}, base)
    check_rows(model, ["one", "two"], with_images(1, 1))
    with pytest.raises(AdapterError, match=r"not the same number .*rows: \[8, 0\]"):
        model(**with_images(2, 0), adapter_names=["one", "two"])
    text = CompacterConfig(train_layer_norms=False)
    model = adapted("gemma3", {"one": text, "two": text})
    model(**with_images(2, 0), adapter_names=["one", "two"])  # images pass no adapter


def test_of_a_longformer_only_what_sees_the_length_first_is_refused():
    torch.manual_seed(0)
    base = transformers.LongformerForMaskedLM(LONGFORMER).eval()
    model = adapted("", {"one": CompacterConfig(), "two": CompacterConfig()}, base)
    ids = torch.arange(8, 24).reshape(2, 8)
    check_rows(model, ["one", "two"], {"input_ids": ids})


def test_norms_over_tables_of_positions_are_refused():
    """DeBERTa normalises its relative positions, once for all rows."""
    base = TINY["deberta-v2"]()
    base.config.norm_rel_ebd = "layer_norm"
    base = type(base)(base.config).eval()
    model = adapted("deberta-v2", {"one": CompacterConfig(), "two": CompacterConfig()}, base)
    with pytest.raises(AdapterError, match="computes something for all rows at once"):
        logits(model, **inputs_of("deberta-v2"), adapter_names=["one", "two"])

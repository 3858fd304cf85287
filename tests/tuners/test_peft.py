"""PEFT, whole: several adapters, switching, disabling, deleting, merging, copying, compiling."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import transformers
from peft import AutoPeftModelForSeq2SeqLM, PeftConfig, PeftModel, get_peft_model

import compacter
from adapting import (
    TUNER_METHODS,
    attach_tiny,
    changed,
    inputs_of,
    logits,
    parameters_of,
    save,
    scramble,
    train,
    unchanged,
)
from compacter import BitFitConfig, CompacterConfig, IntrinsicSAIDConfig
from compacter.errors import AdapterError
from compacter.tuners.layers import SharedParameters
from tiny_models import TINY

CONFIGS = {
    "compacter": lambda: CompacterConfig(bottleneck=8),
    "bitfit": BitFitConfig,
    "intrinsic-said": lambda: IntrinsicSAIDConfig(intrinsic_dim=300),
}


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


def scrambled(config, seed: int = 0):
    torch.manual_seed(seed)
    model = get_peft_model(TINY["t5"](), config()).eval()
    scramble(model)
    return model


def test_get_peft_model(config):
    model = get_peft_model(TINY["t5"](), config())
    trained, total = model.get_nb_trainable_parameters()
    assert 0 < trained < total
    loss = train(model, inputs_of("t5"), steps=1)
    assert train(model, inputs_of("t5"), steps=20) < loss


def test_two_adapters_switch_without_touching_each_other(config):
    model, inputs = scrambled(config), inputs_of("t5")
    base, first = logits(TINY["t5"](), **inputs), logits(model, **inputs)
    model.add_adapter("second", config())
    assert torch.equal(logits(model, **inputs), first)
    model.set_adapter("second")
    torch.testing.assert_close(logits(model, **inputs), base, rtol=0, atol=1e-4)
    before = parameters_of(model)
    train(model, inputs)
    assert all(".second" in name for name in changed(before, model))
    second = logits(model, **inputs)
    model.set_adapter("default")
    assert torch.equal(logits(model, **inputs), first)
    model.set_adapter("second")
    assert torch.equal(logits(model, **inputs), second)


def test_adapters_of_different_shape_live_together():
    model, inputs = scrambled(lambda: CompacterConfig(bottleneck=8)), inputs_of("t5")
    first = logits(model, **inputs)
    model.add_adapter("dense", CompacterConfig(projection="dense", bottleneck=5, drop_layers=1))
    model.add_adapter("other", CompacterConfig(n=2, bottleneck=6, positions=("feed_forward",)))
    for name in ("dense", "other"):
        model.set_adapter(name)
        scramble(model)
        assert not torch.equal(logits(model, **inputs), first)
    model.set_adapter("default")
    assert torch.equal(logits(model, **inputs), first)


def test_disable_adapter_gives_the_base_model(config):
    model, inputs = scrambled(config), inputs_of("t5")
    with model.disable_adapter():
        assert torch.equal(logits(model, **inputs), logits(TINY["t5"](), **inputs))
    assert not torch.equal(logits(model, **inputs), logits(TINY["t5"](), **inputs))


def test_disable_adapter_leaves_a_loaded_adapter_frozen(config, tmp_path):
    """PEFT's own layers make it trainable."""
    model = PeftModel.from_pretrained(TINY["t5"](), save(scrambled(config), tmp_path))
    with model.disable_adapter():
        pass
    assert not any(p.requires_grad for p in model.parameters())
    trainable = scrambled(config)
    names = {n for n, p in trainable.named_parameters() if p.requires_grad}
    with trainable.disable_adapter():
        assert not any(p.requires_grad for p in trainable.parameters())
    assert {n for n, p in trainable.named_parameters() if p.requires_grad} == names


def test_delete_adapter(config):
    model, inputs = scrambled(config), inputs_of("t5")
    first = logits(model, **inputs)
    names = set(model.state_dict())
    model.add_adapter("second", config())
    model.set_adapter("second")
    scramble(model)
    model.delete_adapter("second")
    assert set(model.state_dict()) == names
    assert model.active_adapter in ("default", ["default"])
    assert torch.equal(logits(model, **inputs), first)
    model.delete_adapter("default")  # after which a PeftModel itself cannot be called
    assert torch.equal(logits(model.base_model.model, **inputs), logits(TINY["t5"](), **inputs))


def test_after_deleting_the_active_adapter_all_layers_use_the_same_one():
    """Layers do not all have the same adapters: "a" has none in the first layers."""
    model, inputs = scrambled(lambda: CompacterConfig(bottleneck=8)), inputs_of("t5")
    for name, drop in (("a", 1), ("b", 0)):
        model.add_adapter(name, CompacterConfig(bottleneck=8, drop_layers=drop))
        model.set_adapter(name)
        scramble(model)
    model.set_adapter("a")
    expected = logits(model, **inputs)
    model.set_adapter("default")
    model.delete_adapter("default")
    assert torch.equal(logits(model, **inputs), expected)


def test_one_adapter_at_a_time(config):
    model = scrambled(config)
    model.add_adapter("second", config())
    with unchanged(model), pytest.raises(AdapterError, match="2 adapters were set active"):
        model.base_model.set_adapter(["default", "second"])


def test_slow_weights_stay_one_parameter(tmp_path):
    """After loading, a second adapter, deleting, deepcopy, pickling and moving."""

    def check(model):
        slow = [n for n, _ in model.named_parameters() if "compacter_A" in n]
        assert len(slow) == len(model.peft_config)
        parameter = model.get_parameter(slow[0])
        with torch.no_grad():
            before = logits(model, **inputs)
            parameter.mul_(3.0)
            assert not torch.equal(logits(model, **inputs), before)
            parameter.div_(3.0)
        parameter.requires_grad_()
        (gradient,) = torch.autograd.grad(model(**inputs).loss, [parameter])
        assert gradient.abs().sum() > 0

    inputs = inputs_of("t5")
    model = scrambled(lambda: CompacterConfig(bottleneck=8))
    check(model)
    loaded = PeftModel.from_pretrained(TINY["t5"](), save(model, tmp_path)).eval()
    check(loaded)
    clone = copy.deepcopy(model)
    check(clone)
    with torch.no_grad():
        clone.get_parameter("base_model.model.shared_parameters.compacter_A.default").zero_()
    assert not torch.equal(logits(clone, **inputs), logits(model, **inputs))
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    check(torch.load(buffer, weights_only=False))
    model.add_adapter("second", CompacterConfig(bottleneck=8))
    model.delete_adapter("second")
    check(model)
    check(model.double().float())


@pytest.mark.parametrize("method", TUNER_METHODS)
def test_unload_gives_the_base_model_back(method):
    model, inputs = attach_tiny("t5", method), inputs_of("t5")
    scramble(model)
    bare = model.unload()
    assert [n for n, _ in bare.named_modules()] == [n for n, _ in TINY["t5"]().named_modules()]
    assert torch.equal(logits(bare, **inputs), logits(TINY["t5"](), **inputs))
    again = compacter.attach(bare, "compacter")
    assert isinstance(again, PeftModel)


@pytest.mark.parametrize("merge", ["merge_and_unload", "merge_adapter"])
def test_adapters_are_not_linear_and_cannot_be_merged(merge):
    model = scrambled(lambda: CompacterConfig(bottleneck=8))
    with unchanged(model), pytest.raises(AdapterError, match=r"cannot be merged: .* is not linear"):
        getattr(model, merge)()


def test_bitfit_merges_where_there_are_biases():
    model, inputs = attach_tiny("gpt2", "bitfit"), inputs_of("gpt2")
    scramble(model)
    expected = logits(model, **inputs)
    model.merge_adapter()
    torch.testing.assert_close(logits(model, **inputs), expected)
    model.unmerge_adapter()
    torch.testing.assert_close(logits(model, **inputs), expected)
    merged = model.merge_and_unload()
    assert type(merged) is type(TINY["gpt2"]())
    torch.testing.assert_close(logits(merged, **inputs), expected)


def test_bitfit_does_not_merge_where_there_are_none():
    model = attach_tiny("t5", "bitfit")
    with (
        unchanged(model),
        pytest.raises(AdapterError, match=r"have none to take them, encoder.*q for"),
    ):
        model.merge_and_unload()


@pytest.mark.parametrize("family", ["t5", "bert", "vit"])
def test_intrinsic_said_merges(family):
    model, inputs = attach_tiny(family, "intrinsic-said"), inputs_of(family)
    scramble(model, std=0.05)
    expected = logits(model, **inputs)
    model.merge_adapter()
    torch.testing.assert_close(logits(model, **inputs), expected, rtol=1e-4, atol=1e-4)
    model.unmerge_adapter()
    torch.testing.assert_close(logits(model, **inputs), expected, rtol=1e-4, atol=1e-4)
    merged = model.merge_and_unload()
    torch.testing.assert_close(logits(merged, **inputs), expected, rtol=1e-4, atol=1e-4)
    assert not any(isinstance(m, SharedParameters) for m in merged.modules())


def test_generate_with_beams_and_several_sequences(config):
    model, inputs = scrambled(config), inputs_of("t5")
    ids = inputs["input_ids"]
    settings = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 5, "do_sample": False}
    tokens = model.generate(input_ids=ids, **settings)
    assert len(tokens) == 2 * len(ids)
    assert torch.equal(
        tokens[:2], model.generate(input_ids=ids[:1], **settings)[:, : tokens.shape[1]]
    )


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("family", ["t5", "llama"])
def test_gradient_checkpointing_gives_the_same_gradients(config, family, reentrant):
    def gradients(checkpointing: bool):
        model = get_peft_model(TINY[family](), config())
        scramble(model, std=0.1)
        if checkpointing:
            model.enable_input_require_grads()
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.train()
        model(**inputs_of(family), use_cache=False).loss.backward()
        return {n: p.grad for n, p in model.named_parameters() if p.requires_grad}

    plain, checkpointed = gradients(False), gradients(True)
    assert plain.keys() == checkpointed.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(checkpointed[name], gradient, msg=name)


@pytest.mark.parametrize("family", ["t5", "llama", "bert"])
@pytest.mark.parametrize("method", TUNER_METHODS)
def test_half_precision_base_with_full_precision_adapter(family, method, tmp_path):
    """The norms' copies are float32 too: steps of 3e-3 vanish in a bfloat16 of value 1."""
    base = TINY[family]().to(torch.bfloat16)
    settings = {"drop_layers": 1} if method == "adapter-drop" else {}
    if method == "intrinsic-said":
        settings["intrinsic_dim"] = 400
    model = compacter.attach(base, method, **settings)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert {p.dtype for n, p in trained.items() if "modules_to_save" not in n} == {torch.float32}
    inputs = inputs_of(family)
    before = parameters_of(model)
    train(model, inputs, lr=3e-3)
    assert {n for n in changed(before, model) if "modules_to_save" not in n} == {
        n for n in trained if "modules_to_save" not in n
    }
    expected = logits(model, **inputs)
    assert expected.dtype == torch.bfloat16
    fresh = TINY[family]().to(torch.bfloat16)
    loaded = PeftModel.from_pretrained(fresh, save(model, tmp_path)).eval()
    assert torch.equal(logits(loaded, **inputs), expected)


def test_adapter_in_half_precision_too(config):
    model = get_peft_model(TINY["t5"]().to(torch.bfloat16), config(), autocast_adapter_dtype=False)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert torch.isfinite(logits(model, **inputs_of("t5"))).all()


def test_autocast(config):
    model, inputs = scrambled(config), inputs_of("t5")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(**inputs).loss
    loss.backward()
    trained = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    assert all(g is not None and torch.isfinite(g).all() for g in trained.values())
    assert loss.item() == pytest.approx(model(**inputs).loss.item(), rel=0.05)


@pytest.mark.parametrize("name", ["compacter", "bitfit"])
def test_compiles_without_graph_breaks(name):
    torch._dynamo.reset()
    inputs = inputs_of("llama")
    model = get_peft_model(TINY["llama"](), CONFIGS[name]())
    scramble(model)
    expected = model(**inputs)
    expected.loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}
    model.zero_grad()
    found = torch.compile(model, backend="aot_eager", fullgraph=True)(**inputs)
    torch.testing.assert_close(found.logits, expected.logits)
    found.loss.backward()
    for parameter_name, parameter in model.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, gradients[parameter_name])


def test_intrinsic_said_runs_under_compile():
    """Its projections come from numpy's generator, outside of the graph."""
    torch._dynamo.reset()
    model, inputs = scrambled(CONFIGS["intrinsic-said"]), inputs_of("t5")
    found = torch.compile(model, backend="aot_eager")(**inputs)
    torch.testing.assert_close(found.logits, model(**inputs).logits)


def test_transformers_own_add_and_load_adapter(config, tmp_path):
    trained, inputs = scrambled(config), inputs_of("t5")
    expected = logits(trained, **inputs)
    folder = save(trained, tmp_path / "peft")
    base = TINY["t5"]()
    base.load_adapter(folder, adapter_name="loaded")
    assert torch.equal(logits(base, **inputs), expected)
    assert not any(p.requires_grad for p in base.parameters())
    base.add_adapter(config(), adapter_name="fresh")
    torch.testing.assert_close(
        logits(base, **inputs), logits(TINY["t5"](), **inputs), rtol=0, atol=1e-4
    )
    base.set_adapter("loaded")
    assert torch.equal(logits(base, **inputs), expected)
    base.save_pretrained(tmp_path / "transformers")
    again = PeftModel.from_pretrained(TINY["t5"](), tmp_path / "transformers").eval()
    assert torch.equal(logits(again, **inputs), expected)
    base.delete_adapter("loaded")
    base.set_adapter("fresh")
    torch.testing.assert_close(
        logits(base, **inputs), logits(TINY["t5"](), **inputs), rtol=0, atol=1e-4
    )


def test_low_cpu_mem_usage(config, tmp_path):
    trained, inputs = scrambled(config), inputs_of("t5")
    folder = save(trained, tmp_path)
    loaded = PeftModel.from_pretrained(TINY["t5"](), folder, low_cpu_mem_usage=True).eval()
    assert torch.equal(logits(loaded, **inputs), logits(trained, **inputs))


def test_auto_classes_find_model_and_adapter(config, tmp_path):
    TINY["t5"]().save_pretrained(tmp_path / "base")
    from transformers import AutoModelForSeq2SeqLM

    base = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "base")
    model = get_peft_model(base, config()).eval()
    scramble(model)
    folder = save(model, tmp_path / "adapter")
    assert type(PeftConfig.from_pretrained(folder)) is type(config())
    loaded = AutoPeftModelForSeq2SeqLM.from_pretrained(folder).eval()
    inputs = inputs_of("t5")
    assert torch.equal(logits(loaded, **inputs), logits(model, **inputs))


def test_several_adapters_from_files(config, tmp_path):
    folders, expected, inputs = [], [], inputs_of("t5")
    for index in range(2):
        model = scrambled(config, seed=index)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.mul_(1.0 + index)
        folders.append(save(model, tmp_path / str(index)))
        expected.append(logits(model, **inputs))
    model = PeftModel.from_pretrained(TINY["t5"](), folders[0], adapter_name="one").eval()
    model.load_adapter(folders[1], adapter_name="two")
    assert torch.equal(logits(model, **inputs), expected[0])
    model.set_adapter("two")
    assert torch.equal(logits(model, **inputs), expected[1])
    model.save_pretrained(str(tmp_path / "both"))
    again = PeftModel.from_pretrained(TINY["t5"](), tmp_path / "both" / "two").eval()
    assert torch.equal(logits(again, **inputs), expected[1])


def test_model_card_says_how_to_load(config, tmp_path):
    save(scrambled(config), tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert card.count("import compacter") == 1
    assert "PeftModel.from_pretrained" in card


def test_any_module_with_a_known_width_can_be_adapted():
    """Quantised linears have out_features, whatever their weight looks like."""

    class EightBit(torch.nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.in_features, self.out_features = linear.in_features, linear.out_features
            self.scale = float(linear.weight.detach().abs().max() / 127)
            weight = (linear.weight.detach() / self.scale).round().to(torch.int8)
            self.weight = torch.nn.Parameter(weight, requires_grad=False)

        def forward(self, x):
            return x @ (self.weight.to(x.dtype) * self.scale).T

    base = TINY["llama"]()
    for layer in base.model.layers:
        layer.mlp.down_proj = EightBit(layer.mlp.down_proj)
        layer.self_attn.o_proj = EightBit(layer.self_attn.o_proj)
    inputs = inputs_of("llama")
    expected = logits(base, **inputs)
    model = compacter.attach(base, "compacter").eval()
    torch.testing.assert_close(logits(model, **inputs), expected, rtol=0, atol=1e-4)
    assert all(p.is_floating_point() for p in model.parameters() if p.requires_grad)
    before = parameters_of(model)
    train(model, inputs)
    assert len(changed(before, model)) == sum(p.requires_grad for p in model.parameters())


def test_a_direct_call_of_the_encoder_uses_the_adapter():
    model, inputs = scrambled(CONFIGS["compacter"]), inputs_of("t5")
    base = TINY["t5"]()
    ids = inputs["input_ids"]
    adapted = model.get_base_model().encoder(input_ids=ids).last_hidden_state
    assert not torch.allclose(adapted, base.encoder(input_ids=ids).last_hidden_state, atol=1e-2)


def test_attributes_of_a_wrapped_module_reach_the_right_one():
    model = scrambled(CONFIGS["compacter"]).get_base_model()
    norm = model.encoder.final_layer_norm
    assert norm.variance_epsilon == TINY["t5"]().encoder.final_layer_norm.variance_epsilon
    assert norm.weight is norm.compacter_norm["default"].weight
    wo = model.encoder.block[0].layer[1].DenseReluDense.wo
    assert wo.weight is wo.base_layer.weight
    assert (wo.in_features, wo.out_features) == (48, 32)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = wo.no_such_thing
    norm.enable_adapters(False)
    model.shared_parameters.enable_adapters(False)
    assert norm.weight is norm.base_layer.weight


def test_intrinsic_said_keeps_no_projected_weight_for_the_backward_pass():
    """P theta is as large as the model; only what a plain layer keeps may be kept."""
    model, inputs = scrambled(CONFIGS["intrinsic-said"]), inputs_of("t5")
    weights = {p.data_ptr() for p in model.parameters()}
    shapes = {tuple(p.shape) for p in model.get_base_model().parameters() if p.dim() == 2}
    kept = []

    def pack(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(**inputs).loss
    projected = [
        t
        for t in kept
        if tuple(t.shape) in shapes | {s[::-1] for s in shapes} and t.data_ptr() not in weights
    ]
    assert kept
    assert not projected
    loss.backward()


def trainable_names(model):
    return {name for name, p in model.named_parameters() if p.requires_grad}


def test_disabling_leaves_flags_as_they_were(config, tmp_path):
    """Also when a frozen adapter was loaded beside a trainable one, or the other way round."""
    folder = save(scrambled(config), tmp_path)
    model = get_peft_model(TINY["t5"](), config())
    model.load_adapter(folder, adapter_name="reference")
    before = trainable_names(model)
    assert before
    with model.disable_adapter():
        pass
    assert trainable_names(model) == before
    loaded = PeftModel.from_pretrained(TINY["t5"](), folder)
    loaded.add_adapter("second", config())
    before = trainable_names(loaded)
    with loaded.disable_adapter():
        pass
    assert trainable_names(loaded) == before
    loaded.set_requires_grad("default", True)
    before = trainable_names(loaded)
    with loaded.disable_adapter():
        pass
    assert trainable_names(loaded) == before


def test_disabling_leaves_a_frozen_head_frozen(tmp_path):
    folder = save(attach_tiny("bert", "compacter"), tmp_path)
    model = PeftModel.from_pretrained(TINY["bert"](), folder)
    with model.disable_adapter():
        pass
    assert not trainable_names(model)


def test_switching_while_disabled():
    model = scrambled(CONFIGS["compacter"])
    model.add_adapter("second", CompacterConfig(bottleneck=8))
    with model.disable_adapter():
        model.set_adapter("second")
    assert all(".second" in name for name in trainable_names(model))
    assert trainable_names(model)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (CompacterConfig, BitFitConfig, "adapters of another kind .compacter."),
        (BitFitConfig, lambda: IntrinsicSAIDConfig(intrinsic_dim=300), "another kind .bitfit."),
    ],
)
def test_transformers_cannot_mix_kinds_of_adapters(first, second, message):
    model = TINY["t5"]()
    model.add_adapter(first(), adapter_name="one")
    with unchanged(model), pytest.raises(AdapterError, match=message):
        model.add_adapter(second(), adapter_name="two")
    assert list(model.peft_config) == ["one"]


@pytest.mark.parametrize(
    "settings",
    [
        {"modules_to_save": ["wo"]},
        {"modules_to_save": ["lm_head"], "tune_output_layer": True},
    ],
)
def test_a_module_is_adapted_or_trained_whole(settings):
    base = TINY["t5"]()
    with unchanged(base), pytest.raises(AdapterError, match="would be both adapted and trained"):
        get_peft_model(base, CompacterConfig(bottleneck=8, **settings))


def test_a_second_adapter_beside_modules_trained_whole():
    model = get_peft_model(
        TINY["t5"](), CompacterConfig(bottleneck=8, modules_to_save=["decoder.final_layer_norm"])
    )
    with unchanged(model), pytest.raises(AdapterError, match="that another adapter trains whole"):
        model.add_adapter("second", CompacterConfig(bottleneck=8))
    model = get_peft_model(TINY["t5"](), CompacterConfig(bottleneck=8))
    second = CompacterConfig(bottleneck=8, modules_to_save=["decoder.final_layer_norm"])
    with unchanged(model), pytest.raises(AdapterError, match="cannot be trained whole"):
        model.add_adapter("second", second)


def test_a_head_with_buffers_is_saved_and_loaded(tmp_path):
    def base():
        model = TINY["bert"]()
        torch.manual_seed(4)
        model.classifier = torch.nn.Sequential(torch.nn.Linear(32, 2), torch.nn.BatchNorm1d(2))
        return model.eval()

    model = compacter.attach(base(), "compacter")
    inputs = inputs_of("bert")
    train(model, inputs)
    loaded = PeftModel.from_pretrained(base(), save(model, tmp_path)).eval()
    assert torch.equal(logits(loaded, **inputs), logits(model, **inputs))


NEW_HEADS = [
    ("bart", "BartForSequenceClassification", "classification_head"),
    ("t5", "T5ForSequenceClassification", "classification_head"),
    ("bert", "BertForQuestionAnswering", "qa_outputs"),
    ("distilbert", "DistilBertForSequenceClassification", "pre_classifier"),
]
NEW_HEADS_WITHOUT_PROMPTS = [
    ("bert", "BertForMultipleChoice", "classifier"),
    ("vit", "ViTForImageClassification", "classifier"),
]


@pytest.mark.parametrize(
    ("method", "family", "model_class", "head"),
    [
        *(("compacter", *case) for case in NEW_HEADS + NEW_HEADS_WITHOUT_PROMPTS),
        *(("prompt-tuning-r", *case) for case in NEW_HEADS),
    ],
)
def test_new_heads_are_trained(method, family, model_class, head):
    base = getattr(transformers, model_class)(TINY[family]().config)
    settings = {"num_tokens": 3} if method == "prompt-tuning-r" else {}
    model = compacter.attach(base, method, **settings)
    assert any(f".{head}.modules_to_save." in name for name in trainable_names(model))


def test_bitfit_on_channels():
    """Convolutions and group norms have their channels in the second dimension."""

    class Sound(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(
                torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Linear(5, 5)) for _ in range(2)
            )
            self.conv = torch.nn.Conv1d(3, 4, 1)
            self.norm = torch.nn.GroupNorm(2, 4)
            self.batch = torch.nn.BatchNorm1d(4)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.batch(self.norm(self.conv(x)))

    torch.manual_seed(0)
    model = get_peft_model(Sound().eval(), BitFitConfig(biases="existing")).eval()
    scramble(model)
    x = torch.randn(2, 3, 5)
    expected = model(x)
    torch.testing.assert_close(model.merge_and_unload()(x), expected)

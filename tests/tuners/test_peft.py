"""PEFT, whole: several adapters, switching, disabling, deleting, copying, saving, loading."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from peft import AutoPeftModelForSeq2SeqLM, PeftConfig, PeftModel, get_peft_model

import compacter
from adapting import (
    CONFIGS,
    changed,
    inputs_of,
    logits,
    parameters_of,
    save,
    scramble,
    scrambled,
    train,
    trainable_names,
    unchanged,
)
from compacter import BitFitConfig, CompacterConfig, IntrinsicSAIDConfig
from compacter.errors import AdapterError
from tiny_models import TINY


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
        slow = [n for n, _ in model.named_parameters() if n.endswith(".A")]
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
        clone.get_parameter("base_model.model.adapters.compacter_weights.default.A").zero_()
    assert not torch.equal(logits(clone, **inputs), logits(model, **inputs))
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    check(torch.load(buffer, weights_only=False))
    model.add_adapter("second", CompacterConfig(bottleneck=8))
    model.delete_adapter("second")
    check(model)
    check(model.double().float())


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


def test_attributes_of_a_wrapped_module_reach_the_right_one():
    adapted = scrambled(CONFIGS["compacter"])
    model = adapted.get_base_model()
    norm = model.encoder.final_layer_norm
    assert norm.variance_epsilon == TINY["t5"]().encoder.final_layer_norm.variance_epsilon
    (trained,) = (p for n, p in model.named_parameters() if n.endswith(".layernorm_weight"))
    assert any(torch.equal(norm.weight, row) for row in trained)
    assert not torch.equal(norm.weight, norm.base_layer.weight)
    wo = model.encoder.block[0].layer[1].DenseReluDense.wo
    assert wo.weight is wo.base_layer.weight
    assert (wo.in_features, wo.out_features) == (48, 32)
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = wo.no_such_thing
    with adapted.disable_adapter():
        assert norm.weight is norm.base_layer.weight


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

"""Files: what is in them, and that a damaged or foreign one is refused with the model untouched."""

from __future__ import annotations

import json
import os
import stat
import struct
from pathlib import Path

import pytest
import torch
from peft import PeftConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import T5Config, T5ForConditionalGeneration

import compacter
from adapting import attach_tiny, inputs_of, logits, save, scramble, unchanged
from compacter import CompacterConfig
from compacter.errors import AdapterError, CompacterError
from compacter.tuners.files import FORMAT_VERSION
from tiny_models import TINY

METHODS = ("compacter++", "adapter", "bitfit", "intrinsic-said")


@pytest.fixture(params=METHODS)
def folder(request, tmp_path):
    model = attach_tiny("t5", request.param)
    scramble(model)
    return Path(save(model, tmp_path / "adapter"))


def weights(folder: Path) -> Path:
    return folder / "adapter_model.safetensors"


def edit_config(folder: Path, **values):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def assert_refused(folder: Path, message: str, base=None):
    """Into a bare model, and beside an adapter that is there already."""
    base = TINY["t5"]() if base is None else base
    with unchanged(base), pytest.raises(CompacterError, match=message):
        PeftModel.from_pretrained(base, folder)
    kind = PeftConfig.from_pretrained
    try:
        config = type(kind(folder))()
    except ValueError:
        return
    if hasattr(config, "intrinsic_dim"):
        config.intrinsic_dim = 300
    if hasattr(config, "bottleneck"):
        config.bottleneck = 8
    adapted = get_peft_model(base, config)
    with unchanged(adapted), pytest.raises(CompacterError, match=message):
        adapted.load_adapter(folder, adapter_name="second")
    assert list(adapted.peft_config) == ["default"]


def test_a_good_file_is_not_refused(folder):
    assert PeftModel.from_pretrained(TINY["t5"](), folder)


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_files_are_readable_as_the_umask_allows(mask, tmp_path):
    """Safetensors alone would make the weights readable for their owner only."""
    model, before = attach_tiny("t5", "compacter"), os.umask(mask)
    try:
        folder = Path(save(model, tmp_path / "adapter"))
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert set(modes.values()) == {0o666 & ~mask}
    assert {"adapter_config.json", "adapter_model.safetensors"} <= modes.keys()


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9, 0.999])
def test_truncated_file(folder, keep):
    content = weights(folder).read_bytes()
    weights(folder).write_bytes(content[: int(keep * len(content))])
    assert_refused(folder, "is damaged or not complete .* expected a whole safetensors file")


def test_damaged_header(folder):
    content = bytearray(weights(folder).read_bytes())
    content[8:40] = b"?" * 32
    weights(folder).write_bytes(content)
    assert_refused(folder, "is damaged")


def test_header_that_claims_too_much(folder):
    content = bytearray(weights(folder).read_bytes())
    content[:8] = struct.pack("<Q", 10**12)
    weights(folder).write_bytes(content)
    assert_refused(folder, "is damaged")


def test_weights_missing(folder):
    weights(folder).unlink()
    assert_refused(folder, "has a configuration but no adapter_model.safetensors; expected both")


def test_pickle_is_never_read(folder):
    tensors = load_file(weights(folder))
    weights(folder).unlink()
    torch.save(tensors, folder / "adapter_model.bin")
    assert_refused(folder, "adapter_model.bin, a pickle, .* is never read")


def test_pickle_is_never_kept(tmp_path):
    model = attach_tiny("t5", "compacter")
    for name in ("empty", "saved"):  # also not beside the safetensors of an earlier save
        if name == "saved":
            save(model, tmp_path / name)
        with pytest.raises(AdapterError, match="adapters are saved as safetensors only"):
            model.save_pretrained(str(tmp_path / name), safe_serialization=False)
        assert not (tmp_path / name / "adapter_model.bin").exists()
    assert not (tmp_path / "empty" / "adapter_config.json").exists()


def test_transformers_refuses_an_adapter_of_another_model(folder):
    base = TINY["bert"]()
    with unchanged(base), pytest.raises(AdapterError, match="does not fit this model"):
        base.load_adapter(str(folder))
    assert not getattr(base, "peft_config", None)


def test_a_tensor_missing(folder):
    tensors = load_file(weights(folder))
    name = sorted(tensors)[-1]
    del tensors[name]
    save_file(tensors, weights(folder))
    assert_refused(folder, f"does not fit this model .*{name} is missing")


def test_a_tensor_too_many(folder):
    tensors = load_file(weights(folder)) | {"base_model.model.extra": torch.ones(1)}
    save_file(tensors, weights(folder))
    assert_refused(folder, "base_model.model.extra has no place in this model")


def test_newer_format(folder):
    edit_config(folder, format_version=FORMAT_VERSION + 1, a_setting_of_the_future=3)
    with pytest.warns(UserWarning, match="a_setting_of_the_future"):
        assert_refused(folder, "format version 2; this release of compacter reads versions up to 1")


def test_other_model_size(folder):
    wider = T5ForConditionalGeneration(
        T5Config(vocab_size=96, d_model=64, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
    )
    if json.loads((folder / "adapter_config.json").read_text())["peft_type"] == "INTRINSIC_SAID":
        wider = T5ForConditionalGeneration(  # theta does not depend on widths, but on depth
            T5Config(vocab_size=96, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_heads=4)
        )
    assert_refused(folder, "does not fit this model", wider)


def test_deeper_and_other_models(folder):
    assert_refused(folder, "does not fit this model", TINY["llama"]())


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("compacter", {"n": 2}),
        ("compacter", {"rank": 2}),
        ("compacter", {"bottleneck": 8}),
        ("compacter", {"positions": ["attention"]}),
        ("compacter", {"use_bias": False}),
        ("compacter", {"train_layer_norms": False}),
        ("compacter", {"drop_layers": 1}),
        ("compacter", {"projection": "dense"}),
        ("compacter", {"tune_output_layer": True}),
        ("intrinsic-said", {"intrinsic_dim": 401}),
        ("bitfit", {"tune_output_layer": True}),
    ],
)
def test_settings_that_do_not_belong_to_the_tensors(method, setting, tmp_path):
    folder = Path(save(attach_tiny("t5", method), tmp_path))
    edit_config(folder, **setting)
    assert_refused(folder, "does not fit this model and its own settings")


def test_settings_that_make_no_sense(tmp_path):
    folder = Path(save(attach_tiny("t5", "compacter"), tmp_path))
    edit_config(folder, n=3)
    assert_refused(folder, "n=3 does not divide")


def test_other_number_of_labels(tmp_path):
    from transformers import BertForSequenceClassification

    folder = Path(save(attach_tiny("bert", "compacter"), tmp_path))
    config = TINY["bert"]().config
    config.num_labels = 5
    base = BertForSequenceClassification(config)
    with unchanged(base), pytest.raises(AdapterError, match=r"classifier.* expected \[5"):
        PeftModel.from_pretrained(base, folder)


def test_tensors_given_by_hand_are_checked_before_any_is_copied(folder):
    tensors = load_file(weights(folder))
    model = PeftModel.from_pretrained(TINY["t5"](), folder)
    incomplete = dict(list(tensors.items())[:-1])
    with unchanged(model), pytest.raises(AdapterError, match=r"the given tensors .* is missing"):
        set_peft_model_state_dict(model, {n: t + 1 for n, t in incomplete.items()})


def test_a_config_from_a_file_starts_new_adapters_too(folder):
    """PeftConfig.from_pretrained reads settings only, and they fit any model."""
    config = PeftConfig.from_pretrained(folder)
    config.inference_mode = False
    model = get_peft_model(TINY["t5"](), config)
    assert any(p.requires_grad for p in model.parameters())


def test_a_config_alone_can_be_stored(tmp_path):
    CompacterConfig(bottleneck=8).save_pretrained(tmp_path)
    assert CompacterConfig.from_pretrained(tmp_path).bottleneck == 8


def test_a_config_of_another_kind(tmp_path):
    save(attach_tiny("t5", "bitfit"), tmp_path)
    with pytest.raises(AdapterError, match="holds a BitFitConfig, expected a CompacterConfig"):
        CompacterConfig.from_pretrained(tmp_path)


def test_tensor_names_of_format_version_1(tmp_path):
    """docs/file-format.md; files with these names must stay loadable."""

    def names(method, **settings):
        save(attach_tiny("t5", method, **settings), tmp_path / method)
        return {
            name.removeprefix("base_model.model.adapters."): tuple(tensor.shape)
            for name, tensor in load_file(weights(tmp_path / method)).items()
        }

    norms = {"layernorm_weight": (12, 32)}
    biases = {"down_bias": (8, 8), "up_bias": (8, 32)}

    def compacter(**shapes):
        return {f"compacter_weights.{name}": shape for name, shape in (shapes | norms).items()}

    assert names("compacter", bottleneck=8) == compacter(
        A=(4, 4, 4),
        down_s=(8, 4, 8, 1),
        down_t=(8, 4, 1, 2),
        up_s=(8, 4, 2, 1),
        up_t=(8, 4, 1, 8),
        **biases,
    )
    assert names("phm-adapter", n=4, bottleneck=8) == compacter(
        down_A=(8, 4, 4, 4),
        down_B=(8, 4, 8, 2),
        up_A=(8, 4, 4, 4),
        up_B=(8, 4, 2, 8),
        **biases,
    )
    assert names("adapter", bottleneck=8) == compacter(down_W=(8, 32, 8), up_W=(8, 8, 32), **biases)
    assert names("adapter-lowrank", bottleneck=8, rank=3) == compacter(
        down_s=(8, 32, 3), down_t=(8, 3, 8), up_s=(8, 8, 3), up_t=(8, 3, 32), **biases
    )
    assert names("bitfit", tune_output_layer=True) == {
        "bitfit_weights.bias": (38, 32),
        "bitfit_weights.bias_1": (4, 48),
        "bitfit_weights.bias_2": (1, 96),
        "bitfit_weights.output_weight": (96, 32),
    }
    assert names("intrinsic-said") == {
        "intrinsic_said_weights.theta": (353,),
        "intrinsic_said_weights.lambda": (47,),
    }


def test_the_places_that_tensors_are_of(tmp_path):
    """The configuration lists them in the order of the first dimension."""
    save(attach_tiny("t5", "compacter++"), tmp_path)
    bottlenecks, norms = json.loads((tmp_path / "adapter_config.json").read_text())["places"]
    assert bottlenecks == {
        "tensors": ["down_s", "down_t", "down_bias", "up_s", "up_t", "up_bias"],
        "paths": [
            "encoder.block.0.layer.1.DenseReluDense.wo",
            "encoder.block.1.layer.1.DenseReluDense.wo",
            "decoder.block.0.layer.2.DenseReluDense.wo",
            "decoder.block.1.layer.2.DenseReluDense.wo",
        ],
    }
    assert norms["tensors"] == ["layernorm_weight"]
    assert len(norms["paths"]) == 12


def edit_places(folder, edit):
    places = json.loads((folder / "adapter_config.json").read_text())["places"]
    edit(places)
    edit_config(folder, places=places)


@pytest.fixture
def compacted(tmp_path):
    model = attach_tiny("t5", "compacter", bottleneck=8)
    scramble(model)
    return Path(save(model, tmp_path / "adapter"))


def test_places_in_another_order_are_followed(compacted):
    """A later release, or another one of transformers, may find them in another order."""
    expected = logits(PeftModel.from_pretrained(TINY["t5"](), compacted).eval(), **inputs_of("t5"))
    tensors = load_file(weights(compacted))
    for name, tensor in tensors.items():
        if "norm" not in name and not name.endswith(".A"):
            tensors[name] = tensor.flip(0).contiguous()
    save_file(tensors, weights(compacted))
    edit_places(compacted, lambda places: places[0]["paths"].reverse())
    loaded = PeftModel.from_pretrained(TINY["t5"](), compacted).eval()
    torch.testing.assert_close(logits(loaded, **inputs_of("t5")), expected)
    loaded.save_pretrained(str(compacted))
    assert torch.equal(load_file(weights(compacted))[DOWN], tensors[DOWN])
    again = PeftModel.from_pretrained(TINY["t5"](), compacted).eval()
    torch.testing.assert_close(logits(again, **inputs_of("t5")), expected)


DOWN = "base_model.model.adapters.compacter_weights.down_s"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda places: places[0]["paths"].pop(), "does not fit this model .*wo is missing"),
        (
            lambda places: places[0]["paths"].__setitem__(0, "encoder.nowhere"),
            "encoder.nowhere has no place in this model",
        ),
        (lambda places: places[0].pop("paths"), "its list of places is damaged"),
        (lambda places: places.__setitem__(0, 3), "its list of places is damaged"),
        (lambda places: places.pop(), "does not fit this model"),
        (
            lambda places: places[0]["paths"].__setitem__(0, places[0]["paths"][1]),
            "does not fit this model",
        ),
        (lambda places: places[0]["tensors"].reverse(), "does not fit this model"),
    ],
)
def test_places_that_do_not_fit(edit, message, compacted):
    edit_places(compacted, edit)
    assert_refused(compacted, message)


@pytest.mark.parametrize("places", [3, "encoder", {"down_s": []}])
def test_places_that_are_no_list(places, compacted):
    edit_config(compacted, places=places)
    assert_refused(compacted, "its list of places is damaged")


def test_size_of_a_saved_compacter_plus_plus_for_t5_base(tmp_path):
    """At most 2% above its 104,704 numbers of 4 bytes."""
    config = T5Config(
        vocab_size=100, d_model=768, d_ff=8, d_kv=1, num_layers=12, num_heads=12
    )  # T5-base in all that the adapter sees, small in the rest
    model = compacter.attach(T5ForConditionalGeneration(config), "compacter++")
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 104_704
    size = weights(Path(save(model, tmp_path))).stat().st_size
    assert size <= 1.02 * 4 * 104_704


def test_logits_after_loading_by_another_process(folder, tmp_path):
    import subprocess
    import sys

    inputs = inputs_of("t5")
    expected = logits(PeftModel.from_pretrained(TINY["t5"](), folder).eval(), **inputs)
    code = f"""
import sys, torch
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from tiny_models import TINY
from adapting import inputs_of, logits
from peft import PeftModel
model = PeftModel.from_pretrained(TINY["t5"](), {str(folder)!r}).eval()
torch.save(logits(model, **inputs_of("t5")), {str(tmp_path / "logits.pt")!r})
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert torch.equal(torch.load(tmp_path / "logits.pt"), expected)

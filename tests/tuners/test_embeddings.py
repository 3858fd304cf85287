"""Adapters that are saved with embeddings: PEFT adds these to the file where the vocabulary was
resized, where `target_modules` names them, or where it is asked to."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, Trainer, TrainingArguments

import compacter
from adapting import SMALL_ENOUGH, TUNER_METHODS, inputs_of, logits, scramble
from compacter import BitFitConfig, CompacterConfig
from compacter.errors import AdapterError, ArchitectureError
from tiny_models import TINY, VOCAB

CLASSES = {"t5": AutoModelForSeq2SeqLM, "llama": AutoModelForCausalLM}
EMBEDDING = {"t5": "shared", "llama": "embed_tokens"}

families = pytest.mark.parametrize("family", CLASSES)
methods = pytest.mark.parametrize("method", TUNER_METHODS)


@pytest.fixture
def base(family, tmp_path):
    """A function for a model that was loaded from files, with two words more than these have."""
    TINY[family]().save_pretrained(tmp_path / "base")

    def make(words=VOCAB + 2):
        model = CLASSES[family].from_pretrained(tmp_path / "base")
        torch.manual_seed(0)  # of the new words
        model.resize_token_embeddings(words)
        return model

    return make


def attached(model, method, **settings):
    torch.manual_seed(1)
    adapted = compacter.attach(model, method, **SMALL_ENOUGH.get(method, {}), **settings)
    scramble(adapted, std=0.1)
    return adapted.eval()


def tensors_in(folder):
    return load_file(folder / "adapter_model.safetensors")


def has_embedding(folder, family):
    return any(f".{EMBEDDING[family]}." in name for name in tensors_in(folder))


def assert_loads(folder, base, family, expected):
    """Alone, beside another adapter, and with others at once."""
    model = PeftModel.from_pretrained(base(), folder).eval()
    inputs = inputs_of(family)
    torch.testing.assert_close(logits(model, **inputs), expected)
    for load in (
        lambda: model.load_adapter(folder, adapter_name="second"),
        lambda: compacter.load_adapters(model, {"second": folder}),
    ):
        load()
        model.set_adapter("second")
        torch.testing.assert_close(logits(model, **inputs), expected)
        model.delete_adapter("second")
        model.set_adapter("default")


@families
@methods
def test_saved_because_it_was_asked_for(family, method, base, tmp_path):
    model = attached(base(), method)
    model.save_pretrained(tmp_path / "adapter", save_embedding_layers=True)
    assert has_embedding(tmp_path / "adapter", family)
    assert_loads(tmp_path / "adapter", base, family, logits(model, **inputs_of(family)))


@families
@methods
def test_saved_after_the_vocabulary_was_resized(family, method, base, tmp_path):
    model = attached(base(), method)
    model.save_pretrained(tmp_path / "adapter")
    assert has_embedding(tmp_path / "adapter", family)
    assert_loads(tmp_path / "adapter", base, family, logits(model, **inputs_of(family)))


@pytest.mark.parametrize("family", ["llama"])
@pytest.mark.parametrize("config", [CompacterConfig, BitFitConfig])
def test_saved_because_it_is_adapted(family, config, base, tmp_path):
    settings = {"n": 1, "bottleneck": 4} if config is CompacterConfig else {}
    with pytest.raises(ArchitectureError, match=r"'model.embed_tokens' .* no known output width"):
        get_peft_model(base(VOCAB), config(target_modules=["embed_tokens"], **settings))
    model = get_peft_model(base(VOCAB), config(target_modules=["lm_head", "o_proj"], **settings))
    scramble(model, std=0.1)
    model.eval().save_pretrained(tmp_path / "adapter")
    assert any("lm_head" in name for name in tensors_in(tmp_path / "adapter"))
    expected = logits(model, **inputs_of(family))
    assert_loads(tmp_path / "adapter", lambda: base(VOCAB), family, expected)


@pytest.mark.parametrize("family", ["llama"])
@methods
def test_trained_whole(family, method, base, tmp_path):
    model = attached(base(), method, modules_to_save=["embed_tokens", "lm_head"])
    model.save_pretrained(tmp_path / "adapter")
    assert has_embedding(tmp_path / "adapter", family)
    expected = logits(model, **inputs_of(family))
    assert not torch.allclose(expected, logits(base(), **inputs_of(family)))
    assert_loads(tmp_path / "adapter", base, family, expected)


@families
@pytest.mark.parametrize("method", ["compacter", "bitfit", "intrinsic-said"])
def test_training_goes_on_from_a_checkpoint(family, method, base, tmp_path):
    ids = inputs_of(family, batch=8)["input_ids"]
    data = [{"input_ids": row.tolist(), "labels": row.tolist()} for row in ids]

    def run(steps, **settings):
        arguments = TrainingArguments(
            str(tmp_path / "out"),
            max_steps=steps,
            save_steps=2,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            lr_scheduler_type="constant",
            use_cpu=True,
            report_to=[],
        )
        model = attached(base(), method)
        Trainer(model, arguments, train_dataset=data).train(**settings)
        return logits(model.eval(), **inputs_of(family))

    expected = run(4)
    checkpoint = tmp_path / "out" / "checkpoint-2"
    assert has_embedding(checkpoint, family)
    found = run(4, resume_from_checkpoint=str(checkpoint))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        logits(
            PeftModel.from_pretrained(base(), tmp_path / "out" / "checkpoint-4").eval(),
            **inputs_of(family),
        ),
        expected,
    )


@pytest.mark.parametrize("family", ["llama"])
def test_adapters_with_embeddings_of_their_own_in_one_batch(family, base, tmp_path):
    inputs, folders, expected = inputs_of(family), {}, []
    for name, std in (("one", 0.1), ("two", 0.2)):
        model = attached(base(), "compacter", modules_to_save=["embed_tokens", "lm_head"])
        scramble(model, std)
        expected.append(logits(model, **inputs))
        model.save_pretrained(tmp_path / name)
        folders[name] = tmp_path / name
    model = attached(base(), "compacter")
    compacter.load_adapters(model, folders)
    found = logits(model, **inputs, adapter_names=["one", "two"])
    for index, alone in enumerate(expected):
        torch.testing.assert_close(found[index], alone[index], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama"])
def test_embeddings_that_differ_from_the_models_are_not_pooled(family, base, tmp_path):
    """Unless they belong to the adapter, by modules_to_save. Nothing is loaded then."""
    model = attached(base(), "compacter")
    model.save_pretrained(tmp_path / "good")
    with torch.no_grad():
        model.get_base_model().get_input_embeddings().weight[VOCAB:] += 1.0
    model.save_pretrained(tmp_path / "other")
    model = attached(base(), "compacter")
    with pytest.raises(AdapterError, match="brings embeddings of its own"):
        compacter.load_adapters(model, {n: tmp_path / n for n in ("good", "other")})
    assert list(model.peft_config) == ["default"]

"""Heads and other modules that are trained whole, beside an adapter."""

from __future__ import annotations

import pytest
import torch
import transformers
from peft import PeftModel, get_peft_model

import compacter
from adapting import (
    attach_tiny,
    inputs_of,
    logits,
    save,
    train,
    trainable_names,
    unchanged,
)
from compacter import CompacterConfig
from compacter.errors import AdapterError
from tiny_models import TINY


def test_disabling_leaves_a_frozen_head_frozen(tmp_path):
    folder = save(attach_tiny("bert", "compacter"), tmp_path)
    model = PeftModel.from_pretrained(TINY["bert"](), folder)
    with model.disable_adapter():
        pass
    assert not trainable_names(model)


def test_disabling_twice_leaves_a_head_to_be_trained():
    model = attach_tiny("bert", "compacter")
    before = trainable_names(model)
    assert any("classifier" in name for name in before)
    with model.disable_adapter(), model.disable_adapter():
        pass
    assert trainable_names(model) == before
    for method in ("disable_adapter_layers", "disable_adapter_layers", "enable_adapter_layers"):
        getattr(model, method)()
    assert trainable_names(model) == before


def test_the_head_of_the_adapter_that_was_chosen_while_disabled_is_trained():
    model = attach_tiny("bert", "compacter")
    model.add_adapter("second", model.peft_config["default"])
    with model.disable_adapter():
        model.set_adapter("second")
    heads = {name for name in trainable_names(model) if "classifier" in name}
    assert heads
    assert all(".second." in name for name in heads)


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

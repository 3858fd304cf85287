"""What trains adapters on quantised models: Trainer, `prepare_model_for_kbit_training`, checkpoints
of activations, bfloat16."""

from __future__ import annotations

import math

import pytest
import torch
from peft import PeftModel, get_peft_model, prepare_model_for_kbit_training
from transformers import Trainer, TrainingArguments

import compacter
from adapting import logits, save, train
from compacter import BitFitConfig, CompacterConfig
from quantised_models import SCHEMES, batch_of, distance, gradients

pytestmark = [
    pytest.mark.parametrize("family", ["t5", "llama"]),
    pytest.mark.parametrize("scheme", SCHEMES),
]

CONFIGS = {"compacter": lambda: CompacterConfig(bottleneck=8), "bitfit": BitFitConfig}


def trainer(model, family, folder, **settings):
    batch = batch_of(family, batch=16)
    examples = [{key: value[row] for key, value in batch.items()} for row in range(16)]
    defaults = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "num_train_epochs": 3,
        "learning_rate": 1e-2,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "seed": 7,
    }
    arguments = TrainingArguments(**(defaults | settings))
    return Trainer(model, arguments, train_dataset=examples, eval_dataset=examples)


def test_trainer_evaluates_saves_resumes_and_loads_the_best(bases, family, scheme, tmp_path):
    torch.manual_seed(1)
    model = compacter.attach(bases(family, scheme), "compacter")
    run = trainer(model, family, tmp_path, load_best_model_at_end=True)
    run.train()
    losses = [entry["eval_loss"] for entry in run.state.log_history if "eval_loss" in entry]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)
    assert not list(tmp_path.rglob("model*.safetensors")) + list(tmp_path.rglob("pytorch_model*"))
    best = PeftModel.from_pretrained(bases(family, scheme), run.state.best_model_checkpoint).eval()
    inputs = batch_of(family)
    assert torch.equal(logits(best, **inputs), logits(model.eval(), **inputs))
    torch.manual_seed(1)
    again = compacter.attach(bases(family, scheme), "compacter")
    resumed = trainer(again, family, tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert torch.equal(logits(again.eval(), **inputs), logits(best, **inputs))


@pytest.mark.parametrize("method", CONFIGS)
@pytest.mark.parametrize("use_reentrant", [None, True, False])
def test_a_model_that_peft_prepared(bases, family, scheme, method, use_reentrant):
    """It computes activations again in the backward pass, by default those of reentrant
    checkpoints; None: it computes nothing again."""
    inputs = batch_of(family)
    torch.manual_seed(1)
    plain = get_peft_model(bases(family, scheme), CONFIGS[method]())
    base = prepare_model_for_kbit_training(
        bases(family, scheme),
        use_gradient_checkpointing=use_reentrant is not None,
        gradient_checkpointing_kwargs={"use_reentrant": use_reentrant},
    )
    assert base.is_gradient_checkpointing == (use_reentrant is not None)
    torch.manual_seed(1)
    model = get_peft_model(base, CONFIGS[method]())
    expected, found = gradients(plain, inputs), gradients(model, inputs)
    assert list(found) == list(expected)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)
    before = model(**inputs).loss.item()
    assert train(model, inputs, steps=4) < before


@pytest.mark.parametrize("method", CONFIGS)
def test_a_base_in_bfloat16(bases, family, scheme, method, tmp_path):
    """The adapter is kept and trained in float32."""
    inputs = batch_of(family)
    model = get_peft_model(bases(family, scheme, dtype=torch.bfloat16), CONFIGS[method]()).eval()
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    start = logits(model, **inputs)
    losses = [train(model, inputs, steps=1) for _ in range(5)]
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]
    expected = logits(model, **inputs)
    assert distance(expected, start) > 0.1
    fresh = bases(family, scheme, dtype=torch.bfloat16)
    loaded = PeftModel.from_pretrained(fresh, save(model, tmp_path)).eval()
    assert torch.equal(logits(loaded, **inputs), expected)

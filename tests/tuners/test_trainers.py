"""Trainer, TRL and DDP: what they do with a PEFT model they do with ours."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.multiprocessing
from datasets import Dataset
from peft import PeftModel, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments

import compacter
from adapting import TUNER_METHODS, attach_tiny, inputs_of, logits, parameters_of
from compacter import CompacterConfig
from tiny_models import TINY, VOCAB


def examples(count: int = 16) -> list[dict[str, list[int]]]:
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(3, VOCAB - 8, (count, 6), generator=generator).tolist()
    return [{"input_ids": ids, "attention_mask": [1] * 6, "labels": ids[:3]} for ids in tokens]


def arguments(folder: Path, **settings) -> TrainingArguments:
    defaults = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "max_steps": 6,
        "learning_rate": 1e-2,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "steps",
        "save_steps": 3,
        "logging_steps": 1,
        "seed": 7,
    }
    return TrainingArguments(**(defaults | settings))


def trainer(folder: Path, method: str, **settings) -> Trainer:
    model = attach_tiny("t5", method)
    return Trainer(
        model, arguments(folder, **settings), train_dataset=examples(), eval_dataset=examples(8)
    )


@pytest.mark.parametrize("method", ["compacter", "bitfit", "intrinsic-said"])
def test_checkpoints_hold_the_adapter_and_resuming_changes_nothing(method, tmp_path):
    straight = trainer(tmp_path / "straight", method)
    straight.train()
    checkpoint = tmp_path / "straight" / "checkpoint-3"
    assert (checkpoint / "adapter_model.safetensors").stat().st_size < 30_000
    assert not list(checkpoint.glob("model*")) + list(checkpoint.glob("pytorch_model*"))
    resumed = trainer(tmp_path / "resumed", method)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    final = parameters_of(straight.model)
    for name, parameter in resumed.model.named_parameters():
        assert torch.equal(parameter, final[name]), name


def test_the_best_checkpoint_is_loaded_at_the_end(tmp_path):
    run = trainer(
        tmp_path,
        "compacter",
        load_best_model_at_end=True,
        eval_strategy="steps",
        eval_steps=3,
        metric_for_best_model="loss",
        greater_is_better=True,  # so that the first checkpoint is the best, not the last
    )
    run.train()
    losses = [entry["eval_loss"] for entry in run.state.log_history if "eval_loss" in entry]
    assert losses[0] > losses[1]
    assert run.evaluate()["eval_loss"] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize("method", TUNER_METHODS)
def test_weight_decay_spares_biases_and_norms(method, tmp_path):
    run = trainer(tmp_path, method, weight_decay=0.1)
    decayed = set(run.get_decay_parameter_names(run.model))
    trained = {name for name, p in run.model.named_parameters() if p.requires_grad}
    spared = {name for name in trained if "bias" in name or "layernorm_" in name}
    assert decayed & trained == trained - spared


def word_tokenizer() -> PreTrainedTokenizerFast:
    words = ["<pad>", "</s>", "<s>", *(f"w{i}" for i in range(VOCAB - 3))]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", bos_token="<s>"
    )


def test_trl_sft_trainer(tmp_path):
    from trl import SFTConfig, SFTTrainer

    texts = [{"text": " ".join(f"w{(i * k) % 40}" for i in range(1, 9))} for k in range(1, 17)]
    run = SFTTrainer(
        model=TINY["llama"](),
        args=SFTConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            max_steps=4,
            learning_rate=1e-2,
            report_to=[],
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
            max_length=16,
        ),
        train_dataset=Dataset.from_list(texts),
        processing_class=word_tokenizer(),
        peft_config=CompacterConfig(bottleneck=8, task_type="CAUSAL_LM"),
    )
    assert isinstance(run.model, PeftModel)
    run.train()
    run.save_model(str(tmp_path / "final"))
    trained = run.model.eval()
    assert trained.get_parameter("base_model.model.adapters.compacter_weights.default.A").any()
    inputs = inputs_of("llama")
    loaded = PeftModel.from_pretrained(TINY["llama"](), tmp_path / "final").eval()
    assert torch.equal(logits(loaded, **inputs), logits(trained, **inputs))


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def run_ddp(worker: Callable[..., None], *arguments: str, processes: int) -> None:
    """What the processes wrote counts, not how they end: closing gloo may hang, and is cut off."""
    context = torch.multiprocessing.spawn(
        worker, (free_port(), *arguments), nprocs=processes, join=False
    )
    deadline = time.monotonic() + 120
    while not context.join(timeout=1):
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            return


def ddp_worker(rank: int, port: int, folder: str, method: str) -> None:
    """One of two processes: half of the batch each, one optimiser step."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    model = attach_tiny("t5", method)
    parallel = nn.parallel.DistributedDataParallel(model)
    mine = slice(rank * 2, rank * 2 + 2)
    half = {name: value[mine] for name, value in inputs_of("t5", batch=4).items()}
    parallel(**half).loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    torch.save(gradients, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("method", ["compacter", "bitfit", "intrinsic-said"])
def test_two_ddp_processes_have_the_gradients_of_one(method, tmp_path):
    run_ddp(ddp_worker, str(tmp_path), method, processes=2)
    model = attach_tiny("t5", method)
    model(**inputs_of("t5", batch=4)).loss.backward()
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert torch.equal(found[0][name], found[1][name])
            torch.testing.assert_close(found[0][name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_get_peft_model_then_trainer_decodes(tmp_path):
    model = get_peft_model(TINY["t5"](), CompacterConfig(bottleneck=8, task_type="SEQ_2_SEQ_LM"))
    Trainer(model, arguments(tmp_path, max_steps=2), train_dataset=examples()).train()
    ids = torch.tensor([examples()[0]["input_ids"]])
    assert model.generate(input_ids=ids, max_new_tokens=3, num_beams=2).shape[0] == 1


@pytest.mark.parametrize("method", ["full", "compacter", "bitfit"])
@pytest.mark.parametrize("family", ["t5", "bart", "bert", "llama"])
def test_gradient_accumulation_does_not_scale_the_loss(family, method, tmp_path):
    """Plain Trainer takes T5 for a model that divides by all items of all accumulated batches."""

    def first_step(accumulation: int) -> tuple[float, float]:
        base = TINY[family]()
        torch.manual_seed(1)
        model = compacter.attach(base, method)
        data = [
            {name: value[i] for name, value in inputs_of(family, batch=8).items()} for i in range(8)
        ]
        run = Trainer(
            model,
            arguments(
                tmp_path,
                max_steps=1,
                per_device_train_batch_size=8 // accumulation,
                gradient_accumulation_steps=accumulation,
                save_strategy="no",
                max_grad_norm=1e9,
            ),
            train_dataset=data,
        )
        run.train()
        entry = next(entry for entry in run.state.log_history if "grad_norm" in entry)
        return entry["loss"], entry["grad_norm"]

    expected = first_step(1)
    for accumulation in (2, 4):
        assert first_step(accumulation) == pytest.approx(expected, rel=1e-3)


def test_get_peft_model_does_not_scale_the_loss_either():
    assert (
        get_peft_model(TINY["t5"](), CompacterConfig()).get_base_model().accepts_loss_kwargs
        is False
    )
    llama = get_peft_model(TINY["llama"](), CompacterConfig()).get_base_model()
    assert not hasattr(llama, "accepts_loss_kwargs")  # divides by the items itself


def reentrant_worker(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=1
    )
    model = attach_tiny("t5", "compacter").train()
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    parallel = nn.parallel.DistributedDataParallel(model, static_graph=True)
    parallel(**inputs_of("t5"), use_cache=False).loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.requires_grad}
    torch.save(gradients, f"{folder}/gradients.pt")
    torch.distributed.destroy_process_group()


def test_shared_slow_weights_under_ddp_with_reentrant_checkpointing(tmp_path):
    """One parameter used in every checkpointed block: DDP needs static_graph=True for it."""
    run_ddp(reentrant_worker, str(tmp_path), processes=1)
    model = attach_tiny("t5", "compacter").train()
    model(**inputs_of("t5")).loss.backward()
    found = torch.load(tmp_path / "gradients.pt")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-6)

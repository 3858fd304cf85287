"""Transformers' Trainer with a task's own loss, scores and stopping rules."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import nn
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from compacter.errors import TrainingError
from compacter.tasks import Row, mean_score, score
from compacter.training.memory import peak_memory
from compacter.training.pipelines import Pipeline, Prediction
from compacter.training.recipe import Recipe
from compacter.training.result import write_atomically

SCORE = "score"  # the mean of a task's metrics, which picks the checkpoint
STATE_NAME, SPENT_NAME = "trainer_state.json", "spent.json"
ADAM_BETAS, ADAM_EPSILON = (0.9, 0.999), 1e-8


class TaskTrainer(Trainer):
    """Evaluates by the task's metrics on rows, not by the loss on batches."""

    def __init__(
        self,
        *,
        pipeline: Pipeline,
        validation: Sequence[Row],
        A_learning_rate: float | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(
            data_collator=pipeline.collate,
            compute_loss_func=pipeline.loss,
            eval_dataset=list(validation),
            **settings,
        )
        self.remove_callback(PrinterCallback)
        self.pipeline = pipeline
        self.validation = list(validation)
        self.A_learning_rate = A_learning_rate

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """Trainer's, with a group of its own for A where A has a learning rate of its own."""
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        if self.A_learning_rate is not None:
            peft: Any = self.accelerator.unwrap_model(self.model)
            weights = peft.base_model.adapters.by_name[peft.active_adapter]
            kinds = weights.layout.kinds()
            slow = [p for name, p in weights.named_parameters() if kinds[name] == "slow"]
            ids = {id(A) for A in slow}
            for group in optimizer.param_groups:
                group["params"] = [p for p in group["params"] if id(p) not in ids]
            settings = {"lr": self.A_learning_rate, "weight_decay": self.args.weight_decay}
            optimizer.add_param_group({"params": slow, **settings})
        return optimizer

    def take_up_stopped(self, checkpoint: Path, patience: int | None) -> bool:
        """Take up a run that had stopped early when it was interrupted: there is nothing left to
        train, so its best checkpoint is loaded. False if it had not."""
        state = TrainerState.load_from_json(str(checkpoint / STATE_NAME))
        if patience is None or checkpoints_without_gain(state) < patience:
            return False
        self.state = state
        self._load_best_model()
        return True

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """The validation scores and their mean, logged as Trainer logs its own."""
        found = self.validation_scores()
        metrics = {f"eval_{name}": value for name, value in found.items()}
        metrics[f"eval_{SCORE}"] = mean_score(found)
        self.log(metrics)
        handler = self.callback_handler
        self.control: TrainerControl = handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def validation_scores(self) -> dict[str, float]:
        predictions = self.predictions(self.validation)
        return score(self.pipeline.task, [p.answer for p in predictions], self.validation)

    def predictions(self, rows: Sequence[Row]) -> list[Prediction]:
        """One for each row, made by all processes together."""
        model = self.accelerator.unwrap_model(self.model)
        was_training = model.training
        model.eval()
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        mine = self.pipeline.predict(model, rows[rank::world], self.args.per_device_eval_batch_size)
        model.train(was_training)
        if world == 1:
            return mine
        shares = gather_object([mine])
        return [shares[index % world][index // world] for index in range(len(rows))]


class StopOnNaN(TrainerCallback):
    """A run whose loss is no number has diverged; what follows would be wasted."""

    def __init__(self) -> None:
        self.diverged_at: int | None = None

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        loss = (logs or {}).get("loss")
        if loss is not None and not math.isfinite(loss):
            self.diverged_at = state.global_step
            control.should_training_stop = True


class Spent(TrainerCallback):
    """Time and memory of training, those before an interruption included: each checkpoint knows its
    own."""

    def __init__(self, checkpoint: Path | None = None) -> None:
        path = None if checkpoint is None else checkpoint / SPENT_NAME
        known = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {}
        self.seconds_before: float = known.get("seconds", 0.0)
        self.peak_before: int = known.get("peak_memory_bytes", 0)
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    @property
    def peak_memory(self) -> int:
        return max(self.peak_before, peak_memory())

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        if state.is_world_process_zero:
            assert args.output_dir is not None
            folder = checkpoint_folder(Path(args.output_dir), state.global_step)
            spent = {"seconds": round(self.seconds, 2), "peak_memory_bytes": self.peak_memory}
            write_atomically(folder / SPENT_NAME, json.dumps(spent, allow_nan=False) + "\n")


def make_arguments(
    recipe: Recipe, folder: Path, *, steps_per_epoch: int, report_to: str | None
) -> TrainingArguments:
    """A filled-in recipe in Trainer's words."""
    on_cpu = not torch.accelerator.is_available()
    assert recipe.learning_rate is not None
    assert recipe.epochs is not None
    assert recipe.batch_size is not None
    assert recipe.warmup_steps is not None
    by_steps = recipe.save_steps is not None
    return TrainingArguments(
        output_dir=str(folder),
        learning_rate=recipe.learning_rate,
        num_train_epochs=recipe.epochs,
        per_device_train_batch_size=recipe.batch_size,
        per_device_eval_batch_size=recipe.batch_size,
        gradient_accumulation_steps=recipe.gradient_accumulation,
        warmup_steps=recipe.warmup_steps,
        lr_scheduler_type="linear",
        optim="adamw_torch_fused",
        adam_beta1=ADAM_BETAS[0],
        adam_beta2=ADAM_BETAS[1],
        adam_epsilon=ADAM_EPSILON,
        weight_decay=recipe.weight_decay,
        max_grad_norm=1.0,  # Trainer's default, so that of the authors' runs too
        eval_strategy="steps" if by_steps else "epoch",
        save_strategy="steps" if by_steps else "epoch",
        eval_steps=recipe.save_steps,
        save_steps=recipe.save_steps or 500,
        save_total_limit=2,  # the best and the last
        load_best_model_at_end=True,
        metric_for_best_model=SCORE,
        greater_is_better=True,
        logging_strategy="steps",
        logging_steps=max(1, min(50, steps_per_epoch // 4)),
        logging_nan_inf_filter=False,
        train_sampling_strategy="group_by_length" if recipe.group_by_length else "random",
        bf16=recipe.bf16,
        seed=recipe.seed,
        data_seed=recipe.seed,
        report_to=[report_to] if report_to not in (None, "tensorboard") else [],
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        use_cpu=on_cpu,  # without it, processes of torchrun on CPUs would not know each other
        ddp_backend="gloo" if on_cpu and process_count() > 1 else None,
    )


def process_count() -> int:
    """Processes that torchrun or accelerate started for this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def tensorboard(folder: Path) -> TrainerCallback:
    """Curves in a folder that stays."""
    from torch.utils.tensorboard import SummaryWriter
    from transformers.integrations import TensorBoardCallback

    is_first = os.environ.get("RANK", "0") == "0"
    return TensorBoardCallback(SummaryWriter(str(folder)) if is_first else None)


class EarlyStopping(TrainerCallback):
    """Stops after so many checkpoints without gain. They are counted in the run's history, so that
    a resumed run stops where it would have stopped."""

    def __init__(self, patience: int) -> None:
        self.patience = patience

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        if checkpoints_without_gain(state) >= self.patience:
            control.should_training_stop = True


def checkpoints_without_gain(state: TrainerState) -> int:
    """Since the best one."""
    scores = [entry[f"eval_{SCORE}"] for entry in state.log_history if f"eval_{SCORE}" in entry]
    return len(scores) - 1 - scores.index(max(scores)) if scores else 0


def early_stopping(recipe: Recipe) -> list[TrainerCallback]:
    return [] if recipe.early_stopping is None else [EarlyStopping(recipe.early_stopping)]


def last_whole_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end. Trainer writes its state last, so a
    checkpoint without a readable state was cut off."""
    found = []
    for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        try:
            state = json.loads((path / STATE_NAME).read_text(encoding="utf-8"))
            found.append((int(state["global_step"]), path))
        except (OSError, ValueError, KeyError):
            continue
    return max(found)[1] if found else None


def find_best_again(checkpoint: Path) -> None:
    """Have a checkpoint name the best one where that is now. Trainer keeps its path, which leads
    nowhere if the run was moved or is taken up from another directory, and would then test the last
    weights in place of the best."""
    path = checkpoint / STATE_NAME
    state = TrainerState.load_from_json(str(path))
    if not state.best_global_step:
        return
    best = checkpoint_folder(checkpoint.parent, state.best_global_step)
    if not best.is_dir():
        raise TrainingError(
            f"{str(best)!r} is missing, the best checkpoint of the run that is to go on; put it "
            "back, or start anew"
        )
    if state.best_model_checkpoint != str(best):
        state.best_model_checkpoint = str(best)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        state.save_to_json(str(partial))  # Trainer's own form, NaN included
        os.replace(partial, path)


def checkpoint_folder(folder: Path, step: int) -> Path:
    return folder / f"{PREFIX_CHECKPOINT_DIR}-{step}"

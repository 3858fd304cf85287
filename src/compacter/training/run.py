"""A run: recipe -> Trainer -> result."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from peft import PeftModel
from torch import nn
from transformers import TrainerCallback

from compacter.errors import TrainingError
from compacter.methods import find_method
from compacter.tasks import Row, Task, fingerprint, mean_score, score
from compacter.training.card import write_card
from compacter.training.folder import (
    LOG_NAME,
    RECIPE_NAME,
    TENSORBOARD_NAME,
    check_folder,
    check_same_recipe,
    finish_overwrite,
    without_places,
    work_folder,
)
from compacter.training.memory import memory_advice, reset_peak_memory
from compacter.training.pipelines import Pairs, Prediction
from compacter.training.prepare import Prepared, prepare
from compacter.training.progress import LogFile
from compacter.training.recipe import Recipe
from compacter.training.result import (
    ADAPTER_NAME,
    CHECKPOINTS,
    MODEL_NAME,
    Result,
    versions,
    write_predictions,
)
from compacter.training.trainer import (
    SCORE,
    Spent,
    StopOnNaN,
    TaskTrainer,
    early_stopping,
    find_best_again,
    last_whole_checkpoint,
    make_arguments,
    process_count,
    tensorboard,
)
from compacter.training.weights import used_settings

REPORTS = ("tensorboard", "wandb", "trackio")


@memory_advice()
def train(
    recipe: Recipe,
    output: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    report_to: str | None = None,
    on_start: Callable[[Prepared], None] | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> Result:
    """Train by a recipe and leave adapter, result, predictions and log in the folder `output`. A
    run that is overwritten stays as it is until the new one is complete."""
    _check_report(report_to)
    if is_main_process():
        finish_overwrite(Path(output))
        check_folder(Path(output), resume=resume, overwrite=overwrite)
    folder = work_folder(Path(output), resume=resume, overwrite=overwrite)
    reset_peak_memory()
    ready = prepare(recipe)
    checkpoint = last_whole_checkpoint(folder / CHECKPOINTS) if resume else None
    if checkpoint is not None:
        check_same_recipe(folder, ready.recipe)
        find_best_again(checkpoint)
    log = LogFile(folder / LOG_NAME)
    if is_main_process():
        if overwrite:  # what an overwrite that was interrupted has left
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        ready.recipe.write(folder / RECIPE_NAME)
        log.write(str(ready))
        if on_start is not None:
            on_start(ready)
    spent, watch = Spent(checkpoint), StopOnNaN()
    trainer = make_trainer(ready, folder, report_to, [spent, watch, log, *callbacks])
    if checkpoint is None or not trainer.take_up_stopped(checkpoint, recipe.early_stopping):
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    result = _finish(ready, trainer, folder, watch, log, spent)
    if is_main_process():
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        finish_overwrite(Path(output))
    return result


def _check_report(report_to: str | None) -> None:
    if report_to is None:
        return
    if report_to not in REPORTS:
        raise TrainingError(
            f"report_to={report_to!r} is unknown; choose one of {', '.join(REPORTS)}"
        )
    if find_spec(report_to) is None:
        raise TrainingError(
            f"report_to={report_to!r} needs {report_to}, which is not installed: "
            f"pip install {report_to}"
        )


def is_main_process() -> bool:
    """Of the processes that torchrun or accelerate started for one run, the first."""
    return os.environ.get("RANK", "0") == "0"


def make_trainer(
    ready: Prepared, folder: Path, report_to: str | None, callbacks: Sequence[TrainerCallback]
) -> TaskTrainer:
    features = ready.pipeline.encode(ready.splits.train)
    assert ready.recipe.batch_size is not None
    rows_per_step = ready.recipe.batch_size * ready.recipe.gradient_accumulation * process_count()
    per_epoch = -(-len(features) // rows_per_step)
    arguments = make_arguments(
        ready.recipe, folder / CHECKPOINTS, steps_per_epoch=per_epoch, report_to=report_to
    )
    if report_to == "tensorboard":  # whose files would go with the checkpoints
        callbacks = [*callbacks, tensorboard(folder / TENSORBOARD_NAME)]
    return TaskTrainer(
        pipeline=ready.pipeline,
        validation=ready.splits.validation,
        A_learning_rate=ready.recipe.A_learning_rate,
        model=ready.model,
        args=arguments,
        train_dataset=features,
        callbacks=[*early_stopping(ready.recipe), *callbacks],
    )


def _finish(
    ready: Prepared,
    trainer: TaskTrainer,
    folder: Path,
    watch: StopOnNaN,
    log: LogFile,
    spent: Spent,
) -> Result:
    """Test the best checkpoint and write everything down, the result last."""
    task, splits = ready.task, ready.splits
    seconds, rows = spent.seconds, len(splits.train) * (trainer.state.epoch or 0.0)
    shown = splits.test or splits.validation
    predictions = trainer.predictions(shown)
    scored = _rounded(score(task, [p.answer for p in predictions], shown))
    validation = _best_validation(trainer, task) if splits.test else scored
    test = scored if splits.test else {}
    warnings = _warnings(task, shown, predictions, watch)
    result = Result(
        method=ready.recipe.method,
        task=task.name,
        model=ready.recipe.model,
        seed=ready.recipe.seed,
        recipe=ready.recipe.model_dump(mode="json"),
        trainable=ready.trainable,
        head_trainable=ready.head_trainable,
        percent=round(ready.percent, 4),
        validation=validation,
        test=test,
        score=mean_score(scored),
        status="finished" if watch.diverged_at is None else "diverged",
        warnings=warnings,
        best_checkpoint=trainer.state.best_global_step,
        seconds=round(seconds, 2),
        samples_per_second=round(rows / seconds, 2),
        peak_memory_bytes=spent.peak_memory,
        versions=versions(),
        data_fingerprint=fingerprint(splits),
        settings=_used_settings(ready.model, ready.recipe),
        curve=_curve(trainer.state.log_history),
    )
    if is_main_process():
        _save_model(ready, folder, result)
        write_predictions(folder, shown, predictions, "test" if splits.test else "validation")
        for warning in warnings:
            log.write(f"warning: {warning}")
        log.write(f"{result.status}: test {result.test}, validation {result.validation}")
        result.write(folder)
    return result


def _best_validation(trainer: TaskTrainer, task: Task) -> dict[str, float]:
    """The scores that made a checkpoint the best one: its weights are those of the model now."""
    for entry in trainer.state.log_history:
        if entry["step"] == trainer.state.best_global_step and f"eval_{SCORE}" in entry:
            return _rounded({name: entry[f"eval_{name}"] for name in task.metrics})
    return _rounded(trainer.validation_scores())  # it diverged before the first checkpoint


def _rounded(scores: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in scores.items()}


def _warnings(
    task: Task, rows: Sequence[Row], predictions: Sequence[Prediction], watch: StopOnNaN
) -> list[str]:
    found = []
    if watch.diverged_at is not None:
        found.append(
            f"the loss was no number at step {watch.diverged_at}: the run diverged; try a smaller "
            "learning rate"
        )
    texts = {prediction.text for prediction in predictions}
    labels = {row.label for row in rows}
    if len(texts) == 1 and len(labels) > 1:
        found.append(
            f"every answer is {next(iter(texts))!r}: the model has not learned the task; try more "
            "epochs or another learning rate"
        )
    invalid = sum(prediction.answer is None for prediction in predictions)
    if invalid:
        found.append(f"{invalid} of {len(predictions)} answers are none of the task's")
    return found


def _curve(history: list[dict[str, Any]]) -> list[dict[str, float]]:
    kept = ("loss", "learning_rate", "grad_norm")
    return [
        {"step": entry["step"], "epoch": entry.get("epoch", 0.0)}
        | {
            key: value
            for key, value in entry.items()
            if (key in kept or key.startswith("eval_")) and math.isfinite(value)
        }
        for entry in history
        if "loss" in entry or f"eval_{SCORE}" in entry
    ]


def _save_model(ready: Prepared, folder: Path, result: Result) -> None:
    """Weights, and beside them all that it takes to use them in another place."""
    model = ready.model
    if isinstance(model, PeftModel):
        weights = folder / ADAPTER_NAME
        model.active_peft_config.base_model_name_or_path = ready.recipe.model
        model.save_pretrained(str(weights), save_embedding_layers=False)  # "auto" asks the hub
        head = ready.pipeline.head if isinstance(ready.pipeline, Pairs) else {}
        write_card(weights, result, ready.kind, head.get("num_labels"))
    else:
        weights = folder / MODEL_NAME
        model.save_pretrained(str(weights))  # type: ignore[operator]
        ready.pipeline.tokenizer.save_pretrained(str(weights))
    without_places(ready.recipe).write(weights / RECIPE_NAME)


def _used_settings(model: nn.Module, recipe: Recipe) -> dict[str, Any]:
    """The method's settings of a recipe as they are in the model."""
    if not isinstance(model, PeftModel):
        return {}
    return used_settings(model.active_peft_config, find_method(recipe.method))

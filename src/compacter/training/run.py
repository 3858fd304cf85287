"""A run: recipe -> data -> Trainer -> result."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from peft import PeftModel
from torch import nn
from transformers import PreTrainedConfig, TrainerCallback
from transformers.trainer_utils import set_seed

from compacter.errors import TrainingError
from compacter.methods import find_method
from compacter.methods.attach import DEFAULT_NUM_TOKENS, attach, settings_of, task_heads
from compacter.models.pretrained import (
    Kind,
    dropout_settings,
    kind_of,
    load_config,
    load_model,
    load_tokenizer,
    longest_input,
)
from compacter.tasks import Row, Splits, Task, fingerprint, load, mean_score, score
from compacter.training.card import write_card
from compacter.training.defaults import WARMUP_SHARE, defaults_for, model_size
from compacter.training.folder import (
    LOG_NAME,
    RECIPE_NAME,
    TENSORBOARD_NAME,
    check_folder,
    check_same_recipe,
    clear,
    without_places,
)
from compacter.training.heads import count_trained, head_parameters
from compacter.training.memory import memory_advice, peak_memory, reset_peak_memory
from compacter.training.pipelines import Pairs, Pipeline, Prediction, TextToText, make_pipeline
from compacter.training.progress import LogFile
from compacter.training.recipe import METHOD_SETTINGS, Recipe
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
    StopOnNaN,
    Stopwatch,
    TaskTrainer,
    early_stopping,
    last_whole_checkpoint,
    make_arguments,
    process_count,
    tensorboard,
)

HEAD_ONLY = "head-only"
"""Not a method of the paper: the task's head alone is trained, to compare with."""

REPORTS = ("tensorboard", "wandb", "trackio")


@dataclass
class Prepared:
    """A run that is ready to start."""

    recipe: Recipe
    task: Task
    splits: Splits
    model: nn.Module
    kind: Kind
    pipeline: Pipeline
    trainable: int
    head_trainable: int
    base: int

    @property
    def percent(self) -> float:
        return 100.0 * self.trainable / self.base

    def __str__(self) -> str:
        head = f", and {self.head_trainable:,} of the task's head" if self.head_trainable else ""
        rows = self.splits
        return (
            f"{self.recipe.method} on {self.recipe.model}: {self.trainable:,} of {self.base:,} "
            f"parameters are trained ({self.percent:.4f}%){head}; {self.task.name}: "
            f"{len(rows.train):,} rows to train, {len(rows.validation):,} to validate, "
            f"{len(rows.test):,} to test"
        )


def prepare(recipe: Recipe) -> Prepared:
    """Load data and model, fill in the recipe, attach the method. Raises before anything is
    written if something does not fit."""
    recipe, task, splits, config = resolve(recipe)
    kind = kind_of(config)
    assert recipe.max_length is not None
    tokenizer = load_tokenizer(recipe.model)
    pipeline = make_pipeline(task, tokenizer, kind, recipe.max_length, recipe.label_words)
    set_seed(recipe.seed)
    settings: dict[str, Any] = dict(pipeline.head) if isinstance(pipeline, Pairs) else {}
    if recipe.dropout is not None:
        settings |= dropout_settings(config, recipe.dropout)
    model = load_model(recipe.model, kind, quantize=recipe.quantize, **settings)
    _check_length(model, recipe)
    prepare_model(model, kind, tokenizer, pipeline)
    head_size = sum(p.numel() for p in head_parameters(model))
    base = model.num_parameters() - head_size  # type: ignore[operator]  # also of a packed model
    model = _apply(model, recipe, kind)
    trainable, head = count_trained(model)
    return Prepared(recipe, task, splits, model, kind, pipeline, trainable, head, base)


def _check_length(model: nn.Module, recipe: Recipe) -> None:
    limit = longest_input(model)
    prompt = 0
    if recipe.method != HEAD_ONLY and find_method(recipe.method).family == "prompt":
        prompt = recipe.num_tokens or DEFAULT_NUM_TOKENS
    assert recipe.max_length is not None
    if limit is not None and recipe.max_length + prompt > limit:
        before = f" after a prompt of {prompt}" if prompt else ""
        raise TrainingError(
            f"max_length={recipe.max_length}{before} is more than the {limit} positions that "
            f"{recipe.model!r} has; expected at most {limit - prompt}"
        )


def resolve(
    recipe: Recipe, load_data: Callable[..., tuple[Task, Splits]] = load
) -> tuple[Recipe, Task, Splits, PreTrainedConfig]:
    """The recipe filled in, its data and the model's configuration; no weights are loaded."""
    if recipe.method != HEAD_ONLY:
        find_method(recipe.method)
    if recipe.quantize is not None and recipe.method in ("full", HEAD_ONLY):
        raise TrainingError(
            f"quantize={recipe.quantize!r} freezes the base model, and the method is "
            f"{recipe.method!r}; expected a method that adds parameters of its own"
        )
    if recipe.A_learning_rate is not None and not _has_A(recipe.method):
        raise TrainingError(
            f"A_learning_rate={recipe.A_learning_rate:g} is for methods with Kronecker products, "
            f"and {recipe.method!r} has no A; leave it out or choose another method"
        )
    task, splits = load_data(
        recipe.task_name(),
        recipe.source(),
        max_train_samples=recipe.max_train_samples,
        seed=recipe.seed,
    )
    if not splits.train or not splits.validation:
        raise TrainingError(
            f"{task.name}: {len(splits.train)} rows to train on and {len(splits.validation)} to "
            "validate on; expected some of both"
        )
    config = load_config(recipe.model)
    kind_of(config)
    return fill_in(recipe, task, splits, config), task, splits, config


def fill_in(recipe: Recipe, task: Task, splits: Splits, config: PreTrainedConfig) -> Recipe:
    """The recipe with the paper's choices for what it leaves open."""
    width = int(getattr(config, "hidden_size", 0) or getattr(config, "d_model", 0) or 0)
    defaults = defaults_for(
        task,
        recipe.method,
        model_size(config.model_type, width),
        rows=len(splits.train),
        tune_output_layer=bool(recipe.tune_output_layer),
    )
    parts = recipe.gradient_accumulation * process_count()  # of the batch of one step
    batch_size = recipe.batch_size or max(1, defaults.batch_size // parts)
    epochs = recipe.epochs or defaults.epochs
    rows_per_step = batch_size * parts
    steps = -(-len(splits.train) // rows_per_step) * epochs
    warmup = recipe.warmup_steps
    if warmup is None:
        warmup = defaults.warmup_steps
    if warmup is None:
        warmup = round(WARMUP_SHARE * steps)
    own = {"labels": task.labels or None, "regression": task.kind == "number"}
    return recipe.model_copy(
        update=(own if recipe.train_file else {})
        | {
            "task": task.name,
            "learning_rate": recipe.learning_rate or defaults.learning_rate,
            "epochs": epochs,
            "batch_size": batch_size,
            "max_length": recipe.max_length or defaults.max_length,
            "warmup_steps": warmup,
            "dropout": defaults.dropout if recipe.dropout is None else recipe.dropout,
        }
    )


def prepare_model(model: nn.Module, kind: Kind, tokenizer: Any, pipeline: Pipeline) -> None:
    """Settle what configurations leave open, and how labels become a decoder's input."""
    config: Any = model.config
    if config.pad_token_id is None:
        config.pad_token_id = tokenizer.pad_token_id
    if isinstance(pipeline, TextToText) and kind == "encoder-decoder":
        if getattr(config, "decoder_start_token_id", None) is None:
            config.decoder_start_token_id = config.pad_token_id
        pipeline.shift_right = model.prepare_decoder_input_ids_from_labels  # type: ignore[assignment]


def _apply(model: nn.Module, recipe: Recipe, kind: Kind) -> nn.Module:
    """Attach the method, or leave all but the head frozen."""
    if recipe.method != HEAD_ONLY:
        return attach(model, recipe.method, **recipe.method_settings())
    heads = task_heads(model)
    if heads is None:
        raise TrainingError(
            f"method {HEAD_ONLY!r} needs a model with a classification head, found "
            f"{type(model).__name__}; choose a method of 'compacter methods'"
        )
    model.requires_grad_(False)
    for name in heads:
        model.get_submodule(name).requires_grad_(True)
    return model


def for_method(recipe: Recipe, method: str) -> Recipe:
    """The same recipe with another method, less the settings that this method does not have."""
    known = _known_settings(method)
    idle = {name: None for name in recipe.method_settings() if name not in known}
    if not _has_A(method):
        idle["A_learning_rate"] = None
    return recipe.model_copy(update={"method": method, **idle})


def _known_settings(method: str) -> frozenset[str]:
    return frozenset() if method == HEAD_ONLY else settings_of(find_method(method))


def _has_A(method: str) -> bool:
    return "A_std" in _known_settings(method)


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
    """Train by a recipe and leave adapter, result, predictions and log in the folder `output`."""
    folder = Path(output)
    _check_report(report_to)
    if is_main_process():
        check_folder(folder, resume=resume, overwrite=overwrite)
    reset_peak_memory()
    ready = prepare(recipe)
    checkpoint = last_whole_checkpoint(folder / CHECKPOINTS) if resume else None
    if checkpoint is not None:
        check_same_recipe(folder, ready.recipe)
    log = LogFile(folder / LOG_NAME)
    if is_main_process():
        if overwrite:
            clear(folder)
        folder.mkdir(parents=True, exist_ok=True)
        ready.recipe.write(folder / RECIPE_NAME)
        log.write(str(ready))
        if on_start is not None:
            on_start(ready)
    time, watch = Stopwatch(checkpoint), StopOnNaN()
    trainer = make_trainer(ready, folder, report_to, [time, watch, log, *callbacks])
    speed = 0.0
    if checkpoint is None or not trainer.take_up_stopped(checkpoint, recipe.early_stopping):
        outcome = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        speed = outcome.metrics.get("train_samples_per_second", 0.0)
    result = _finish(ready, trainer, folder, watch, log, time.seconds, speed)
    if is_main_process():
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
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
    seconds: float,
    samples_per_second: float,
) -> Result:
    """Test the best checkpoint and write everything down, the result last."""
    task, splits = ready.task, ready.splits
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
        samples_per_second=round(samples_per_second, 2),
        peak_memory_bytes=peak_memory(),
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
    names = {"num_virtual_tokens": "num_tokens"}
    config = {names.get(k, k): v for k, v in vars(model.active_peft_config).items()}
    known = _known_settings(recipe.method)
    return {name: config[name] for name in METHOD_SETTINGS if name in known and name in config}

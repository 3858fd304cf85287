"""Before a run starts: data and model are loaded, the recipe is filled in, the method attached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedConfig
from transformers.trainer_utils import set_seed

from compacter.errors import TrainingError
from compacter.methods import find_method
from compacter.methods.attach import DEFAULT_NUM_TOKENS, attach, settings_of
from compacter.models.pretrained import (
    Kind,
    dropout_settings,
    kind_of,
    load_config,
    load_model,
    load_tokenizer,
    longest_input,
)
from compacter.tasks import Splits, Task, load
from compacter.training.defaults import defaults_for, model_size, usual_warmup
from compacter.training.heads import count_trained, find_heads, head_parameters
from compacter.training.pipelines import Pairs, Pipeline, TextToText, make_pipeline
from compacter.training.recipe import Recipe
from compacter.training.trainer import process_count

HEAD_ONLY = "head-only"
"""Not a method of the paper: the task's head alone is trained, to compare with."""


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
    loaded = load_model(recipe.model, kind, quantize=recipe.quantize, **settings)
    model, heads = loaded.model, find_heads(loaded.model, loaded.new_heads)
    _check_length(model, recipe)
    prepare_model(model, kind, tokenizer, pipeline)
    head_size = sum(p.numel() for p in head_parameters(model, heads))
    base = model.num_parameters() - head_size  # type: ignore[operator]  # also of a packed model
    model = _apply(model, recipe, heads)
    trainable, head = count_trained(model, heads)
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
        warmup = usual_warmup(steps)
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


def _apply(model: nn.Module, recipe: Recipe, heads: Sequence[str]) -> nn.Module:
    """Attach the method, or leave all but the heads frozen."""
    if recipe.method != HEAD_ONLY:
        settings = recipe.method_settings()
        if heads and "modules_to_save" in known_settings(recipe.method):
            settings["modules_to_save"] = list(heads)
        return attach(model, recipe.method, **settings)
    if not heads:
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
    known = known_settings(method)
    idle = {name: None for name in recipe.method_settings() if name not in known}
    if not _has_A(method):
        idle["A_learning_rate"] = None
    return recipe.model_copy(update={"method": method, **idle})


def known_settings(method: str) -> frozenset[str]:
    return frozenset() if method == HEAD_ONLY else settings_of(find_method(method))


def _has_A(method: str) -> bool:
    return "A_std" in known_settings(method)

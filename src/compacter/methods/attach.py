"""Applying a method to a model by its name."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

from peft import PeftConfig, PeftModel, PromptTuningConfig, TaskType, get_peft_model
from torch import nn

from compacter.errors import MethodError
from compacter.methods.prompts import start_prompt
from compacter.methods.table import NOT_SETTINGS, Method, find_method, idle_settings
from compacter.models import TASK_HEADS, check_not_quantised, count_loss_once, hidden_size
from compacter.nn import require_divisible
from compacter.tuners import BitFitConfig, CompacterConfig, IntrinsicSAIDConfig

CONFIG_CLASSES: Mapping[str, type[PeftConfig]] = {
    "adapter": CompacterConfig,
    "bitfit": BitFitConfig,
    "intrinsic": IntrinsicSAIDConfig,
    "prompt": PromptTuningConfig,
}

DEFAULT_NUM_TOKENS = 100


def attach(
    model: nn.Module, method: str, *, adapter_name: str = "default", **settings: Any
) -> PeftModel | nn.Module:
    """Apply a method of the paper, by name, to a Hugging Face model.

    Any setting of the method can be given (`bottleneck`, `n`, `rank`, `drop_layers`,
    `intrinsic_dim`, `num_tokens`, `tune_output_layer`, ...); what is not given is as in the paper.
    Returns a PeftModel; for "full" the model itself, all of it trainable."""
    found = find_method(method)
    if not isinstance(model, nn.Module):
        raise MethodError(
            f"attach needs a model, found a {type(model).__name__}; load it first, for instance "
            "with AutoModelForSeq2SeqLM.from_pretrained"
        )
    if hasattr(model, "peft_config"):
        raise MethodError(
            "the model has adapters already; add another one with model.add_adapter(name, config), "
            "or take them off with model.unload()"
        )
    count_loss_once(model)
    if found.family == "full":
        _check_settings(found, settings, settings_of(found))
        check_not_quantised(
            model, "full fine-tuning trains every weight and needs a model that is not quantised"
        )
        return model.requires_grad_(True)
    config = make_config(model, found, settings)
    adapted = get_peft_model(model, config, adapter_name=adapter_name)
    if found.family == "prompt":
        start_prompt(adapted, found.settings["init"], adapter_name)
    return adapted


def make_config(model: nn.Module, method: Method, settings: Mapping[str, Any]) -> PeftConfig:
    """The PEFT configuration of a method for this model."""
    given = dict(settings)
    task = given.pop("task_type", task_type(model))
    if method.family == "prompt":
        return _prompt_config(model, method, given, task)
    config_cls = CONFIG_CLASSES[method.family]
    merged = {**method.settings, **given}
    _check_settings(method, given, settings_of(method, merged))
    if method.family == "adapter":
        merged |= _default_sizes(model, method, merged)
    if "modules_to_save" not in merged:
        merged["modules_to_save"] = task_heads(model)
    return config_cls(task_type=task, **merged)


def task_type(model: nn.Module) -> TaskType | None:
    """PEFT's task type, which decides how a batch is handed on and which head is trained."""
    name = type(model).__name__
    endings = {
        "ForSequenceClassification": TaskType.SEQ_CLS,
        "ForTokenClassification": TaskType.TOKEN_CLS,
        "ForQuestionAnswering": TaskType.QUESTION_ANS,
        "ForCausalLM": TaskType.CAUSAL_LM,
        "LMHeadModel": TaskType.CAUSAL_LM,
    }
    for ending, task in endings.items():
        if name.endswith(ending):
            return task
    is_seq2seq = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    if is_seq2seq and name.endswith(("ForConditionalGeneration", "MTModel")):
        return TaskType.SEQ_2_SEQ_LM
    return None


def task_heads(model: nn.Module) -> list[str] | None:
    """Heads that are new for every task, so that an adapter must train and save them too. PEFT
    knows only some of them by itself."""
    return [name for name, _ in model.named_children() if name in TASK_HEADS] or None


def default_bottleneck(width: int) -> int:
    """k / 32: the paper's 24 for T5-base (k = 768) and 16 for T5-small (k = 512)."""
    return max(1, width // 32)


def _default_sizes(model: nn.Module, method: Method, settings: Mapping[str, Any]) -> dict[str, int]:
    """n and bottleneck where they were not given; a default bottleneck is rounded up to n."""
    if "bottleneck" in settings and ("n" in settings or not method.n_preference):
        return {}
    width = hidden_size(model)
    bottleneck = settings.get("bottleneck", default_bottleneck(width))
    if not method.n_preference and "n" not in settings:
        return {"bottleneck": bottleneck}
    fitting = [n for n in method.n_preference if width % n == 0 and bottleneck % n == 0]
    n = settings.get("n", (fitting or method.n_preference[-1:])[0] if method.n_preference else 1)
    if "bottleneck" not in settings and isinstance(n, int) and n > 0:
        require_divisible(n, width=width)
        bottleneck = -(-bottleneck // n) * n
    return {"n": n, "bottleneck": bottleneck}


def _prompt_config(
    model: nn.Module, method: Method, given: dict[str, Any], task: TaskType | None
) -> PeftConfig:
    """PEFT's prompt tuning as in the paper: before the encoder's input only, where PEFT's default
    would make a second prompt for the decoder."""
    _check_settings(method, given, settings_of(method))
    num_tokens = given.get("num_tokens", DEFAULT_NUM_TOKENS)
    if not isinstance(num_tokens, int) or num_tokens < 1:
        raise MethodError(f"num_tokens={num_tokens!r} does not fit; expected a whole number from 1")
    if task is None:
        raise MethodError(
            f"{method.name} needs a model that reads tokens for a known kind of task, got "
            f"{type(model).__name__}; use a class such as T5ForConditionalGeneration, or give "
            "task_type"
        )
    embeddings = model.get_input_embeddings()  # type: ignore[operator]
    return PromptTuningConfig(
        task_type=task,
        num_virtual_tokens=num_tokens,
        num_transformer_submodules=1,
        # PEFT works these out from the configuration, wrongly for ELECTRA, not for DistilBERT
        token_dim=embeddings.weight.shape[1],
        num_attention_heads=getattr(model.config, "num_attention_heads", 1),
        num_layers=getattr(model.config, "num_hidden_layers", 1),
        modules_to_save=given.get("modules_to_save", task_heads(model)),
    )


def settings_of(method: Method, given: Mapping[str, Any] | None = None) -> frozenset[str]:
    """The settings that a method has, with those that others imply taken into account."""
    if method.family == "full":
        return frozenset()
    if method.family == "prompt":
        return frozenset({"num_tokens", "modules_to_save"})
    merged = {**method.settings, **(given or {})}
    return _setting_names(CONFIG_CLASSES[method.family]) - idle_settings(merged)


def _setting_names(config_cls: type[PeftConfig]) -> frozenset[str]:
    return frozenset(f.name for f in dataclasses.fields(config_cls)) - NOT_SETTINGS


def _check_settings(method: Method, given: Mapping[str, Any], known: frozenset[str]) -> None:
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            choices = f"it has {', '.join(sorted(known))}" if known else "it has none"
            hint = f"did you mean {near[0]!r}?" if near else choices
            raise MethodError(f"{method.name} has no setting {name!r}; {hint}")

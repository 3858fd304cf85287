"""The modules of a model as they are without PEFT's wrappers, and what can be read off them."""

from __future__ import annotations

from collections.abc import Iterator

from peft import PeftModel
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

TASK_HEADS = (
    *("classifier", "pre_classifier", "classification_head", "score", "qa_outputs"),
    *("pooler", "sequence_summary", "logits_proj"),  # beside the base model, not inside of it
)
"""What models call heads that are new for every task."""


def output_width(module: nn.Module) -> int | None:
    """Width of what a linear layer writes. Quantised layers keep `out_features`; GPT-2's Conv1D
    calls it `nf`. None for anything else."""
    return _integer(module, "out_features", "nf")


def input_width(module: nn.Module) -> int | None:
    """Width of what a linear layer reads, or None if the module is not a linear layer."""
    return _integer(module, "in_features", "nx")


def _integer(module: nn.Module, *names: str) -> int | None:
    for name in names:
        value = getattr(module, name, None)
        if isinstance(value, int):
            return value
    return None


def model_type(module: nn.Module) -> str:
    """The name of a model's family, as its configuration has it; empty of anything else."""
    return str(getattr(getattr(module, "config", None), "model_type", ""))


def optional_call(model: nn.Module, name: str) -> nn.Module | None:
    """The module that a method of transformers' models finds, such as `get_decoder`; None of a
    model that has no such method or module."""
    method = getattr(model, name, None)
    try:
        found = method() if callable(method) else None
    except (AttributeError, NotImplementedError):
        return None
    return found if isinstance(found, nn.Module) else None


def is_called_plainly(module: nn.Module) -> bool:
    """Whether calling the module is calling the forward of its class and nothing else: no hooks, on
    it or on all modules, and no forward of its own, as accelerate gives to modules that it spreads
    over devices."""
    hooks = (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or _has_any_global_hook()  # type: ignore[no-untyped-call]
    )
    return not hooks and "forward" not in vars(module)


def bare_model(model: nn.Module) -> nn.Module:
    """The transformer inside a `PeftModel`, a tuner or a compiled model; any other as it is."""
    if isinstance(model, PeftModel):
        model = model.get_base_model()
    if isinstance(model, BaseTuner):
        model = model.model
    inner = model._modules.get("_orig_mod")  # of a model that is compiled
    return model if inner is None else inner


def base_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Path -> module, in the order of `named_modules()`, as if PEFT had never touched the model.

    A tuner layer stands at its own path for the module it wraps; what it adds is left out. So
    names found in the bare model stay valid when other adapters are already in it.
    """
    return {path: base for path, base, _ in _walk("", bare_model(model), set())}


def outer_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The same paths with the modules that stand there: PEFT's wrapper where there is one."""
    return {path: outer for path, _, outer in _walk("", bare_model(model), set())}


def _walk(
    path: str, module: nn.Module, seen: set[nn.Module]
) -> Iterator[tuple[str, nn.Module, nn.Module]]:
    base = unwrapped(module)
    if base is None or base in seen:
        return
    seen.add(base)
    yield path, base, module
    for name, child in base.named_children():
        yield from _walk(f"{path}.{name}" if path else name, child, seen)


def unwrapped(module: nn.Module) -> nn.Module | None:
    """The innermost module under PEFT's wrappers, or None for one that wraps nothing."""
    inner: object = module
    while isinstance(inner, BaseTunerLayer | AuxiliaryTrainingWrapper):
        wrapped = "base_layer" if isinstance(inner, BaseTunerLayer) else "original_module"
        inner = getattr(inner, wrapped, None)
    return inner if isinstance(inner, nn.Module) else None


def layer_norms(model: nn.Module) -> dict[str, nn.Module]:
    """Every layer norm of the bare model that has something to train, by its path.

    Most families bring a class of their own (T5LayerNorm, LlamaRMSNorm), so the class name counts.
    """
    return {
        path: module
        for path, module in base_modules(model).items()
        if is_layer_norm(module) and any(True for _ in module.parameters())
    }


def is_layer_norm(module: nn.Module) -> bool:
    """Whether a module normalises over the hidden dimension (so neither batch nor group norm)."""
    named = type(module).__name__.lower().endswith(("layernorm", "rmsnorm"))
    if not (named or isinstance(module, nn.LayerNorm | nn.RMSNorm)):
        return False
    return not any(True for child in module.children() for _ in child.parameters())

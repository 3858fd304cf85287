"""Whether a checkpoint fills the model that its configuration describes.

Transformers starts what a checkpoint lacks with random numbers. That is right for the head of a new
task, which is trained; any other weight would stay random without a word."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from compacter.errors import ArchitectureError

SHOWN = 3

POOLER = "pooler"


def new_heads(
    model: nn.Module, name: str, info: Mapping[str, Any], *, may_lack_heads: bool
) -> tuple[str, ...]:
    """The modules that were not in the checkpoint and are to be trained: heads beside the base
    model, and poolers, which many checkpoints of encoders lack. `info` is what transformers tells
    about the loading. Whatever else is missing, or has another shape, is refused."""
    heads: dict[str, None] = {}
    missing, misshapen = [], []
    for key in sorted(info["missing_keys"]):
        head = _head_of(model, key) if may_lack_heads else None
        if head is None:
            missing.append(key)
        else:
            heads[head] = None
    for key, found, expected in sorted(info["mismatched_keys"]):
        if may_lack_heads and _is_beside_base(model, key):
            heads[key.partition(".")[0]] = None
        else:
            misshapen.append(f"{key} is {list(found)}, expected {list(expected)}")
    if missing or misshapen:
        _refuse(model, name, missing, misshapen, sorted(info["unexpected_keys"]))
    return tuple(heads)


def _head_of(model: nn.Module, key: str) -> str | None:
    """The head that a tensor belongs to; None for one of the base model."""
    parts = key.split(".")
    if _is_beside_base(model, key):
        return parts[0]
    return ".".join(parts[: parts.index(POOLER) + 1]) if POOLER in parts else None


def _is_beside_base(model: nn.Module, key: str) -> bool:
    return not key.startswith(f"{model.base_model_prefix}.")


def _refuse(
    model: nn.Module, name: str, missing: list[str], misshapen: list[str], unknown: list[str]
) -> None:
    problems = []
    if missing:
        total = len(model.state_dict())
        problems.append(f"{len(missing)} of {total} tensors are missing ({_some(missing)})")
    if misshapen:
        problems.append(f"{len(misshapen)} have another shape ({_some(misshapen)})")
    if unknown:
        problems.append(f"{len(unknown)} have no place in the model ({_some(unknown)})")
    raise ArchitectureError(
        f"the weights of {name!r} do not fit its configuration, a {type(model).__name__}: "
        f"{'; '.join(problems)}; expected every tensor of that model, as save_pretrained() leaves "
        "them"
    )


def _some(items: Iterable[str]) -> str:
    found = list(items)
    more = f", and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(found[:SHOWN]) + more

"""What keeps the examples of one batch from having different adapters: modules that are called with
something else than the examples in their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from compacter.models.architectures import GUIDED, SEQUENCE_FIRST
from compacter.models.inference import is_expert
from compacter.models.modules import model_type


def obstacle(model: nn.Module, paths: Iterable[str]) -> str | None:
    """Why examples cannot be told apart at one of these paths, if so. The models inside the model
    count too (a Longformer in an encoder-decoder)."""
    for path in paths:
        for part, holder in _holders(model, path):
            family = model_type(holder)
            if path.endswith(SEQUENCE_FIRST.get(family, ())):
                return f"a model of type {family!r} calls {path} with (length, batch, width)"
            if family in GUIDED:
                return f"a model of type {family!r} doubles its batch when it writes with guidance"
            if is_expert(part, holder):
                return f"{path} belongs to an expert, which is called with the tokens sent to it"
    return None


def _holders(model: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """The model, and every module on the way to the path and at its end, with its name there."""
    module = model
    yield "", module
    for part in path.split("."):
        module = module.get_submodule(part)
        yield part, module

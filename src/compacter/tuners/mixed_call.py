"""Calls of a model whose examples have different adapters: all checks, then the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from compacter.errors import AdapterError
from compacter.tuners.layers import Adapters
from compacter.tuners.mixing import BASE, Batch

if TYPE_CHECKING:
    from compacter.tuners.tuner import Tuner


@contextmanager
def mixed_call(
    tuner: Tuner, names: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[None]:
    """A call of the model with `adapter_names`: one name for each example, or one for all."""
    _check_state(tuner)
    adapters = tuner.adapters
    checked = _check_names(adapters, names)
    is_seen = isinstance(names, str) or check_length(checked, args, kwargs)
    if adapters.disable_adapters:
        with adapters.computing(None):
            yield
        return
    if not isinstance(names, str):
        _check_model(tuner)
        _check_media(kwargs)
    batch = Batch(adapters, checked)
    hooks = [
        head.register_forward_hook(partial(_mix_head, adapters, batch, path), with_kwargs=True)
        for path, head in tuner.heads(batch.head_paths).items()
    ]
    if not is_seen:  # PEFT's models for some tasks keep the batch to themselves until it arrives
        check = partial(_check_arrived, adapters, batch)
        hooks.append(tuner.model.register_forward_pre_hook(check, with_kwargs=True))
    try:
        with adapters.computing(batch):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _check_state(tuner: Tuner) -> None:
    """Examples of one batch can have different adapters now."""
    if tuner.one_adapter_only:
        raise AdapterError(f"adapter_names were given, but {tuner.one_adapter_only}")
    if tuner.training:
        raise AdapterError(
            "adapter_names were given in training mode; examples of different adapters are for "
            "inference: call model.eval() first, or train one adapter at a time"
        )
    if any(tuner.peft_config[name].trainable_token_indices for name in tuner.adapters.by_name):
        raise AdapterError(
            "adapter_names were given, but an adapter of the model trains single tokens "
            "(trainable_token_indices), for all examples: call the model for each adapter alone"
        )
    if tuner.adapters.merged:
        raise AdapterError(
            f"adapter_names were given, but the adapter {tuner.adapters.merged_adapters[0]!r} is "
            "merged into the base model, for all examples; call unmerge_adapter() first"
        )


def _check_model(tuner: Tuner) -> None:
    """The model keeps the examples of a batch apart."""
    reason = tuner.mixing_obstacle()
    if reason is not None:
        raise AdapterError(
            f"adapter_names were given, but {reason}, where examples of different adapters cannot "
            "be told apart: call the model for each adapter alone"
        )


def _check_names(adapters: Adapters, names: Any) -> list[str]:
    """The names of a batch's examples, if there is an adapter for each. One string is the adapter
    of all examples."""
    if isinstance(names, str):
        names = [names]
    if not isinstance(names, Sequence) or not names:
        raise AdapterError(
            f"adapter_names={names!r}: expected the name of one adapter, or a list with a name for "
            "each example of the batch"
        )
    pool = adapters.pool or ()
    for name in dict.fromkeys(names):
        if name != BASE and name not in adapters.by_name and name not in pool:
            some = [*adapters.by_name, *pool]
            known = ", ".join(repr(n) for n in some[:5]) + (", ..." if len(some) > 5 else "")
            raise AdapterError(
                f"adapter_names has {name!r}, which is no adapter of this model; expected {known} "
                f"or {BASE!r}"
            )
    return list(names)


def _mix_head(adapters: Adapters, batch: Batch, path: str, head: nn.Module, *given: Any) -> Any:
    """The head's output, given arguments, keywords and the output that it would have. A hook is
    called by other threads too, and while it is added or removed without the keywords."""
    if adapters.batch is not batch:
        return None
    args, kwargs, _ = given
    return batch.run_head(path, head, *args, **kwargs)


def _check_arrived(adapters: Adapters, batch: Batch, model: nn.Module, *given: Any) -> None:
    if adapters.batch is batch:
        check_length(batch.names, *given)


BATCHES = ("input_ids", "inputs", "inputs_embeds", "pixel_values", "input_values", "input_features")


def check_length(names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """There is a name for each example of the batch that a model is called with. False if the batch
    cannot be seen in this call."""
    given = [*args[:1], *(kwargs.get(name) for name in BATCHES)]
    encoded = kwargs.get("encoder_outputs")
    if encoded is not None:
        given.append(encoded[0])
    sizes = [len(value) for value in given if isinstance(value, Tensor)][:1]
    if not sizes:  # under a name of the model's own
        others = [*args, *kwargs.values()]
        sizes = [len(value) for value in others if isinstance(value, Tensor) and value.dim()]
    if sizes and len(names) not in sizes:
        raise AdapterError(
            f"adapter_names has {len(names)} names for a batch of {sizes[0]} examples; expected "
            "one each, or one string for all"
        )
    return bool(sizes)


MEDIA = ("pixel_values", "pixel_values_videos", "input_features", "input_values")


def _check_media(kwargs: Mapping[str, Any]) -> None:
    """Images or sounds beside texts are a batch of their own, of any number for a text."""
    beside = [name for name in MEDIA if kwargs.get(name) is not None]
    if beside and (kwargs.get("input_ids") is not None or kwargs.get("inputs_embeds") is not None):
        raise AdapterError(
            f"adapter_names were given with texts and {beside[0]}, which cannot be divided among "
            "the adapters: call the model for each adapter alone"
        )

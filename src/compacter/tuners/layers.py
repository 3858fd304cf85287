"""What every tuner layer of this package is: a thin wrapper around one module of the base model,
and, once per model, the container of all adapters.

PEFT's generic loops freeze, switch, save, load and delete both, because both are its
`BaseTunerLayer`. One place says which adapter is active: the container."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import local
from typing import TYPE_CHECKING, Any, cast

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from compacter.errors import AdapterError
from compacter.nn import WHOLE, AdapterWeights, Layout, call_with
from compacter.tuners.mixing import Batch

if TYPE_CHECKING:
    from compacter.tuners.pool import AdapterPool


class SwitchableLayer(BaseTunerLayer):
    """One adapter at a time is active or merged, and what was frozen stays frozen."""

    merged_adapters: list[str]
    _flags: list[tuple[nn.Parameter, bool]]

    def __init__(self) -> None:
        super().__init__()
        self.merged_adapters = []
        self._flags = []

    if TYPE_CHECKING:  # what BaseTunerLayer has, which is not typed
        active_adapters: list[str]
        adapter_layer_names: tuple[str, ...]
        merged: bool
        _active_adapter: str | list[str]
        _disable_adapters: bool

        def _move_adapter_to_device_of_base_layer(self, adapter_name: str) -> None: ...
        def _get_base_layer_device_and_dtype(self, base_layer: nn.Module) -> Any: ...

    def set_adapter(self, adapter_names: str | list[str], inference_mode: bool = False) -> None:
        names = [adapter_names] if isinstance(adapter_names, str) else list(adapter_names)
        if len(names) > 1:
            raise AdapterError(
                f"{len(names)} adapters were set active ({', '.join(names)}); adapters of this "
                "kind are not linear and cannot be added up: set one"
            )
        super().set_adapter(names, inference_mode=inference_mode)
        self._flags = []

    def enable_adapters(self, enabled: bool) -> None:
        """As PEFT's, which however makes a frozen adapter trainable when it is enabled again."""
        if enabled:
            for parameter, flag in self._flags:
                parameter.requires_grad_(flag)
            self._disable_adapters = False
        elif not self._disable_adapters:
            self.unmerge()
            parameters = (
                p for name in self.adapter_layer_names for p in getattr(self, name).parameters()
            )
            self._flags = [(p, p.requires_grad) for p in parameters]
            super().enable_adapters(False)

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Add one adapter to the base model, unless that is done."""
        if not self.merged:
            (adapter,) = adapter_names or self.active_adapters  # the tuner saw to it that it is one
            self.merge_into_base(adapter)
            self.merged_adapters = [adapter]

    def unmerge(self) -> None:
        for adapter in self.merged_adapters:
            self.unmerge_from_base(adapter)
        self.merged_adapters = []

    def merge_into_base(self, adapter: str) -> None:
        """Change the base layer so that it does what the adapter did."""

    def unmerge_from_base(self, adapter: str) -> None:
        """Take that back."""


class _ThisThread(local):
    """What holds for the batch that this thread computes, and for no other."""

    batch: Batch | None = None

    def __reduce__(self) -> tuple[type[_ThisThread], tuple[()]]:
        """A copy of the model has no batch under way."""
        return _ThisThread, ()


class Adapters(SwitchableLayer, nn.Module):
    """All adapters of a model, each one module with a handful of parameters.

    It is a child of the base model's root, so that PEFT finds it. The layers keep a reference that
    is not registered, so that the parameters exist once; it survives loading, deleting, `deepcopy`,
    pickling and `.to()`."""

    NAME = "adapters"

    def __init__(self, prefix: str, anchor: nn.Module) -> None:
        super().__init__()
        self.prefix = prefix
        self.adapter_layer_names = (f"{prefix}weights",)
        self._anchor = (anchor,)
        self._here = _ThisThread()
        self.pool: AdapterPool | None = None
        setattr(self, self.adapter_layer_names[0], nn.ModuleDict())

    def forward(self, x: Tensor) -> Tensor:
        """What passes is left alone, in a model that calls all its children (nn.Sequential)."""
        return x

    def get_base_layer(self) -> nn.Module:
        """A module of the base model: tells PEFT the device and dtype to put parameters on."""
        return self._anchor[0]

    @property
    def by_name(self) -> Mapping[str, AdapterWeights]:
        modules = cast(nn.Module, self._modules[self.adapter_layer_names[0]])
        return cast(Mapping[str, AdapterWeights], modules._modules)

    def add(self, adapter: str, weights: AdapterWeights) -> None:
        """Put an adapter beside the others, as it is."""
        getattr(self, self.adapter_layer_names[0])[adapter] = weights

    def add_new(self, adapter: str, weights: AdapterWeights) -> None:
        """The same, on the device and in the dtype of the base model; PEFT casts it further."""
        self.add(adapter, weights)
        self._move_adapter_to_device_of_base_layer(adapter)

    @property
    def like(self) -> Tensor:
        """A parameter of any adapter: tells in what dtype and on which device others are kept."""
        return next(self.parameters())

    def _get_base_layer_device_and_dtype(self, base_layer: nn.Module) -> Any:
        """As PEFT's, also for a module without a weight, and for FP8 weights, by which an adapter
        would be rounded to 8 bits, and A to 0."""
        device, dtype = super()._get_base_layer_device_and_dtype(base_layer)
        parameter = next(base_layer.parameters(), None)
        if device is None and parameter is not None:
            device, dtype = parameter.device, parameter.dtype
        return device, None if dtype is None or dtype.itemsize == 1 else dtype

    @property
    def active_name(self) -> str | None:
        """The name of the adapter that takes part in a forward pass, if any."""
        names = self._active_adapter
        if self._disable_adapters or self.merged_adapters or not names:
            return None
        return names if isinstance(names, str) else names[0]

    @property
    def active(self) -> AdapterWeights | None:
        """That adapter."""
        name = self.active_name
        return None if name is None else self.by_name.get(name)

    @property
    def batch(self) -> Batch | None:
        """The batch of several adapters that this thread computes, if any."""
        return None if self._disable_adapters else self._here.batch

    @contextmanager
    def computing(self, batch: Batch | None) -> Iterator[None]:
        """A call of the model with a batch of several adapters, or without one. Another call inside
        of it, which a logits processor can make, has its own batch or none."""
        outer, self._here.batch = self._here.batch, batch
        try:
            yield
        finally:
            self._here.batch = outer


OUTPUT_NAMES = {"weight": "output_weight", "bias": "output_bias"}
"""Name of a parameter of the output layer -> its name in an adapter that tunes it."""


class TunerLayer(SwitchableLayer, nn.Module):
    """A wrapped module of the base model. On its own it only lets the module use the weights of
    a tuned output layer; subclasses change its output.

    It has no parameters. It asks the active adapter for its part by its path."""

    dims = 1
    """Dimensions of what the adapter has at this place, the last ones of the output."""

    def __init__(self, base_layer: nn.Module, adapters: Adapters, path: str) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.path = path
        self._adapters = (adapters,)  # in a tuple: not registered as a child
        self._uses_output_weights = False
        self._owns_output_weights = False
        self._replaced: dict[str, Tensor] = {}

    @property
    def adapters(self) -> Adapters:
        return self._adapters[0]

    def use_output_weights(self, *, owner: bool) -> None:
        """Use the adapter's weights of the output layer; of all modules that are tied together
        one, the owner, merges them into the base model."""
        self._uses_output_weights = True
        self._owns_output_weights = owner

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        adapters = self._adapters[0]
        batch = adapters.batch
        if batch is not None:
            return self.forward_batch(batch, *args, **kwargs)
        weights = adapters.active
        if weights is None:
            return cast(Tensor, self.base_layer(*args, **kwargs))
        return self.forward_adapted(weights, *args, **kwargs)

    def forward_adapted(self, weights: AdapterWeights, *args: Any, **kwargs: Any) -> Tensor:
        """As `forward`, with the weights of the active adapter."""
        output: Tensor
        if self._uses_output_weights:
            tuned = self._tuned(weights(WHOLE))
            output = call_with(self.base_layer, tuned, *args, **kwargs)
        else:
            output = self.base_layer(*args, **kwargs)
        part = weights(self.path, output.device)
        return output if part is None else self.adapt(part, weights.layout, output)

    def forward_batch(self, batch: Batch, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """As `forward`, each example with its own adapter."""
        output: Tensor = self.base_layer(x, *args, **kwargs)
        if self._uses_output_weights:
            for index, part in batch.tuned_outputs(x):
                tuned = self._tuned(part)
                made = call_with(self.base_layer, tuned, x[index], *args, **kwargs)
                output = output.index_copy(0, index, made)
        return batch.change(self.path, output, self.adapt_examples, self.dims)

    def adapt(self, part: Any, layout: Layout, output: Tensor) -> Tensor:
        """What the adapter's part at this place makes of the base layer's output."""
        return output

    def adapt_examples(self, part: Any, layout: Layout, output: Tensor) -> Tensor:
        """The same for examples of different adapters: output in R^{examples x length x width}, and
        the part with one more dimension in front."""
        return output

    def _tuned(self, part: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
        """The adapter's weights of the output layer, in the base layer's dtype, on its device."""
        base = {name: getattr(self.base_layer, name, None) for name in OUTPUT_NAMES}
        return {
            name: part[OUTPUT_NAMES[name]].to(tensor)
            for name, tensor in base.items()
            if tensor is not None and part is not None and OUTPUT_NAMES[name] in part
        }

    @property
    def weight(self) -> Tensor:
        """As PEFT's, without its search, since T5 asks for it several times in every pass."""
        base_layer: Any = self._modules["base_layer"]
        weight: Tensor | None = base_layer._parameters.get("weight")
        return cast(Tensor, super().weight) if weight is None else weight

    def merge_into_base(self, adapter: str) -> None:
        if self._owns_output_weights:
            weights = self.adapters.by_name[adapter]
            for name, tuned in self._tuned(weights(WHOLE)).items():
                parameter = getattr(self.base_layer, name)
                self._replaced[name] = parameter.data.clone()
                parameter.data.copy_(tuned)

    def unmerge_from_base(self, adapter: str) -> None:
        for name, original in self._replaced.items():
            getattr(self.base_layer, name).data.copy_(original)
        self._replaced = {}

    def __getattr__(self, name: str) -> Any:
        """Attributes of the wrapped module (`in_features`, `eps`, `num_embeddings`, ...) can be
        read from the wrapper, as model code does."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "base_layer":
                raise
            return getattr(self.base_layer, name)


def in_dtype_of(parameter: Tensor, x: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """compute(x) in the parameter's dtype (float32 under a half-precision base), as x's dtype."""
    if x.dtype == parameter.dtype or torch.is_autocast_enabled(x.device.type):
        return compute(x)
    return compute(x.to(parameter.dtype)).to(x.dtype)

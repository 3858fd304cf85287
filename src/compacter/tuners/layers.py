"""What every tuner layer of this package is: a wrapper around one module of the base model, and,
once per model, a container for the parameters that several of those wrappers share.

PEFT's generic loops freeze, switch, save, load and delete both, because both are its
`BaseTunerLayer`. One place says which adapter is active: the container."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import local
from typing import TYPE_CHECKING, Any, cast

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from torch.func import functional_call

from compacter.errors import AdapterError
from compacter.models import is_called_plainly
from compacter.nn import Backward, rms_norm
from compacter.tuners.rows import Group, Rows, private_copy

_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled


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

    def set_adapter(self, adapter_names: str | list[str], inference_mode: bool = False) -> None:
        names = [adapter_names] if isinstance(adapter_names, str) else list(adapter_names)
        if len(names) > 1:
            raise AdapterError(
                f"{len(names)} adapters were set active ({', '.join(names)}); adapters of this "
                "kind are not linear and cannot be added up: set one"
            )
        super().set_adapter(names, inference_mode=inference_mode)
        self._flags = []
        self.switched()

    def enable_adapters(self, enabled: bool) -> None:
        """As PEFT's, which however makes a frozen adapter trainable when it is enabled again."""
        if enabled:
            for parameter, flag in self._flags:
                parameter.requires_grad_(flag)
            self._disable_adapters = False
        elif not self._disable_adapters:
            self.unmerge()
            self._flags = [(p, p.requires_grad) for p in self._adapter_parameters()]
            super().enable_adapters(False)
        self.switched()

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Add one adapter to the base model, unless that is done."""
        if not self.merged:
            (adapter,) = adapter_names or self.active_adapters  # the tuner saw to it that it is one
            self.merge_into_base(adapter)
            self.merged_adapters = [adapter]
            self.switched()

    def unmerge(self) -> None:
        for adapter in self.merged_adapters:
            self.unmerge_from_base(adapter)
        self.merged_adapters = []
        self.switched()

    def switched(self) -> None:
        """Called when another adapter may have become active, or none."""

    def merge_into_base(self, adapter: str) -> None:
        """Change the base layer so that it does what the adapter did."""

    def unmerge_from_base(self, adapter: str) -> None:
        """Take that back."""

    def _adapter_parameters(self) -> Iterator[nn.Parameter]:
        for name in self.adapter_layer_names:
            yield from getattr(self, name).parameters()


Shortcut = Callable[..., Tensor]
"""A layer's forward with all questions answered: which adapter is active, whether its matrices are
up to date, whether hooks watch. The answers hold for the rest of a call, so that of all tokens that
`generate` writes only the first two have to ask. Each question takes longer than one would think:
since it was asked last, the weights of a large model have passed through the cache."""


class ThisThread(local):
    """What holds for the batch that this thread computes, and for no other."""

    rows: Rows | None = None
    shortcuts: dict[TunerLayer, Shortcut | None] | None = None
    """Of the layers that have computed something in the call of the model or of `generate` that is
    under way, for which the dictionary itself stands: another call, or another adapter, has another
    one. None outside of calls, and where rows have different adapters."""
    built: Any = None
    """What was built for that call while an adapter is trained, if anything was."""
    norms: Any = None
    """The norms of that call while an adapter is trained, as far as they were looked up."""

    def __reduce__(self) -> tuple[type[ThisThread], tuple[()]]:
        """A copy of the model has no batch under way."""
        return ThisThread, ()


class ParametersByAdapter(nn.ParameterDict):
    """Parameters of one kind. Where accelerate offloads a model, a module's parameters are here
    only while it is called, so that this one can be."""

    __call__ = nn.Module.__call__  # torch's own refuses

    def forward(self, adapter: str) -> Tensor:
        parameter: Tensor = self[adapter]
        return parameter

    def here(self, adapter: str) -> Tensor:
        """The parameter, brought if it is elsewhere."""
        parameter: Tensor = self[adapter]
        return self(adapter) if parameter.is_meta else parameter


class SharedParameters(SwitchableLayer, nn.Module):
    """The parameters of an adapter that belong to no single layer: slow weights A, the weight of
    a tuned output layer, the theta of Intrinsic-SAID.

    It is a child of the base model's root, so that PEFT finds it; the layers keep a reference
    that is not registered, so that its parameters exist once. The reference is to the container,
    never to a parameter, and so survives loading, deleting, `deepcopy`, pickling and `.to()`."""

    NAME = "shared_parameters"

    def __init__(self, prefix: str, kinds: Sequence[str], anchor: nn.Module) -> None:
        super().__init__()
        self.prefix = prefix
        self.adapters: dict[str, None] = {}
        self.layers: list[TunerLayer] = []
        self.here = ThisThread()
        self.is_traced = False
        self.together: Any = None  # the layers that were built together last
        self.backward = Backward()
        self._anchor = (anchor,)
        self.adapter_layer_names = tuple(f"{prefix}{kind}" for kind in kinds)
        for name in self.adapter_layer_names:
            setattr(self, name, ParametersByAdapter())

    def forward(self, x: Tensor) -> Tensor:
        """What passes is left alone, in a model that calls all its children (nn.Sequential)."""
        return x

    def add(self, adapter: str, parameters: dict[str, nn.Parameter]) -> None:
        self.adapters[adapter] = None
        for kind, parameter in parameters.items():
            self._kind(kind)[adapter] = parameter
        self._move_adapter_to_device_of_base_layer(adapter)

    def get(self, kind: str, adapter: str) -> Tensor | None:
        parameters = self._kind(kind)
        return parameters.here(adapter) if adapter in parameters else None

    @property
    def active(self) -> str | None:
        """The adapter that takes part in a forward pass, if any."""
        if self._disable_adapters or self.merged_adapters:
            return None
        names = self._active_adapter  # not by PEFT's properties: every layer of every pass asks
        if type(names) is not str:
            if not names:
                return None
            names = names[0]
        return names if names in self.adapters else None

    def switched(self) -> None:
        if self.here.shortcuts is not None:
            self.here.shortcuts = {}
        self.here.built = self.here.norms = None

    @contextmanager
    def one_call(self, rows: Rows | None = None) -> Iterator[None]:
        """A call of the whole model, in which layers may take shortcuts, unless `rows` have
        adapters of their own. Another call inside of it, which a logits processor can make, has its
        own rows or none, and may change anything: after it layers ask again."""
        here = self.here
        outer, is_inside = here.rows, here.shortcuts is not None
        here.rows, here.shortcuts = rows, {} if rows is None else None
        here.built = here.norms = None
        try:
            yield
        finally:
            here.rows, here.shortcuts = outer, {} if is_inside else None
            here.built = here.norms = None

    def get_base_layer(self) -> nn.Module:
        """A module of the base model: tells PEFT the device and dtype to put parameters on."""
        return self._anchor[0]

    def delete_adapter(self, adapter_name: str) -> None:
        self.adapters.pop(adapter_name, None)
        super().delete_adapter(adapter_name)

    def __getstate__(self) -> dict[str, Any]:
        """A copy has other layers."""
        return {**self.__dict__, "together": None}

    def holder(self, kind: str) -> dict[str, Any]:
        """The dictionary, by adapter, that the parameters of a kind are held in."""
        return self._kind(kind)._parameters

    def _kind(self, kind: str) -> ParametersByAdapter:
        parameters: ParametersByAdapter = getattr(self, f"{self.prefix}{kind}")
        return parameters

    def _get_available_adapters(self) -> set[str]:
        return set(self.adapters)

    def _all_available_adapter_names(self) -> list[str]:
        return sorted(self.adapters)


OUTPUT_KINDS = {"weight": "output_weight", "bias": "output_bias"}


class TunerLayer(SwitchableLayer, nn.Module):
    """A wrapped module of the base model. On its own it only lets the module use the weights of
    a tuned output layer; subclasses add to its output."""

    dims = 1
    """Dimensions that the layer's parameters have in common with its output, the last ones."""

    def __init__(self, base_layer: nn.Module, shared: SharedParameters) -> None:
        super().__init__()
        self.base_layer = base_layer
        self._shared = (shared,)  # in a tuple: not registered as a child
        shared.layers.append(self)
        self._uses_output_weights = False
        self._owns_output_weights = False
        self._replaced: dict[str, Tensor] = {}

    @property
    def shared(self) -> SharedParameters:
        return self._shared[0]

    def add_adapter(self, adapter: str, config: Any) -> None:
        """Create this layer's own parameters of the adapter."""

    def use_output_weights(self, *, owner: bool) -> None:
        """Use the adapter's weights of the output layer; of all modules that are tied together
        one, the owner, merges them into the base model."""
        self._uses_output_weights = True
        self._owns_output_weights = owner

    def adapt(self, adapter: str, output: Tensor) -> Tensor:
        """What the adapter makes of the base layer's output."""
        return output

    def adapt_rows(self, group: Group, output: Tensor) -> Tensor:
        """The same for rows of different adapters, output in R^{rows x length x width}; called
        where the layer `has` those adapters."""
        return output

    def has(self, adapter: str) -> bool:
        """Whether the adapter has parameters of its own in this layer."""
        return any(adapter in getattr(self, name) for name in self.adapter_layer_names)

    def shortcut(self, adapter: str) -> Shortcut | None:
        """What `forward` comes to without gradients while that adapter is active and nothing else
        changes; None where it has to ask each time."""
        return None

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        shared = self._shared[0]
        here = shared.here
        shortcuts = None if _is_compiling() else here.shortcuts
        if shortcuts is not None and _is_grad_enabled():
            shortcuts.clear()  # what is trained will change
            shortcuts = None
        if shortcuts is not None:
            shortcut = shortcuts.get(self)
            if shortcut is not None:
                return shortcut(*args, **kwargs)
        rows = here.rows
        if rows is not None and not shared._disable_adapters:
            return self.forward_rows(rows, *args, **kwargs)
        adapter = shared.active
        if adapter is None:
            return cast(Tensor, cast(Any, self._modules["base_layer"])(*args, **kwargs))
        output = self.forward_adapted(adapter, *args, **kwargs)
        if shortcuts is not None:  # most calls are of one pass, and need none
            shortcuts[self] = self.shortcut(adapter) if self in shortcuts else None
        return output

    def forward_adapted(self, adapter: str, *args: Any, **kwargs: Any) -> Tensor:
        """As `forward`, all rows by that adapter."""
        base_layer = self._modules["base_layer"]
        assert base_layer is not None
        output: Tensor
        if self._uses_output_weights:
            output = functional_call(base_layer, self._tuned_weights(adapter), args, kwargs)
        else:
            output = base_layer(*args, **kwargs)
        return self.adapt(adapter, output)

    def forward_rows(self, rows: Rows, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """As `forward`, each row by its own adapter."""
        return self._adapt_groups(rows, self._base_rows(rows, x, *args, **kwargs))

    def _adapt_groups(self, rows: Rows, output: Tensor) -> Tensor:
        groups = [group for group in rows.groups if self.has(group.adapters[0])]
        if not groups:
            return output
        folded = rows.fold(output, self.dims)
        for group in groups:
            folded = group.put(folded, self.adapt_rows(group, group.rows_of(folded)))
        return folded.reshape(output.shape)

    def _base_rows(self, rows: Rows, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Output layers are too large to be stacked: they are used one after the other."""
        output: Tensor = self.base_layer(x, *args, **kwargs)
        if not self._uses_output_weights:
            return output
        rows.check(x)
        owners = [name for name in dict.fromkeys(rows.names) if self._tuned_weights(name)]
        private = private_copy(self.base_layer)
        for adapter in owners:
            mine = torch.tensor([name == adapter for name in rows.names], device=x.device)
            index = mine.repeat_interleave(len(x) // len(rows.names)).nonzero().flatten()
            part = functional_call(private, self._tuned_weights(adapter), (x[index], *args), kwargs)
            output = output.index_copy(0, index, part)
        return output

    def _tuned_weights(self, adapter: str) -> dict[str, Tensor]:
        """The adapter's weights of the output layer, in the base layer's dtype, on its device."""
        found = {
            name: self.shared.get(kind, adapter)
            for name, kind in OUTPUT_KINDS.items()
            if getattr(self.base_layer, name, None) is not None
        }
        return {
            name: tensor.to(getattr(self.base_layer, name))
            for name, tensor in found.items()
            if tensor is not None
        }

    @property
    def weight(self) -> Tensor:
        """As PEFT's, without its search, since T5 asks for it several times in every pass."""
        base_layer: Any = self._modules["base_layer"]
        weight: Tensor | None = base_layer._parameters.get("weight")
        return cast(Tensor, super().weight) if weight is None else weight

    def merge_into_base(self, adapter: str) -> None:
        if self._owns_output_weights:
            for name, tuned in self._tuned_weights(adapter).items():
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


def fused_norm(
    norm: nn.Module, eps: float | None, weight: Tensor | None, args: Any, kwargs: Any
) -> Tensor | None:
    """What the norm with that weight makes of its arguments, by one operation; None where it has to
    be called itself. `eps` is its `rms_epsilon`."""
    if len(args) != 1 or kwargs or eps is None or weight is None or not can_fuse(norm, weight):
        return None
    x: Tensor = args[0]
    return rms_norm(x, weight, eps) if weight.dtype is x.dtype else None


def can_fuse(norm: nn.Module, weight: Tensor) -> bool:
    """Whether nothing but an RMS norm is computed, and nothing is rounded in between."""
    return (weight.dtype is torch.float32 or weight.dtype is torch.float64) and is_called_plainly(
        norm
    )

"""A module of which every weight moves along the intrinsic vector theta."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from compacter.errors import AdapterError
from compacter.models import is_called_plainly
from compacter.nn import WHOLE, Fastfood, call_with, moved, moved_embedding, moved_linear
from compacter.tuners.layers import Adapters, TunerLayer


@dataclass(frozen=True)
class MovedTensor:
    """A weight tensor of the base model and where it stands among all of them."""

    name: str  # its name in the bare model, which its projection is derived from
    index: int  # of its lambda
    owner: bool  # of the modules that share a tied tensor, one merges it


@dataclass(frozen=True)
class Moves:
    """What an adapter moves in one module, by the name of the parameter in it, and how."""

    tensors: dict[str, MovedTensor]
    projections: dict[str, Fastfood]
    """Of tied tensors one, which keeps its random numbers."""


class IntrinsicLayer(TunerLayer):
    """W -> W + lambda P theta for the parameters that the wrapped module itself holds.

    P theta has the size of W, so it is made when the module runs and made again for the backward
    pass: at no time does it exist for more than one module. (For vectors, such as the weight of a
    norm, it is small and kept.)"""

    other_param_names = ("moves",)

    def __init__(self, base_layer: nn.Module, adapters: Adapters, path: str) -> None:
        super().__init__(base_layer, adapters, path)
        self.moves: dict[str, Moves] = {}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        adapter = self.adapters.active_name
        output: Tensor
        if adapter is None or adapter not in self.moves:
            output = self.base_layer(*args, **kwargs)
        elif torch.compiler.is_exporting() or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
            raise AdapterError(
                "a model with Intrinsic-SAID cannot be traced or exported, as its weights are "
                "made in every call: call merge_adapter() first"
            )
        elif len(args) != 1 or kwargs or not _is_plain(self.base_layer):
            output = self._forward_any(adapter, *args, **kwargs)
        else:
            output = self._forward_plain(adapter, *args)
        return output

    def _forward_plain(self, adapter: str, x: Tensor) -> Tensor:
        """For the modules that hold nearly all weights of a model."""
        base = self.base_layer
        projection = self._projection("weight", adapter)
        if isinstance(base, nn.Linear):
            bias = None if base.bias is None else self._moved("bias", adapter)
            return moved_linear(x, base.weight, bias, *projection)
        assert isinstance(base, nn.Embedding)
        return moved_embedding(x, base.weight, *projection, base.padding_idx)

    def _forward_any(self, adapter: str, *args: Any, **kwargs: Any) -> Tensor:
        """For modules of which it is not known what they do with their weights."""
        names = self.moves[adapter].tensors
        is_small = all(self._parameter(name).dim() < 2 for name in names)
        changes_a_cache = any("Cache" in type(x).__name__ for x in (*args, *kwargs.values()))
        if is_small or changes_a_cache or not torch.is_grad_enabled():
            return self._forward_moved(adapter, *args, **kwargs)
        output: Tensor = checkpoint(
            self._forward_moved, adapter, *args, use_reentrant=False, **kwargs
        )
        return output

    def _forward_moved(self, adapter: str, *args: Any, **kwargs: Any) -> Tensor:
        tensors = {name: self._moved(name, adapter) for name in self.moves[adapter].tensors}
        output: Tensor = call_with(self.base_layer, tensors, *args, **kwargs)
        return output

    @property
    def weight(self) -> Tensor:
        """The moved weight, for models that read it instead of calling the module (DeBERTa's
        relative positions, WavLM's attention, Mamba)."""
        return self._read("weight")

    @property
    def bias(self) -> Tensor:
        return self._read("bias")

    def _read(self, name: str) -> Tensor:
        """T5 asks wo, in every pass, for the dtype of its weight alone."""
        adapter = self.adapters.active_name
        tensors = self.moves[adapter].tensors if adapter in self.moves else {}
        if adapter is None or name not in tensors or tensors[name].name.endswith(".wo.weight"):
            return cast(Tensor, getattr(self.base_layer, name))
        return self._moved(name, adapter)

    def _moved(self, name: str, adapter: str) -> Tensor:
        return moved(self._parameter(name), *self._projection(name, adapter))

    def _projection(self, name: str, adapter: str) -> tuple[Tensor, Fastfood]:
        """lambda_j theta, on the device of the parameter, and P_j."""
        moves, parameter = self.moves[adapter], self._parameter(name)
        whole = self.adapters.by_name[adapter](WHOLE, parameter.device)
        scale = whole["lambda"][moves.tensors[name].index]
        return scale * whole["theta"], moves.projections[name]

    @property
    def kept_bytes(self) -> int:
        """Of the random numbers that are kept for the tensors that this module owns."""
        return sum(
            projection.random.nbytes
            for moves in self.moves.values()
            for name, projection in moves.projections.items()
            if moves.tensors[name].owner
        )

    def merge_into_base(self, adapter: str) -> None:
        self._add_to_base(adapter, 1.0)

    def unmerge_from_base(self, adapter: str) -> None:
        self._add_to_base(adapter, -1.0)

    @torch.no_grad()
    def _add_to_base(self, adapter: str, sign: float) -> None:
        for name, tensor in self.moves[adapter].tensors.items():
            if tensor.owner:
                parameter = self._parameter(name)
                scaled_theta, fastfood = self._projection(name, adapter)
                move = fastfood.project(sign * scaled_theta, parameter.dtype)
                parameter.add_(move.view(parameter.shape))

    def _parameter(self, name: str) -> Tensor:
        return cast(Tensor, attrgetter(name)(self.base_layer))  # a name can be a path


def _is_plain(module: nn.Module) -> bool:
    """Whether calling the module is nothing but a linear map or a look-up."""
    if type(module) is nn.Embedding:
        usual = module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
    else:
        usual = type(module) is nn.Linear
    return usual and is_called_plainly(module)

"""The bottleneck layer of the adapter methods, which adapts a module's output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from compacter.models import output_width
from compacter.nn import (
    Dense,
    Projection,
    bottleneck,
    bottleneck_by_linear,
    bottleneck_of,
    is_watched,
    make_projection,
    trained_bottleneck,
)
from compacter.tuners.bottleneck.activation import find_activation
from compacter.tuners.bottleneck.config import CompacterConfig
from compacter.tuners.bottleneck.weights import (
    Built,
    BuiltForCall,
    Matrices,
    Parts,
    Source,
    built_matrices,
)
from compacter.tuners.layers import (
    SharedParameters,
    Shortcut,
    TunerLayer,
    in_dtype_of,
)
from compacter.tuners.rows import Group, stack_of

_is_any_autocast_enabled = torch._C._is_any_autocast_enabled


def make_projections(width: int, config: CompacterConfig) -> tuple[Projection, Projection]:
    """Down to the bottleneck and up again."""
    settings: dict[str, Any] = {
        "n": config.n,
        "rank": config.rank,
        "shared_A": config.share_A,
        "A_std": config.initial_A_std,
        "bias": config.use_bias,
    }
    down = make_projection(config.projection, width, config.bottleneck, **settings)
    up = make_projection(config.projection, config.bottleneck, width, **settings)
    return down, up


@dataclass
class RowProjection:
    """The projections of several adapters at one place, each for the rows of its adapter."""

    kind: type[Projection]
    factors: list[Tensor]
    bias: Tensor | None

    @classmethod
    def of(
        cls, group: Group, places: Sequence[Sequence[Projection]], shared: SharedParameters
    ) -> list[RowProjection]:
        """At several places of equal shapes, each with the projections of the group's adapters.
        Factors are small and are laid out row by row at once; matrices are gathered when they are
        used."""
        every = [projection for projections in places for projection in projections]
        kind = type(every[0])

        def stack(name: str) -> Tensor:
            stacked = stack_of(every, name)
            stacked = stacked.view(len(places), -1, *stacked.shape[1:])
            return (group.gather(stacked, 1) if kind.FACTORED else stacked).flatten(0, 1)

        factors = {name: stack(name) for name in kind.FACTORS}
        has_A = getattr(every[0], "A", None) is not None
        A: Tensor | None = stack("A") if has_A else group.kept.get("A")
        if A is None and group.adapters[0] in shared.holder("A"):
            slow = torch.stack([shared.holder("A")[adapter] for adapter in group.adapters])
            A = group.kept["A"] = group.gather(slow) if kind.FACTORED else slow
        if A is not None:
            A = A.to(next(iter(factors.values())).device)
            A = A if has_A or len(places) == 1 else A.repeat(len(places), 1, 1, 1)
        prepared = kind.prepare(factors, A)
        has_bias = every[0].bias is not None
        parts = [
            tensor.view(len(places), -1, *tensor.shape[1:]).unbind()
            for tensor in ([*prepared, stack("bias")] if has_bias else prepared)
        ]
        return [
            cls(kind, list(part[: len(prepared)]), part[-1] if has_bias else None)
            for part in zip(*parts, strict=True)
        ]

    def __call__(self, group: Group, x: Tensor) -> Tensor:
        if self.kind.FACTORED:
            return self.kind.project(x, self.factors, self.bias)
        bias = None if self.bias is None else group.gather(self.bias)
        return self.kind.project(x, [group.gather(factor) for factor in self.factors], bias)


class BottleneckLayer(TunerLayer):
    """y -> y + U(act(D(y))) on the output y of an attention or feed-forward block, before its
    dropout and skip connection."""

    adapter_layer_names = ("compacter_down", "compacter_up")
    other_param_names = ("activations", "shapes")

    def __init__(self, base_layer: nn.Module, shared: SharedParameters) -> None:
        super().__init__(base_layer, shared)
        self.compacter_down = nn.ModuleDict()
        self.compacter_up = nn.ModuleDict()
        self.activations: dict[str, nn.Module] = {}
        self.shapes: dict[str, list[torch.Size]] = {}
        self.built: Built | None = None

    def add_adapter(self, adapter: str, config: CompacterConfig) -> None:
        width = output_width(self.get_base_layer())
        assert width is not None  # planned
        self.compacter_down[adapter], self.compacter_up[adapter] = make_projections(width, config)
        self.activations[adapter] = find_activation(config.activation)
        self.shapes[adapter] = [holder[name].shape for holder, name in self._places(adapter)]
        self.built = None

    def adapt(self, adapter: str, output: Tensor) -> Tensor:
        parts = self._parts_for_call(adapter)
        if (
            parts is not None  # then this is the shortest way, in most steps
            and parts[0].dtype is output.dtype
            and not is_watched()
            and not _is_any_autocast_enabled()
        ):
            return trained_bottleneck(output, *parts)
        activation = self.activations.get(adapter)
        if activation is None:
            return output
        matrices = self._matrices(adapter)
        if matrices is None:
            return self._adapt_alone(adapter, activation, output)
        parts = self.parts(adapter, matrices)
        return in_dtype_of(parts[0], output, lambda y: bottleneck_of(y, *parts))

    def shortcut(self, adapter: str) -> Shortcut | None:
        """With the matrices that are kept, and the biases that are there when it is taken."""
        base, activation = cast(Any, self._modules["base_layer"]), self.activations.get(adapter)
        if self._uses_output_weights or is_watched():
            return None
        if activation is None:
            return cast(Shortcut, base)
        down, up = self.projections(adapter)
        of_down, of_up, activate = down._parameters, up._parameters, activation.forward
        if _bias(down) is not of_down.get("bias") or _bias(up) is not of_up.get("bias"):
            return None
        is_kept = type(down) is Dense or self.built is not None
        matrices = self._matrices(adapter) if is_kept else None
        if matrices is None:
            return None
        W, V = (matrix.t() for matrix in matrices)

        def forward(*args: Any, **kwargs: Any) -> Tensor:
            y: Tensor = base(*args, **kwargs)
            b, c = of_down.get("bias"), of_up.get("bias")
            if W.dtype is y.dtype:
                return bottleneck_by_linear(y, W, b, activate, V, c)
            return in_dtype_of(W, y, lambda y: bottleneck_by_linear(y, W, b, activate, V, c))

        return forward

    def parts(self, adapter: str, matrices: Matrices) -> Parts:
        (W, V), (down, up) = matrices, self.projections(adapter)
        return W, _bias(down), self.activations[adapter], V, _bias(up)

    def _parts_for_call(self, adapter: str) -> Parts | None:
        for_call: BuiltForCall | None = self._shared[0].here.built
        return None if for_call is None else for_call.find(self, adapter)

    def _matrices(self, adapter: str) -> Matrices | None:
        """W of down and of up; None if the layer must compute by its own formula."""
        down, up = self.projections(adapter)
        if type(down) is Dense and type(up) is Dense:  # isinstance would ask the abstract class
            W, V = down._parameters.get("W"), up._parameters.get("W")
            if W is None or V is None or W.is_meta or V.is_meta:
                return None  # pruned or offloaded: made or brought when the projection is called
            return W, V
        return self._find_built(adapter)

    def _adapt_alone(self, adapter: str, activation: nn.Module, output: Tensor) -> Tensor:
        """By this layer's own formula."""
        down, up = self.projections(adapter)
        A = self.shared.get("A", adapter)
        if A is not None:
            A = A.to(output.device)
        factor: Tensor = getattr(down, down.FACTORS[0])
        return in_dtype_of(factor, output, lambda y: bottleneck(y, down, activation, up, A))

    def _find_built(self, adapter: str) -> Matrices | None:
        built, shared = self.built, self._shared[0]
        if torch.compiler.is_compiling():
            if shared.is_traced:
                return None if built is None else built.matrices
            self.built = None  # what is compiled may be a training step, which is not seen
            return None
        is_traced = torch._C._get_tracing_state()  # what was kept would become a constant
        # Under selective checkpointing a block stands alone
        if is_traced or torch._C._len_torch_dispatch_stack():
            self.built = None
            return None
        parts = self._parts_for_call(adapter)
        if parts is not None:
            return parts[0], parts[3]
        if built is not None:
            if built.adapter == adapter and built.take():
                return built.matrices
            self.built = None
        return built_matrices(self, adapter)

    def has(self, adapter: str) -> bool:
        return adapter in self.activations

    def adapt_rows(self, group: Group, output: Tensor) -> Tensor:
        if self not in group.kept:
            self._prepare_rows(group)
        down, up = group.kept[self]
        activation = self.activations[group.adapters[0]]

        def adapted(y: Tensor) -> Tensor:
            change: Tensor = up(group, activation(down(group, y)))
            return y + change

        return in_dtype_of(down.factors[0], output, adapted)

    def _prepare_rows(self, group: Group) -> None:
        """For all layers that are like this one, in a few operations, where they take but little
        memory and none of them is trained."""
        adapter, layers = group.adapters[0], [self]
        if type(self.projections(adapter)[0]).FACTORED and not torch.is_grad_enabled():
            alike = [
                m for m in self.shared.layers if isinstance(m, BottleneckLayer) and m.has(adapter)
            ]
            alike = [m for m in alike if m._layout(adapter) == self._layout(adapter)]
            layers = alike if self in alike else layers  # a copy of a layer is none of them
        pairs = [[m.projections(adapter) for adapter in group.adapters] for m in layers]
        downs, ups = (
            RowProjection.of(group, [[pair[way] for pair in each] for each in pairs], self.shared)
            for way in (0, 1)
        )
        for layer, down, up in zip(layers, downs, ups, strict=True):
            group.kept[layer] = down, up

    def _layout(self, adapter: str) -> tuple[Any, ...]:
        """What has to be the same where parameters are stacked."""
        holder, name = self._places(adapter)[0]
        return self.shapes[adapter], holder[name].device, holder[name].dtype

    def projections(self, adapter: str) -> tuple[Projection, Projection]:
        modules: dict[str, Any] = self._modules  # by attribute it takes longer, in every pass
        return (
            modules["compacter_down"]._modules[adapter],
            modules["compacter_up"]._modules[adapter],
        )

    @staticmethod
    def all_with(adapter: str, shared: SharedParameters) -> list[BottleneckLayer]:
        """All layers of a model where that adapter has matrices to build."""
        layers = [m for m in shared.layers if isinstance(m, BottleneckLayer) and m.has(adapter)]
        return [m for m in layers if not isinstance(m.projections(adapter)[0], Dense)]

    def is_as_made(self, adapter: str) -> bool:
        """Whether parameters are here, whole and plain, so that they can be stacked with others."""
        down, up = self.projections(adapter)
        parameters = [*down._parameters.items(), *up._parameters.items()]
        if {name for name, _ in parameters} - {*down.FACTORS, "A", "bias"}:
            return False  # pruned, for one: then they have other names
        own = [parameter for name, parameter in parameters if name != "bias"]
        slow = self._shared[0].holder("A").get(adapter)
        if slow is not None:
            own.append(slow)
        if [getattr(parameter, "shape", None) for parameter in own] != self.shapes[adapter]:
            return False
        for parameter in own:
            is_plain = type(parameter) is nn.Parameter and not parameter.is_meta
            if not is_plain or parameter.is_inference():  # type: ignore[union-attr]
                return False
        return True

    def sources(self, adapter: str) -> list[Source]:
        """What the matrices are made of, as it is now."""
        return [Source.of(holder, name) for holder, name in self._places(adapter)]

    def _places(self, adapter: str) -> list[tuple[dict[str, Any], str]]:
        """Where the parameters are that the matrices are made of."""
        own = [
            (projection._parameters, name)
            for projection in self.projections(adapter)
            for name in projection._parameters
            if name != "bias"
        ]
        slow = self.shared.holder("A")
        return [*own, (slow, adapter)] if adapter in slow else own

    def delete_adapter(self, adapter_name: str) -> None:
        self.built = self.shared.together = None
        super().delete_adapter(adapter_name)

    def train(self, mode: bool = True) -> Self:
        """Also forgets what was built, in case parameters were changed behind autograd's back."""
        self.built = self.shared.here.built = None
        return super().train(mode)

    def _replicate_for_data_parallel(self) -> Self:
        """A replica has other parameters, and not as parameters: it uses its own formula."""
        replica: Self = super()._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        replica.built = None
        return replica

    def __getstate__(self) -> dict[str, Any]:
        """A copy builds for itself."""
        return {**self.__dict__, "built": None}


def _bias(projection: Projection) -> Tensor | None:
    """Found among the parameters, where it mostly is: by attribute it takes longer."""
    bias = projection._parameters.get("bias")
    return projection.bias if bias is None else bias

"""What an adapter does to a model, decided before the model is touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from compacter.errors import AdapterError
from compacter.models import base_modules, optional_call, unwrapped
from compacter.nn import WHOLE, Activation, Layout, Stack, Whole
from compacter.tuners.config import AdapterConfig
from compacter.tuners.files import MODEL_PREFIX
from compacter.tuners.layers import TunerLayer

Shape = tuple[int, ...]


@dataclass
class Plan:
    """Which modules are wrapped, and what the adapter has at each."""

    n: int | None = None
    """Size of the slow weights that all places share, if they do."""
    activation: Activation | None = None
    layers: dict[str, type[TunerLayer]] = field(default_factory=dict)
    """Module path -> the layer that wraps it."""
    stacks: dict[Stack, list[str]] = field(default_factory=dict)
    """A stack without places -> the paths of its places."""
    whole: dict[str, tuple[Shape, tuple[str, str] | float]] = field(default_factory=dict)
    """Name -> shape and start of a tensor that belongs to no place."""
    output: dict[str, nn.Module] = field(default_factory=dict)
    """Path -> module of the output layer, first, and of what is tied to it, if it is tuned."""

    def add(self, path: str, layer: type[TunerLayer], like: Stack) -> None:
        """Wrap the module at `path`, which gets what `like` has at each of its places."""
        self.layers[path] = layer
        self.stacks.setdefault(like, []).append(path)

    @property
    def layout(self) -> Layout:
        stacks = [replace(like, paths=tuple(paths)) for like, paths in self.stacks.items()]
        if self.whole:
            stacks.append(Whole((WHOLE,), tuple((n, *rest) for n, rest in self.whole.items())))
        return Layout(tuple(stacks), self.n, self.activation)


def places_of(plan: Plan, layout: Layout) -> list[dict[str, Any]]:
    """The places of an adapter, as its configuration lists them: stack by stack, the names of the
    tensors and the paths that their first dimension stands for. Where nothing is stacked, the
    modules that are changed."""
    stacked = [
        {"tensors": [*names.values()], "paths": [*stack.paths]}
        for stack, names in layout.names()
        if not isinstance(stack, Whole)
    ]
    return stacked or [{"tensors": [], "paths": [*plan.layers]}]


def in_stored_order(plan: Plan, stored: Any, origin: str) -> Layout:
    """The layout with the places of each stack in the order of a stored adapter, which must have
    the same places."""
    layout = plan.layout
    expected = {tuple(e["tensors"]): e["paths"] for e in places_of(plan, layout)}
    try:
        found = {tuple(e["tensors"]): [str(path) for path in e["paths"]] for e in stored}
    except (TypeError, KeyError):
        raise AdapterError(f"{origin}: its list of places is damaged; save it again") from None
    if {k: sorted(v) for k, v in expected.items()} != {k: sorted(v) for k, v in found.items()}:
        ours = {path for paths in expected.values() for path in paths}
        theirs = {path for paths in found.values() for path in paths}
        problems = [f"{path} is missing" for path in sorted(ours - theirs)]
        problems += [f"{path} has no place in this model" for path in sorted(theirs - ours)]
        raise AdapterError(does_not_fit(origin, problems or ["the tensors have other names"]))
    stacks = [
        stack if isinstance(stack, Whole) else replace(stack, paths=tuple(found[tuple(n.values())]))
        for stack, n in layout.names()
    ]
    return layout._replace(stacks=tuple(stacks))


def check_shapes(
    expected: Mapping[str, Shape],
    found: Mapping[str, Shape],
    origin: str,
    optional: Mapping[str, Shape] | None = None,
) -> None:
    """The tensors found must be the tensors expected, no more, no fewer, each in its shape."""
    known = {**(optional or {}), **expected}
    problems = [
        f"{name} has shape {list(found[name])}, expected {list(shape)}"
        for name, shape in known.items()
        if name in found and tuple(found[name]) != tuple(shape)
    ]
    problems += [f"{name} is missing" for name in expected if name not in found]
    problems += [f"{name} has no place in this model" for name in found if name not in known]
    if problems:
        raise AdapterError(does_not_fit(origin, problems))


def does_not_fit(origin: str, problems: list[str]) -> str:
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    return (
        f"the adapter from {origin} does not fit this model and its own settings: "
        f"{'; '.join(problems[:3])}{more}. Load it into the model it was trained on, or, for a "
        "new adapter with the same settings, make a new config"
    )


def saved_whole_roots(model: nn.Module, names: list[str] | None) -> list[str]:
    """Paths of the modules that PEFT trains and saves whole: every module whose path ends with one
    of the names, as "pre_classifier" does with "classifier"."""
    found = [path for path in base_modules(model) if names and path.endswith(tuple(names))]
    return [p for p in found if not any(p.startswith(f"{outer}.") for outer in found)]


def saved_whole_paths(model: nn.Module, names: list[str] | None) -> set[str]:
    """The same paths, and those of everything inside of these modules."""
    roots = tuple(f"{root}." for root in saved_whole_roots(model, names))
    return {path for path in base_modules(model) if roots and f"{path}.".startswith(roots)}


def head_tensors(model: nn.Module, names: list[str] | None) -> dict[str, Tensor]:
    """The tensors of modules saved whole, such as heads, by their names in a saved file."""
    modules = base_modules(model) if names else {}
    return {
        f"{MODEL_PREFIX}{path}.{name}": tensor
        for path in saved_whole_roots(model, names)
        for name, tensor in modules[path].state_dict().items()
    }


def embedding_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Tensors that PEFT adds to a file where the vocabulary was resized, where `target_modules`
    names embeddings, or with `save_embedding_layers=True`: those of the embeddings and of the
    output layer, by their names as they are or inside a wrapper."""
    layers = [
        unwrapped(layer)
        for find in ("get_input_embeddings", "get_output_embeddings")
        if (layer := optional_call(model, find)) is not None
    ]
    wrappers = ("", ".base_layer", ".original_module", ".modules_to_save")
    return {
        f"{MODEL_PREFIX}{path}{inside}.{name}": tensor
        for path, module in base_modules(model).items()
        if any(module is layer for layer in layers)
        for name, tensor in module.named_parameters(recurse=False)
        for inside in wrappers
    }


def without_tokens(config: AdapterConfig) -> dict[str, Shape]:
    """The shapes of a stored adapter, without single tokens that PEFT trains, saves and checks."""
    stored = config.stored or {}
    trains_tokens = config.trainable_token_indices is not None
    return {n: s for n, s in stored.items() if not (trains_tokens and ".token_adapter." in n)}


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, Shape]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}

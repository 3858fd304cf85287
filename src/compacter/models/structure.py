"""Where to put adapters: the blocks of a model, and the layers in them that write back."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from compacter.errors import ArchitectureError
from compacter.models.architectures import (
    ARCHITECTURES,
    BYPASSES,
    Architecture,
    Bypass,
    path_matches,
    stack_matches,
)
from compacter.models.inference import (
    BY_HAND,
    Modules,
    block_paths,
    find_stacks,
    hidden_size,
    infer_attention,
    infer_feed_forward,
    inside,
)
from compacter.models.modules import (
    bare_model,
    base_modules,
    model_type,
    optional_call,
    output_width,
    unwrapped,
)

POSITIONS = ("attention", "feed_forward")

READ_DIRECTLY = (nn.MultiheadAttention, nn.TransformerEncoderLayer)
"""Modules of torch that may read the weights of their children instead of calling them."""


@dataclass(frozen=True)
class Block:
    """One transformer block: the `index`-th of the list at `stack`.

    `attention` and `feed_forward` are the full paths, in the bare model, of the layers that write
    back to the residual stream; None where the position was not asked for.
    """

    stack: str
    index: int
    path: str
    attention: str | None
    feed_forward: str | None


@dataclass(frozen=True)
class Target:
    """One module that gets an adapter, and the layer it belongs to."""

    path: str
    stack: str
    index: int


def find_blocks(model: nn.Module, positions: Sequence[str] = POSITIONS) -> tuple[Block, ...]:
    """The blocks of a model, from the table of architectures if it is there, else by inference."""
    modules = base_modules(model)
    for family, bypass in _bypasses(modules).items():
        raise ArchitectureError(
            f"a model of type {family!r} cannot be adapted as a whole: {bypass.reason}, so an "
            f"adapter there would never run; {BY_HAND}, leaving out {', '.join(bypass.modules)}"
        )
    family = model_type(bare_model(model))
    if family not in ARCHITECTURES:
        return infer_blocks(model, positions)
    architecture = ARCHITECTURES[family]
    stacks = _known_stacks(modules, architecture, family)
    return _blocks(
        modules,
        stacks,
        positions,
        lambda block, position: _known_layer(modules, block, position, architecture),
    )


def infer_blocks(model: nn.Module, positions: Sequence[str] = POSITIONS) -> tuple[Block, ...]:
    """The blocks of a model from its structure alone, whether or not a table knows it."""
    modules = base_modules(model)
    stacks = find_stacks(modules)
    hidden = hidden_size(model)
    infer = {"attention": infer_attention, "feed_forward": infer_feed_forward}
    return _blocks(
        modules,
        stacks,
        positions,
        lambda block, position: infer[position](modules, block, hidden),
    )


def targets_of(blocks: Iterable[Block], positions: Sequence[str] = POSITIONS) -> tuple[Target, ...]:
    """The layers of the blocks that are asked for, in the order in which the model runs them."""
    return tuple(
        Target(path, block.stack, block.index)
        for block in blocks
        for position, path in (
            ("attention", block.attention),
            ("feed_forward", block.feed_forward),
        )
        if position in positions and path is not None
    )


def named_targets(model: nn.Module, target_modules: str | Sequence[str]) -> tuple[Target, ...]:
    """The modules named by hand as PEFT does it: a list of names (whole paths or their ends), or
    one regular expression for the whole path. Every name must match something."""
    modules = base_modules(model)
    wanted = [target_modules] if isinstance(target_modules, str) else list(target_modules)
    found: set[str] = set()
    for name in wanted:
        matches = _matches(modules, name, is_pattern=isinstance(target_modules, str))
        if not matches:
            raise ArchitectureError(
                f"target_modules: nothing in the model matches {name!r}; "
                f"the nearest names are {_nearest(modules, name)}"
            )
        found.update(matches)
    if not found:
        raise ArchitectureError(
            f"target_modules is empty; expected names such as {_nearest(modules, 'o_proj')}"
        )
    bypassed = tuple(end for bypass in _bypasses(modules).values() for end in bypass.modules)
    for path in found:
        _check_layer(modules, path)
        if any(path.endswith(f".{end}") for end in bypassed):
            raise ArchitectureError(
                f"{path!r} cannot be adapted: the model hands its weight to a fused function, so "
                "an adapter there would never run; name other modules"
            )
    return tuple(target_at(path) for path in modules if path in found)


def linear_targets(model: nn.Module) -> tuple[Target, ...]:
    """Every linear layer but the output layer, which PEFT calls "all-linear"."""
    head = optional_call(model, "get_output_embeddings")
    left_out = None if head is None else unwrapped(head)
    return tuple(
        target_at(path)
        for path, module in base_modules(model).items()
        if output_width(module) is not None and module is not left_out
    )


def drop_layers(targets: Sequence[Target], count: int) -> tuple[Target, ...]:
    """Without the targets in the first `count` layers of each stack (AdapterDrop)."""
    depths: dict[str, int] = {}
    for target in targets:
        depths[target.stack] = max(depths.get(target.stack, 0), target.index + 1)
    largest = min(depths.values(), default=1) - 1
    if not 0 <= count <= largest:
        sizes = ", ".join(f"{stack or 'the model'} has {depth}" for stack, depth in depths.items())
        raise ArchitectureError(
            f"drop_layers={count} does not fit: it must leave a layer in every stack ({sizes}); "
            f"expected 0 to {largest}"
        )
    return tuple(target for target in targets if target.index >= count)


def _blocks(
    modules: Modules,
    stacks: Mapping[str, Sequence[str]],
    positions: Sequence[str],
    locate: Callable[[str, str], str],
) -> tuple[Block, ...]:
    unknown = [position for position in positions if position not in POSITIONS]
    if unknown:
        raise ArchitectureError(f"unknown positions {unknown}; expected some of {list(POSITIONS)}")

    def layer(path: str, position: str) -> str | None:
        if position not in positions:
            return None
        found = locate(path, position)
        _check_layer(modules, found)
        return found

    return tuple(
        Block(
            stack=stack,
            index=int(path.rpartition(".")[2]),
            path=path,
            attention=layer(path, "attention"),
            feed_forward=layer(path, "feed_forward"),
        )
        for stack, paths in stacks.items()
        for path in paths
    )


def _known_stacks(
    modules: Modules, architecture: Architecture, family: str
) -> dict[str, tuple[str, ...]]:
    lists = [path for path, module in modules.items() if isinstance(module, nn.ModuleList)]
    stacks = {
        path: block_paths(modules, path)
        for path in lists
        if any(stack_matches(path, pattern) for pattern in architecture.stacks)
    }
    if not stacks:
        raise ArchitectureError(
            f"a model of type {family!r} should keep its blocks in "
            f"{' or '.join(architecture.stacks)}, found {', '.join(lists[:5]) or 'no list'}; "
            f"{BY_HAND}"
        )
    return stacks


def _known_layer(modules: Modules, block: str, position: str, architecture: Architecture) -> str:
    patterns: tuple[str, ...] = getattr(architecture, position)
    found = [
        path
        for path in inside(modules, block)
        if any(path_matches(path, pattern) for pattern in patterns)
    ]
    if len(found) != 1:
        raise ArchitectureError(
            f"block {block!r}: expected one {position} output at {' or '.join(patterns)}, found "
            f"{', '.join(found) or 'none'}; {BY_HAND}"
        )
    return f"{block}.{found[0]}"


def _check_layer(modules: Modules, path: str) -> None:
    """An adapter needs to know the width it reads, and its layer must really be called."""
    if output_width(modules[path]) is None:
        raise ArchitectureError(
            f"{path!r} is a {type(modules[path]).__name__}, which has no known output width; "
            "expected a linear layer (one with out_features, or a Conv1D)"
        )
    parent = modules.get(path.rpartition(".")[0])
    if isinstance(parent, READ_DIRECTLY):
        raise ArchitectureError(
            f"{path!r} is part of a {type(parent).__name__}, which reads its weight without "
            "calling it, so an adapter there would never run; expected a layer outside of it"
        )


def _bypasses(modules: Modules) -> dict[str, Bypass]:
    """The bypasses of all models inside the model (a speech encoder in an encoder-decoder)."""
    found: dict[str, Bypass] = {}
    for module in modules.values():
        family = model_type(module)
        if family in BYPASSES and BYPASSES[family].when(module.config):
            found[family] = BYPASSES[family]
    return found


def _matches(modules: Modules, name: str, *, is_pattern: bool) -> list[str]:
    if not is_pattern:
        return [path for path in modules if path == name or path.endswith(f".{name}")]
    try:
        pattern = re.compile(name)
    except re.error as error:
        raise ArchitectureError(
            f"target_modules={name!r} is no regular expression ({error}); expected one that "
            'matches whole paths, or a list such as ["o_proj", "down_proj"]'
        ) from None
    return [path for path in modules if path and pattern.fullmatch(path)]


def _nearest(modules: Modules, name: str) -> str:
    names = list(
        dict.fromkeys(path.rpartition(".")[2] for path in modules if output_width(modules[path]))
    )
    wanted = name.rpartition(".")[2]
    close = difflib.get_close_matches(wanted, names, n=5, cutoff=0.3) or names[:5]
    return ", ".join(close) or "none (the model has no linear layer)"


def target_at(path: str) -> Target:
    """The layer of a path is its first number: `model.layers.3.mlp.down_proj` -> 3."""
    parts = path.split(".")
    number = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    if number is None:
        return Target(path, stack="", index=0)
    return Target(path, stack=".".join(parts[:number]), index=int(parts[number]))

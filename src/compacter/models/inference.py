"""Finding the write-backs of a model that no table knows, from its names and widths alone.

The rules decide only what they are certain of. Everything else is an error that lists what was
found and asks for names: an adapter in the wrong place would train, and quietly be worse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from torch import nn

from compacter.errors import ArchitectureError
from compacter.models.modules import (
    bare_model,
    base_modules,
    input_width,
    is_layer_norm,
    output_width,
)

Modules = Mapping[str, nn.Module]

BY_HAND = 'name the modules by hand, for example target_modules=["o_proj", "down_proj"]'

_ATTENTION = re.compile(r"attn|attention|(^|_)(att|mha)(_|$)", re.IGNORECASE)
_CROSS = re.compile(
    r"cross|enc_?dec|encoder_?(decoder_?)?att|(^|_)(enc|src|context|memory)_?att", re.IGNORECASE
)
_EXPERTS = re.compile(r"expert|(^|_)moe(_|$)", re.IGNORECASE)
_READS = re.compile(r"qkv|(^|_)(w?[qkv]|query|key|value|in|pos|g|gate)(\d|_|$)", re.IGNORECASE)
_WRITES = re.compile(
    r"(o|out|output)(_(proj|lin|linear|net))?|((c|fc|linear|proj|to)_)?(out|proj)"
    r"|projection|dense|w_?o"
)
_HIDDEN_SIZES = ("hidden_size", "d_model", "n_embd", "dim")


def find_stacks(modules: Modules) -> dict[str, tuple[str, ...]]:
    """Path of each outermost list of blocks -> paths of its blocks.

    A block holds at least two linear layers. A list of blocks of several classes is refused: what
    holds for one class need not hold for another.
    """
    stacks: dict[str, tuple[str, ...]] = {}
    for path, module in modules.items():
        if not isinstance(module, nn.ModuleList) or _within(path, stacks):
            continue
        blocks = block_paths(modules, path)
        if not blocks or any(len(linears(modules, block)) < 2 for block in blocks):
            continue
        classes = sorted({type(modules[block]).__name__ for block in blocks})
        if len(classes) > 1:
            raise ArchitectureError(
                f"the blocks of {path!r} are of several classes ({', '.join(classes)}), so their "
                f"parts cannot be told apart; {BY_HAND}"
            )
        stacks[path] = blocks
    if not stacks:
        raise ArchitectureError(
            "found no list of transformer blocks: expected an nn.ModuleList whose entries each "
            f"hold attention and feed-forward layers; {BY_HAND}"
        )
    return stacks


def block_paths(modules: Modules, stack: str) -> tuple[str, ...]:
    """The blocks of a list; one that is used twice counts where it is first."""
    children = (f"{stack}.{name}" for name, _ in modules[stack].named_children())
    return tuple(path for path in children if path in modules)


def linears(modules: Modules, block: str) -> list[str]:
    """Paths, inside the block, of everything that is like a linear layer."""
    return [path for path in inside(modules, block) if output_width(modules[f"{block}.{path}"])]


def inside(modules: Modules, block: str) -> list[str]:
    """Paths of all modules under the block, without the block's own path."""
    prefix = f"{block}."
    return [path.removeprefix(prefix) for path in modules if path.startswith(prefix)]


def hidden_size(model: nn.Module) -> int:
    """Width of the residual stream: from the config, else from the norms in the blocks."""
    size = _configured_size(getattr(bare_model(model), "config", None))
    if size is not None:
        return size
    modules = base_modules(model)
    blocks = [block for blocks in find_stacks(modules).values() for block in blocks]
    widths = set().union(*(_norm_widths(modules, block) for block in blocks))
    if len(widths) != 1:
        found = ", ".join(map(str, sorted(widths))) or "none"
        raise ArchitectureError(
            f"the hidden size is not certain: the model has no config with one of "
            f"{', '.join(_HIDDEN_SIZES)}, and the widths of the norms in its blocks are {found} "
            f"(expected one); {BY_HAND}"
        )
    return int(widths.pop())


def infer_attention(modules: Modules, block: str, hidden: int) -> str:
    """Full path of the layer with which self-attention writes back: of the layers as wide as the
    residual stream, the only one that does not make queries, keys, values or gates."""
    _check_width(modules, block, hidden)
    wide = [
        path
        for path in linears(modules, block)
        if _any(_ATTENTION, path.rpartition(".")[0])
        and not _is_cross(modules, block, path)
        and output_width(modules[f"{block}.{path}"]) == hidden
    ]
    writing = [path for path in wide if not _READS.search(_name(path))]
    named = [path for path in writing if len(wide) == 1 or _WRITES.fullmatch(_name(path))]
    certain = len(writing) == len(named) == 1
    return _one(block, "attention", writing or wide, hidden, certain=certain)


def infer_feed_forward(modules: Modules, block: str, hidden: int) -> str:
    """Full path of the layer with which the feed-forward writes back: it leads from an inner width
    to the hidden size, and another layer leads there (twice as wide if its gate is fused)."""
    _check_width(modules, block, hidden)
    paths = inside(modules, block)
    if any(is_expert(path, modules[f"{block}.{path}"]) for path in paths):
        outside = [path for path in linears(modules, block) if not _any(_EXPERTS, path)]
        raise ArchitectureError(
            f"block {block!r} is a mixture of experts, which writes back through many layers at "
            "once, so no single feed-forward output was found; name other modules with "
            f"target_modules; outside of the experts it has {', '.join(outside) or 'none'}"
        )
    if not any(_any(_ATTENTION, path) for path in paths):
        raise ArchitectureError(
            f"block {block!r} holds nothing named like attention, so its feed-forward is not "
            f"certain; {BY_HAND}"
        )
    widths = {
        path: (input_width(modules[f"{block}.{path}"]), output_width(modules[f"{block}.{path}"]))
        for path in linears(modules, block)
        if not _any(_ATTENTION, path) and not _is_cross(modules, block, path)
    }
    wide = [path for path, (_, target) in widths.items() if target == hidden]
    writing = [path for path in wide if len(wide) == 1 or widths[path][0] != hidden]
    certain = len(writing) == 1 and _is_last(writing[0], widths, hidden)
    return _one(block, "feed-forward", writing or wide, hidden, certain=certain)


def _is_last(path: str, widths: Mapping[str, tuple[int | None, int | None]], hidden: int) -> bool:
    """Whether another layer leads to this one, and none beside it is as wide as the output."""
    parent, inner = path.rpartition(".")[0], widths[path][0] or 0
    others = {other: width for other, width in widths.items() if other != path}
    fed = (hidden, inner) in others.values() or (hidden, 2 * inner) in others.values()
    beside = [other for other in others if other.rpartition(".")[0] == parent]
    return fed and all(widths[other][1] != hidden for other in beside)


def _one(block: str, position: str, found: list[str], hidden: int, *, certain: bool) -> str:
    if certain:
        return f"{block}.{found[0]}"
    raise ArchitectureError(
        f"the {position} output of block {block!r} is not certain: expected one linear layer of "
        f"output width {hidden}, found {', '.join(found) or 'none'}; {BY_HAND}"
    )


def _check_width(modules: Modules, block: str, hidden: int) -> None:
    """A stack of another width than the model's (an image encoder) is not ours to guess about."""
    widths = _norm_widths(modules, block)
    if widths and hidden not in widths:
        raise ArchitectureError(
            f"block {block!r} has norms of width {', '.join(map(str, sorted(widths)))}, but the "
            f"hidden size of the model is {hidden}; {BY_HAND}"
        )


def _norm_widths(modules: Modules, block: str) -> set[int]:
    """Widths of the block's norms, but for those of queries and keys."""
    return {
        parameter.shape[-1]
        for path in inside(modules, block)
        if is_layer_norm(modules[f"{block}.{path}"]) and not _any(_ATTENTION, path)
        for parameter in modules[f"{block}.{path}"].parameters()
    }


def _configured_size(config: Any) -> int | None:
    with suppress(AttributeError, ValueError):
        config = config.get_text_config()
    for name in _HIDDEN_SIZES:
        size = config.get(name) if isinstance(config, dict) else getattr(config, name, None)
        if isinstance(size, int):
            return size
    return None


def is_expert(path: str, module: nn.Module) -> bool:
    """Whether a module is, or holds, the experts of a mixture, by its path or its class."""
    return _any(_EXPERTS, path) or "expert" in type(module).__name__.lower()


def _is_cross(modules: Modules, block: str, path: str) -> bool:
    """Whether a layer is part of cross-attention, by the names or classes of what holds it."""
    parts = path.split(".")
    holders = (".".join([block, *parts[:end]]) for end in range(1, len(parts)))
    return _any(_CROSS, path) or any("cross" in type(modules[h]).__name__.lower() for h in holders)


def _any(pattern: re.Pattern[str], path: str) -> bool:
    return any(pattern.search(part) for part in path.split("."))


def _name(path: str) -> str:
    """The last component that is a name: `to_out` for `attn.to_out.0`."""
    return next((part for part in reversed(path.split(".")) if not part.isdigit()), path).lower()


def _within(path: str, stacks: Mapping[str, object]) -> bool:
    return any(path.startswith(f"{stack}.") for stack in stacks)

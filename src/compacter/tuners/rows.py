"""Batches whose rows belong to different adapters.

The rows of adapters with equal shapes are computed together: their parameters are stacked, each row
takes its own from the stack, and one batched product serves them all. What rows were repeated to
(beams, return sequences, tokens in a flat list) stays side by side, so it is folded into the length
of a row."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from peft.utils.other import ModulesToSaveWrapper
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils._pytree import tree_map

from compacter.errors import AdapterError

BASE = "__base__"
"""The name of rows that the base model computes alone."""


class Group:
    """Adapters of equal shapes, and the rows of a batch that belong to them."""

    def __init__(self, names: Sequence[str], members: frozenset[str]) -> None:
        rows = [row for row, name in enumerate(names) if name in members]
        self.adapters = list(dict.fromkeys(names[row] for row in rows))
        place = {adapter: index for index, adapter in enumerate(self.adapters)}
        which = [place[names[row]] for row in rows]
        self._rows = None if len(rows) == len(names) else torch.tensor(rows)
        self._which = None if which == list(range(len(rows))) else torch.tensor(which)
        self.kept: dict[Any, Any] = {}
        """What layers made of the adapters' parameters, for as long as the batch is computed."""

    @property
    def is_all(self) -> bool:
        return self._rows is None

    def gather(self, stack: Tensor, dim: int = 0) -> Tensor:
        """For each row its own of the adapters' tensors, which are stacked along `dim`."""
        if self._which is None:
            return stack
        self._which = self._which.to(stack.device)
        return stack.index_select(dim, self._which)

    def rows_of(self, x: Tensor) -> Tensor:
        """The group's rows among all."""
        if self._rows is None:
            return x
        self._rows = self._rows.to(x.device)
        return x.index_select(0, self._rows)

    def put(self, x: Tensor, rows: Tensor) -> Tensor:
        """All rows with those of the group replaced."""
        if self._rows is None:
            return rows
        return x.index_copy(0, self._rows.to(x.device), rows.to(x.dtype))


class Rows:
    """Which adapter each row of a batch belongs to."""

    def __init__(self, names: Sequence[str], shapes: Mapping[str, Any]) -> None:
        self.names = list(names)
        alike: dict[Any, set[str]] = {}
        for name in dict.fromkeys(names):
            if name != BASE:
                alike.setdefault(shapes[name], set()).add(name)
        self.groups = [Group(self.names, frozenset(members)) for members in alike.values()]

    def fold(self, x: Tensor, dims: int = 1) -> Tensor:
        """x in R^{rows x ... x width} as R^{names x length x width}, the width of so many
        dimensions."""
        self.check(x)
        return x.reshape(len(self.names), -1, *x.shape[-dims:])

    def check(self, x: Tensor) -> None:
        """A module can be given something else than rows: a table of positions, for one."""
        if isinstance(x, nn.Parameter) or x.dim() < 2 or x.shape[0] % len(self.names):
            raise AdapterError(
                f"an adapted module was called with a tensor of shape {list(x.shape)}, expected "
                f"rows of {len(self.names)} adapter_names; if the batch has that many rows, this "
                "model computes something for all rows at once that differs between adapters, and "
                "cannot mix them: call it for each adapter alone"
            )


def stack_of(modules: Sequence[nn.Module], name: str) -> Tensor:
    """The parameters of that name of several modules; by their dictionaries where they are there,
    since to ask a module for an attribute takes longer than to stack it."""
    held = [(module, module._parameters.get(name)) for module in modules]
    return torch.stack([getattr(m, name) if p is None else p for m, p in held])


def private_copy(module: nn.Module) -> nn.Module:
    """A copy with the same tensors, for `functional_call`: that gives other tensors to the module
    itself for as long as it computes, and another thread would see them."""
    tensors = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(tensor): tensor for tensor in tensors})


def head_rows(rows: Rows, head: ModulesToSaveWrapper, x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """The output of a module that adapters have whole, each row by its own adapter's."""
    rows.check(x)
    owners = {name: name if name in head.modules_to_save else BASE for name in rows.names}
    places = {name: index for index, name in enumerate(dict.fromkeys(owners.values()))}
    modules = [head.original_module if n == BASE else head.modules_to_save[n] for n in places]
    which = torch.tensor([places[owners[name]] for name in rows.names], device=x.device)
    states = [{**dict(m.named_parameters()), **dict(m.named_buffers())} for m in modules]
    state = {name: torch.stack([s[name] for s in states])[which] for name in states[0]}

    private = private_copy(head.original_module)

    def one(own: dict[str, Tensor], part: Tensor) -> Any:
        return functional_call(private, own, (part, *args), kwargs)

    parts = x.reshape(len(rows.names), -1, *x.shape[1:])
    return tree_map(lambda out: out.flatten(0, 1), vmap(one)(state, parts))


def check_names(names: Any, known: Mapping[str, Any], batch: int | None) -> list[str]:
    """The names of a batch's rows, if there is an adapter for each and a name for each row."""
    if isinstance(names, str) or not isinstance(names, Sequence) or not names:
        raise AdapterError(
            f"adapter_names={names!r}: expected a list with one name for each row of the batch"
        )
    for name in names:
        if name != BASE and name not in known:
            some = ", ".join(repr(n) for n in list(known)[:5]) + (", ..." if len(known) > 5 else "")
            raise AdapterError(
                f"adapter_names has {name!r}, which is no adapter of this model; expected {some} "
                f"or {BASE!r}"
            )
    if batch is not None and len(names) != batch:
        raise AdapterError(
            f"adapter_names has {len(names)} names for a batch of {batch} rows; expected one each"
        )
    return list(names)


BATCHES = ("input_ids", "inputs", "inputs_embeds", "pixel_values", "input_values", "input_features")


def batch_size(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """The number of rows that a model is called with; None if that cannot be seen."""
    given = [*args[:1], *(kwargs.get(name) for name in BATCHES)]
    encoded = kwargs.get("encoder_outputs")
    if encoded is not None:
        given.append(encoded[0])
    return next((len(value) for value in given if isinstance(value, Tensor)), None)


MEDIA = {
    "pixel_values": "image",
    "pixel_values_videos": "video",
    "input_features": "audio",
    "input_values": "audio",
}


def check_media(config: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Where images or sounds come with texts, each text must have as many: they are computed in a
    batch of their own, which is shared out among the adapters evenly."""
    texts = kwargs.get("input_ids", args[0] if args else kwargs.get("inputs_embeds"))
    for name, kind in MEDIA.items():
        media = kwargs.get(name)
        if not isinstance(media, Tensor) or not isinstance(texts, Tensor):
            continue
        token = getattr(config, f"{kind}_token_id", getattr(config, f"{kind}_token_index", None))
        if token is None or texts.is_floating_point():
            is_even, found = len(media) == len(texts), f"{len(media)} for {len(texts)} rows"
        else:
            counts = (texts == token).sum(-1).tolist()
            is_even, found = len(set(counts)) == 1, f"{kind} tokens in the rows: {counts}"
        if not is_even:
            raise AdapterError(
                f"adapter_names were given with {name} that are not the same number for each row "
                f"({found}), so that they cannot be shared out among the adapters: call the model "
                "for each adapter alone"
            )

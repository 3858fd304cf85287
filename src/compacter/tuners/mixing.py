"""Batches whose examples have different adapters.

The tensors of the adapters are gathered once for the whole model, an example of the batch in front;
one batched product then serves all of them at each place. Examples that were repeated (beams,
return sequences, tokens in a flat list) stay side by side, so they are folded into the length."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from peft.utils.other import ModulesToSaveWrapper
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_map

from compacter.errors import AdapterError
from compacter.nn import SLOW, WHOLE, Bottlenecks, Layout, Whole, moved_to, with_tensors

if TYPE_CHECKING:
    from compacter.tuners.layers import Adapters

BASE = "__base__"
"""The name of examples that the base model computes alone."""

Tensors = dict[str, Tensor]
Fetch = Callable[[Sequence[str]], Tensors]
"""The tensors of these adapters, stacked in this order."""


class Group:
    """The examples of a batch whose adapters have one layout and are kept in one place."""

    def __init__(
        self, layout: Layout, names: Sequence[str], members: Collection[str], fetch: Fetch
    ) -> None:
        self.layout = layout
        self.places = layout.places()
        examples = [index for index, name in enumerate(names) if name in members]
        mine = [names[index] for index in examples]
        adapters = list(dict.fromkeys(mine))
        bottlenecks = [stack for stack in layout.stacks if isinstance(stack, Bottlenecks)]
        is_factored = all(stack.down.is_factored for stack in bottlenecks)
        # Factors are small and gathered per example at once; matrices where they are used
        self._tensors = fetch(mine if is_factored else adapters)
        which = [adapters.index(name) for name in mine]
        is_plain = is_factored or which == list(range(len(which)))
        self._which = None if is_plain else torch.tensor(which)
        self._examples = None if len(examples) == len(names) else torch.tensor(examples)
        self._parts: dict[tuple[str, torch.device | None], Any] = {}

    @property
    def is_all(self) -> bool:
        return self._examples is None

    def part(self, path: str, device: torch.device) -> Any:
        """What the group's examples compute with at this place."""
        part = self._parts.get((path, device))
        if part is None:
            if (path, None) not in self._parts:
                self._make_parts(self.places[path][0])
            part = self._parts[path, device] = moved_to(self._parts[path, None], device)
        if self._which is None:
            return part
        which = self._which.to(device)
        return tree_map(lambda t: None if t is None else t.index_select(0, which), part)

    def _make_parts(self, number: int) -> None:
        """For all places of a stack together."""
        stack, names = [*self.layout.names()][number]
        own = {local: self._tensors[name] for local, name in names.items()}
        made = stack.example_parts(own, self._tensors.get(SLOW))
        self._parts.update({(p, None): m for p, m in zip(stack.paths, made, strict=True)})

    def examples_of(self, x: Tensor) -> Tensor:
        """The group's examples among all."""
        return x if self._examples is None else x.index_select(0, self._examples.to(x.device))

    def put(self, x: Tensor, examples: Tensor) -> Tensor:
        """All examples with those of the group replaced."""
        if self._examples is None:
            return examples
        return x.index_copy(0, self._examples.to(x.device), examples.to(x.dtype))


class Batch:
    """Which adapter each example has, and the weights of these adapters as they are now.

    Args:
        adapters: all adapters of the model.
        names: the adapter of each example.
    """

    def __init__(self, adapters: Adapters, names: Sequence[str]) -> None:
        self.names = list(names)
        own, pool = adapters.by_name, adapters.pool
        with nullcontext() if pool is None else pool.lock:
            pooled = {n for n in names if n != BASE and n not in own}
            self._entries = {} if pool is None else {n: pool.entry(n) for n in pooled}
            alike: dict[tuple[Layout, bool], set[str]] = {}
            for name in dict.fromkeys(names):
                if name in own:
                    alike.setdefault((own[name].layout, False), set()).add(name)
                elif name in self._entries:
                    layout = self._entries[name].stacks.layout
                    alike.setdefault((layout, True), set()).add(name)
            self.groups = [
                Group(layout, names, members, pool.read if is_pooled and pool else fetch_from(own))
                for (layout, is_pooled), members in alike.items()
            ]
        outputs = {n: own[n](WHOLE) for n in dict.fromkeys(names) if n in own}
        outputs |= {n: entry.whole for n, entry in self._entries.items()}
        self._outputs = {name: tensors for name, tensors in outputs.items() if tensors}

    @property
    def head_paths(self) -> set[str]:
        """Paths of modules that pooled adapters of this batch have whole."""
        return {path for entry in self._entries.values() for path in entry.heads}

    def at(self, path: str) -> list[Group]:
        return [group for group in self.groups if path in group.places]

    def change(
        self, path: str, output: Tensor, adapt: Callable[[Any, Layout, Tensor], Tensor], dims: int
    ) -> Tensor:
        """The output at a place, of which each group adapts its examples."""
        groups = self.at(path)
        if not groups:
            return output
        folded = self.fold(output, dims)
        for group in groups:
            part = group.part(path, output.device)
            folded = group.put(folded, adapt(part, group.layout, group.examples_of(folded)))
        return folded.reshape(output.shape)

    def tuned_outputs(self, x: Tensor) -> Iterator[tuple[Tensor, Mapping[str, Tensor]]]:
        """Adapters that tune the output layer: the index of their examples, and the weights."""
        self.check(x)
        for adapter, tensors in self._outputs.items():
            mine = torch.tensor([name == adapter for name in self.names], device=x.device)
            yield mine.repeat_interleave(len(x) // len(self.names)).nonzero().flatten(), tensors

    def fold(self, x: Tensor, dims: int = 1) -> Tensor:
        """x in R^{examples x ... x width} as R^{names x length x width}, where the width has `dims`
        dimensions."""
        self.check(x)
        return x.reshape(len(self.names), -1, *x.shape[-dims:])

    def check(self, x: Tensor) -> None:
        """A module can be given something else than examples: a table of positions, for one."""
        if isinstance(x, nn.Parameter) or x.dim() < 2 or x.shape[0] % len(self.names):
            raise AdapterError(
                f"an adapted module was called with a tensor of shape {list(x.shape)}, expected "
                f"examples of {len(self.names)} adapter_names; if the batch has that many, this "
                "model computes something for all examples at once that differs between adapters, "
                "and cannot mix them: call it for each adapter alone"
            )

    def run_head(self, path: str, head: nn.Module, x: Tensor, **kwargs: Any) -> Any:
        """The output of a module that adapters have whole, each example by its own adapter's. Heads
        of different sizes give logits of the largest size, -inf where an adapter has no label."""
        self.check(x)
        states = {name: self._head(name, path, head) for name in set(self.names)}
        base = head.original_module if isinstance(head, ModulesToSaveWrapper) else head
        alike: dict[Any, list[int]] = {}
        for index, name in enumerate(self.names):
            key = tuple(tensor.shape for tensor in states[name].values())
            alike.setdefault(key, []).append(index)
        folded = x.reshape(len(self.names), -1, *x.shape[1:])
        made = []
        for examples in alike.values():
            stacked = _stack([states[self.names[example]] for example in examples])
            where = torch.tensor(examples, device=x.device)
            made.append((where, _run_each(base, stacked, folded.index_select(0, where), kwargs)))
        parts = [part for _, part in made]
        return tree_map(lambda *leaves: _join([i for i, _ in made], leaves), *parts)

    def _head(self, name: str, path: str, head: nn.Module) -> Tensors:
        """The tensors of an adapter's own copy of a module, or the base model's if it has none."""
        if name in self._entries:
            found = self._entries[name].heads.get(path)
            if found is not None:
                return found
        if not isinstance(head, ModulesToSaveWrapper):
            return _state(head)
        whole = head.modules_to_save
        return _state(whole[name] if name in whole else head.original_module)  # noqa: SIM401


def _run_each(base: nn.Module, state: Tensors, x: Tensor, kwargs: Mapping[str, Any]) -> Any:
    if len(x) == 1:  # any module can do that
        own = {name: tensor[0] for name, tensor in state.items()}
        made = with_tensors(base, own).forward(x[0], **kwargs)
        return tree_map(lambda tensor: tensor.unsqueeze(0), made)
    try:
        return vmap(lambda own, part: with_tensors(base, own).forward(part, **kwargs))(state, x)
    except RuntimeError as error:
        raise AdapterError(
            f"examples of different adapters cannot share a call of {type(base).__name__}, which "
            f"adapters have whole ({str(error).splitlines()[0]}); call the model for each alone"
        ) from None


def _join(indices: Sequence[Tensor], parts: Sequence[Tensor]) -> Tensor:
    """Parts of a batch in the order of its examples, as wide as the widest."""
    width = max(part.shape[-1] for part in parts)
    count = sum(len(index) for index in indices)
    joined = parts[0].new_full((count, *parts[0].shape[1:-1], width), -torch.inf)
    for index, part in zip(indices, parts, strict=True):
        joined[index, ..., : part.shape[-1]] = part
    return joined.flatten(0, 1)


def _state(module: nn.Module) -> Tensors:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _stack(states: Sequence[Tensors]) -> Tensors:
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def stacked_names(layout: Layout) -> list[str]:
    """The tensors of an adapter that a batch gathers: all but those of a tuned output layer, which
    are too large."""
    whole = {n for stack in layout.stacks if isinstance(stack, Whole) for n in stack.shapes}
    return [name for name in layout.shapes if name not in whole]


def fetch_from(modules: Mapping[str, Any]) -> Fetch:
    """The tensors of adapters that are modules."""

    def fetch(names: Sequence[str]) -> Tensors:
        layout: Layout = modules[names[0]].layout
        return {
            name: torch.stack([getattr(modules[adapter], name) for adapter in names])
            for name in stacked_names(layout)
        }

    return fetch

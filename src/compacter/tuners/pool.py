"""Any number of adapters beside one model, for batches whose examples have different ones.

The tensors of adapters that are alike are stacked, with the adapter as first dimension. So an
adapter costs its own numbers and no module, and a batch gathers what it needs at once."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch
from peft.utils import load_peft_weights
from peft.utils.other import ModulesToSaveWrapper
from torch import Tensor, nn

from compacter.errors import AdapterError
from compacter.models import base_modules, outer_modules
from compacter.nn import AdapterWeights, Layout
from compacter.tuners.config import AdapterConfig
from compacter.tuners.files import MODEL_PREFIX
from compacter.tuners.mixing import stacked_names
from compacter.tuners.names import check_adapter_name, parts_of_paths
from compacter.tuners.plan import check_shapes, embedding_tensors, saved_whole_roots

if TYPE_CHECKING:
    from compacter.tuners.tuner import Tuner

Tensors = Mapping[str, Tensor]
Heads = dict[str, dict[str, Tensor]]
"""Path of a module that an adapter has whole -> its tensors."""

NOT_SETTINGS = frozenset({"base_model_name_or_path", "revision", "inference_mode", "peft_version"})
"""Fields of a configuration in which adapters of the same settings can differ."""


class Stacks:
    """The tensors of alike adapters, with room for more. What is there is copied when it grows."""

    def __init__(self, layout: Layout, like: Tensor, capacity: int) -> None:
        self.layout = layout
        self.tensors = {
            name: like.new_empty(capacity, *layout.shapes[name]) for name in stacked_names(layout)
        }
        self.capacity, self.used, self.free = capacity, 0, list[int]()

    def take_slot(self) -> int:
        if self.free:
            return self.free.pop()
        if self.used == self.capacity:
            self.grow(2 * self.capacity)
        self.used += 1
        return self.used - 1

    def grow(self, capacity: int) -> None:
        for name, old in self.tensors.items():
            new = old.new_empty(capacity, *old.shape[1:])
            new[: self.used] = old[: self.used]
            self.tensors[name] = new
        self.capacity = capacity

    def write(self, slot: int, tensors: Tensors) -> None:
        for name, stacked in self.tensors.items():
            stacked[slot].copy_(tensors[name])

    def read(self, slots: Sequence[int]) -> dict[str, Tensor]:
        index = torch.tensor(slots, device=next(iter(self.tensors.values())).device)
        return {name: stacked.index_select(0, index) for name, stacked in self.tensors.items()}


@dataclass(frozen=True)
class Entry:
    """Where an adapter is, and what it has beside its stacked tensors."""

    config: AdapterConfig
    stacks: Stacks
    slot: int
    whole: dict[str, Tensor]
    heads: Heads


class AdapterPool:
    """Adapters that a model can use in batches, by their names in `adapter_names`.

    The model is a `PeftModel` with at least one adapter of this package; the pool's adapters are of
    the same kind of tuner, of any settings, with heads of any size. All methods can be called while
    other threads compute: a batch uses the adapters as they were when its call began.

        pool = compacter.AdapterPool(model)
        pool.put("rte", "runs/rte/adapter")
        model(**batch, adapter_names=["rte", "cola", "__base__"])

    Args:
        model: the model; it can have one pool.
        capacity: for how many adapters of the same settings there is room before the stacks grow,
            which they do by doubling.
    """

    def __init__(self, model: nn.Module, capacity: int = 16) -> None:
        self._tuner = tuner_of(model)
        if self._tuner.one_adapter_only:
            raise AdapterError(f"these adapters cannot be pooled: {self._tuner.one_adapter_only}")
        if self._tuner.adapters.pool is not None:
            raise AdapterError("the model has a pool already; a model can have one")
        if capacity < 1:
            raise AdapterError(f"capacity={capacity} does not fit; expected a number from 1")
        self._capacity = capacity
        self._entries: dict[str, Entry] = {}
        self._stacks: dict[Layout, Stacks] = {}
        self._fits: dict[str, _Fit] = {}
        self._parts = parts_of_paths(self._tuner.model)
        self.lock = RLock()
        self._tuner.adapters.pool = self

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter([*self._entries])

    def put(
        self,
        name: str,
        source: str | os.PathLike[str] | Tensors,
        config: AdapterConfig | None = None,
    ) -> None:
        """Add an adapter, or replace the one of that name.

        Args:
            name: by which batches call it.
            source: a folder or hub repository, or the tensors themselves, named as in a file.
            config: the configuration of an adapter that is given as tensors.

        Raises:
            AdapterError: if it does not fit the model; nothing is changed then.
        """
        self.put_all({name: source}, config)

    def put_all(
        self,
        sources: Mapping[str, str | os.PathLike[str] | Tensors],
        config: AdapterConfig | None = None,
    ) -> None:
        """As `put`, of many adapters. All are checked before the first is added."""
        checked = {name: self._check(name, source, config) for name, source in sources.items()}
        loaded = {
            name: source if isinstance(source, Mapping) else load_peft_weights(source, device="cpu")
            for name, source in sources.items()
        }
        for name, (found, fit) in checked.items():
            fit.check_embeddings(loaded[name], found.origin)
        for name, (found, fit) in checked.items():
            self._put(name, found, fit, loaded[name])

    def drop(self, name: str) -> None:
        """Remove an adapter. Batches that are being computed keep it until they end."""
        with self.lock:
            entry = self.entry(name)
            del self._entries[name]
            entry.stacks.free.append(entry.slot)
        self._tuner.peft_config.pop(name, None)

    def state_dict(self, name: str) -> dict[str, Tensor]:
        """A copy of an adapter's tensors, named as in a file."""
        with self.lock:
            entry = self.entry(name)
            own = {n: t[0] for n, t in entry.stacks.read([entry.slot]).items()} | entry.whole
        named = self._tuner.stored_names(entry.stacks.layout)
        heads = {
            f"{MODEL_PREFIX}{path}.{n}": t for path, h in entry.heads.items() for n, t in h.items()
        }
        return {named[n]: tensor for n, tensor in own.items()} | heads

    @property
    def nbytes(self) -> int:
        """Bytes of all adapters, without the room for more."""
        return sum(
            stacked[0].nbytes
            for entry in self._entries.values()
            for stacked in entry.stacks.tensors.values()
        ) + sum(
            tensor.nbytes
            for entry in self._entries.values()
            for part in (entry.whole, *entry.heads.values())
            for tensor in part.values()
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=RLock())

    # For the tuner and its batches

    def entry(self, name: str) -> Entry:
        if name not in self._entries:
            raise AdapterError(f"the pool has no adapter {name!r}")
        return self._entries[name]

    def weights(self, name: str) -> AdapterWeights:
        """An adapter as a module of its own, frozen."""
        with self.lock:
            entry = self.entry(name)
            tensors = {n: t[0] for n, t in entry.stacks.read([entry.slot]).items()}
        made = AdapterWeights(entry.stacks.layout, tensors | entry.whole)
        made.requires_grad_(False)
        return made

    def take_out(self, name: str) -> None:
        """Make an adapter one of the model's own, which PEFT can switch to, train and save."""
        tuner, config, heads = self._tuner, self.entry(name).config, self.entry(name).heads
        tuner.adapters.add(name, self.weights(name))
        for path, tensors in heads.items():
            wrapper = outer_modules(tuner.model)[path]
            if not isinstance(wrapper, ModulesToSaveWrapper):
                parent, _, child = path.rpartition(".")
                wrapper = ModulesToSaveWrapper(wrapper, name)
                setattr(base_modules(tuner.model)[parent], child, wrapper)
            wrapper.update(name)
            for key, tensor in tensors.items():
                inside, _, attribute = key.rpartition(".")
                holder = wrapper.modules_to_save[name].get_submodule(inside)
                is_parameter = isinstance(getattr(holder, attribute), nn.Parameter)
                own = nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor
                setattr(holder, attribute, own)
        self.drop(name)
        tuner.peft_config[name] = config

    def read(self, names: Sequence[str]) -> dict[str, Tensor]:
        """The tensors of adapters in the same stacks, stacked in this order."""
        entries = [self.entry(name) for name in names]
        return entries[0].stacks.read([entry.slot for entry in entries])

    def _check(
        self,
        name: str,
        source: str | os.PathLike[str] | Tensors,
        config: AdapterConfig | None,
    ) -> tuple[AdapterConfig, _Fit]:
        tuner = self._tuner
        if name in tuner.adapters.by_name:
            raise AdapterError(
                f"the model has an adapter called {name!r} already; choose another name, or "
                "delete_adapter() it first"
            )
        check_adapter_name(name, self._parts, tuner.prefix)
        config_cls = type(next(iter(tuner.peft_config.values())))
        if isinstance(source, Mapping):
            if not isinstance(config, config_cls):
                raise AdapterError(
                    f"config is a {type(config).__name__}; expected the {config_cls.__name__} of "
                    "the adapter that is given as tensors"
                )
            found = copy.copy(config)
            found.stored = {n: tuple(t.shape) for n, t in source.items()}
        else:
            found = config_cls.from_pretrained(os.fspath(source))
        if found.trainable_token_indices is not None:
            raise AdapterError(
                f"the adapter from {found.origin} trains single tokens (trainable_token_indices), "
                "which the adapters of a pool cannot do; load it with model.load_adapter"
            )
        found.inference_mode = True
        key = json.dumps(
            {k: v for k, v in found.to_dict().items() if k not in NOT_SETTINGS},
            sort_keys=True,
            default=str,
        )
        if key not in self._fits:
            self._fits[key] = _Fit(tuner, found)
        self._fits[key].check(found)
        return found, self._fits[key]

    def _put(self, name: str, config: AdapterConfig, fit: _Fit, tensors: Tensors) -> None:
        config.stored = None
        fit.wrap()
        like = self._tuner.adapters.like
        own = {n: tensors[stored] for n, stored in fit.names.items()}
        heads = {
            path: {n: tensors[f"{MODEL_PREFIX}{path}.{n}"].to(t) for n, t in head.items()}
            for path, head in fit.heads.items()
        }
        with self.lock:
            stacks = self._stacks.setdefault(fit.layout, Stacks(fit.layout, like, self._capacity))
            whole = {n: t.to(like) for n, t in own.items() if n not in stacks.tensors}
            old = self._entries.get(name)
            is_alike = old is not None and old.stacks is stacks
            slot = old.slot if old is not None and is_alike else stacks.take_slot()
            stacks.write(slot, own)
            self._entries[name] = Entry(config, stacks, slot, whole, heads)
            if old is not None and not is_alike:
                old.stacks.free.append(old.slot)
        self._tuner.peft_config[name] = config


class _Fit:
    """How adapters of the same settings fit the model; found once for all of them."""

    def __init__(self, tuner: Tuner, config: AdapterConfig) -> None:
        self.tuner = tuner
        modules = base_modules(tuner.model)
        self.heads = {
            path: dict(modules[path].state_dict())
            for path in saved_whole_roots(tuner.model, config.modules_to_save)
        }
        stored, config.stored = config.stored, None
        self.plan = tuner.plan(tuner.model, config)
        self.layout = tuner.check_stored(self.plan, tuner.model, config)
        config.stored = stored
        self.names = tuner.stored_names(self.layout)
        self.expected = tuner.stored_shapes(self.layout)
        self.embeddings = embedding_tensors(tuner.model)
        self.is_wrapped = False

    def check(self, config: AdapterConfig) -> None:
        """The file has the right tensors. Heads can have another number of labels."""
        assert config.stored is not None
        found = dict(config.stored)
        for path, head in self.heads.items():
            for name, tensor in head.items():
                stored = found.get(f"{MODEL_PREFIX}{path}.{name}")
                if stored is not None and stored[1:] == tuple(tensor.shape)[1:]:
                    found[f"{MODEL_PREFIX}{path}.{name}"] = tuple(tensor.shape)
        heads = {
            f"{MODEL_PREFIX}{path}.{name}": tuple(tensor.shape)
            for path, head in self.heads.items()
            for name, tensor in head.items()
        }
        embeddings = {name: tuple(tensor.shape) for name, tensor in self.embeddings.items()}
        check_shapes(self.expected | heads, found, config.origin, embeddings)

    def check_embeddings(self, tensors: Tensors, origin: str) -> None:
        """PEFT saves embeddings too where the vocabulary was resized; all adapters of a pool share
        the model's, unless they have them whole."""
        heads = tuple(f"{MODEL_PREFIX}{path}." for path in self.heads)
        for name in tensors.keys() & self.embeddings.keys():
            if name.startswith(heads):
                continue
            if not torch.equal(tensors[name].to(self.embeddings[name]), self.embeddings[name]):
                raise AdapterError(
                    f"the adapter from {origin} brings embeddings of its own, which the adapters "
                    "of a pool cannot have; load it with model.load_adapter"
                )

    def wrap(self) -> None:
        """Give the model a layer at each place that the adapters have."""
        if not self.is_wrapped:
            self.tuner.wrap_all(self.plan)
            self.is_wrapped = True


def tuner_of(model: nn.Module) -> Tuner:
    """The tuner of a model with adapters of this package."""
    from compacter.tuners.tuner import Tuner

    tuner = getattr(model, "base_model", None)
    if not isinstance(tuner, Tuner):
        raise AdapterError(
            f"adapters can be loaded beside others of this package; found a {type(model).__name__} "
            "without any: load the first with PeftModel.from_pretrained"
        )
    return tuner

"""The part of a PEFT tuner that the three tuners of this package share.

A tuner first makes a plan, a pure function of model and configuration: which module gets which
layer, and the shape of every tensor that will be saved. All errors are found while planning, so
that a model is either changed as planned or not at all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from peft import PeftConfig
from peft.tuners.tuners_utils import BaseTuner
from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper
from torch import Tensor, nn

from compacter.errors import AdapterError
from compacter.models import (
    base_modules,
    beside_the_text,
    count_loss_once,
    obstacle,
    output_layer,
)
from compacter.tuners.config import AdapterConfig
from compacter.tuners.files import MODEL_PREFIX, check_shapes, shapes_digest
from compacter.tuners.layers import OUTPUT_KINDS, SharedParameters, SwitchableLayer, TunerLayer
from compacter.tuners.names import check_adapter_name, parts_of_paths
from compacter.tuners.rows import BASE, Rows, batch_size, check_media, check_names, head_rows


@dataclass
class Plan:
    """What an adapter does to a model."""

    layers: dict[str, type[TunerLayer]] = field(default_factory=dict)
    """Module path -> the layer that wraps it."""
    own: dict[str, dict[str, tuple[int, ...]]] = field(default_factory=dict)
    """Module path -> name -> shape of the parameters that the layer at that path has."""
    shared: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Kind -> shape of the parameters that the layers share."""
    output: dict[str, nn.Module] = field(default_factory=dict)
    """Path -> module of the output layer, first, and of what is tied to it, if it is tuned."""

    def shapes(self, prefix: str) -> dict[str, tuple[int, ...]]:
        """Every tensor of the adapter, by its name in a saved file."""
        own = {
            f"{MODEL_PREFIX}{path}.{name}": shape
            for path, parameters in self.own.items()
            for name, shape in parameters.items()
        }
        shared = {
            f"{MODEL_PREFIX}{SharedParameters.NAME}.{prefix}{kind}": shape
            for kind, shape in self.shared.items()
        }
        return own | shared


class Tuner(BaseTuner):
    """Wraps the planned modules and puts the container for shared parameters at the root."""

    tuner_layer_cls = SwitchableLayer
    target_module_mapping: ClassVar[dict[str, list[str]]] = {}
    shared_kinds: ClassVar[tuple[str, ...]]
    output_layer_cls: ClassVar[type[TunerLayer]] = TunerLayer
    _mixing: tuple[str | None, list[str]] | None = None
    """What keeps rows from having different adapters, and places that images may pass; None: not
    looked for yet."""
    _flags: Sequence[tuple[nn.Parameter, bool]] = ()
    """Of modules trained whole, while adapters are disabled: what was trained before."""
    one_adapter_only: ClassVar[str] = ""
    """Why all rows of a batch must belong to one adapter, if they must."""

    @abstractmethod
    def plan(self, model: nn.Module, config: Any) -> Plan:
        """Which modules to wrap, and all shapes; raises if model and settings do not fit."""

    @abstractmethod
    def shared_parameters(self, config: Any, plan: Plan) -> dict[str, nn.Parameter]:
        """New shared parameters of an adapter, by kind, without those of the output layer."""

    def plan_output_layer(self, plan: Plan, model: nn.Module) -> None:
        plan.output = output_layer(model)
        head = next(iter(plan.output.values()))
        for name, kind in OUTPUT_KINDS.items():
            parameter = head._parameters.get(name)
            if parameter is not None:
                plan.shared[kind] = tuple(parameter.shape)
        for path in plan.output:
            plan.layers.setdefault(path, self.output_layer_cls)

    # What PEFT calls

    def inject_adapter(
        self, model: nn.Module, adapter_name: str, *args: Any, **kwargs: Any
    ) -> None:
        config: AdapterConfig = self.peft_config[adapter_name]
        try:
            check_adapter_name(adapter_name, parts_of_paths(model), self.prefix)
            self._plan = self.plan(model, config)
            self._check_fit(model, config)
            self.check_stored(self._plan, model, config)
        except ValueError:
            self.peft_config.pop(adapter_name)  # under transformers it is the model's own
            raise
        super().inject_adapter(model, adapter_name, *args, **kwargs)
        self.places = dict(_places(model))
        self._mixing = None
        count_loss_once(model)

    def _check_fit(self, model: nn.Module, config: AdapterConfig) -> None:
        """The planned layers can stand where they are planned, beside what is there already."""
        modules = dict(model.named_modules())
        shared = modules.get(SharedParameters.NAME)
        if isinstance(shared, SharedParameters) and shared.prefix != self.prefix:
            raise AdapterError(
                f"the model has adapters of another kind ({shared.prefix.rstrip('_')}), which "
                f"cannot be joined by one of {self.prefix.rstrip('_')}; unload() them first"
            )
        if isinstance(shared, SharedParameters) and shared.merged:
            raise AdapterError(
                f"the adapter {shared.merged_adapters[0]!r} is merged into the base model; call "
                "unmerge_adapter() before another one is added"
            )
        whole = saved_whole_paths(model, config)
        for path, layer_cls in self._plan.layers.items():
            found = modules.get(path)
            if found is None or isinstance(found, AuxiliaryTrainingWrapper):
                raise AdapterError(
                    f"{path} is, or lies in, a module that another adapter trains whole, so no "
                    "adapter can be put there; name the same modules_to_save, or use a model of "
                    "its own for each"
                )
            if path in whole:
                raise AdapterError(
                    f"{path} would be both adapted and trained whole; take it out of "
                    f"modules_to_save={config.modules_to_save}"
                )
            if isinstance(found, TunerLayer) and not isinstance(found, layer_cls):
                raise AdapterError(
                    f"{path} is a {type(found).__name__} for another adapter and cannot become a "
                    f"{layer_cls.__name__} too; use a model of its own for each"
                )
        wrapped = [path for path in whole if isinstance(modules.get(path), TunerLayer)]
        if wrapped:
            raise AdapterError(
                f"{wrapped[0]} is adapted by another adapter and cannot be trained whole; take it "
                f"out of modules_to_save={config.modules_to_save}"
            )

    def check_stored(self, plan: Plan, model: nn.Module, config: AdapterConfig) -> None:
        """An adapter that is being loaded is the one that its settings call for on this model."""
        expected = plan.shapes(self.prefix)
        digest = shapes_digest(expected)
        if config.stored is not None:
            check_shapes(expected | _saved_whole(model, config), config.stored, config.origin)
            config.__dict__.pop("stored")
        elif config.inference_mode and config.tensor_digest not in (None, digest):
            raise AdapterError(
                "the adapter does not fit this model: its tensors are not those that its settings "
                "call for here. Load it into the model it was trained on, or, for a new adapter "
                "with the same settings, set inference_mode=False"
            )
        config.tensor_digest = digest

    def _prepare_adapter_config(self, peft_config: PeftConfig, model_config: dict) -> PeftConfig:  # type: ignore[type-arg]
        return peft_config

    def _check_target_module_exists(self, peft_config: PeftConfig, key: str) -> bool:
        return key in self._plan.layers

    def _create_and_replace(
        self,
        peft_config: PeftConfig,
        adapter_name: str,
        target: nn.Module,
        target_name: str,
        parent: nn.Module,
        current_key: str,
        parameter_name: str | None = None,
    ) -> None:
        shared = self._container(target)
        if adapter_name not in shared.adapters:
            shared.add(adapter_name, self._new_shared_parameters(peft_config))
        layer_cls = self._plan.layers[current_key]
        layer = target if isinstance(target, TunerLayer) else layer_cls(target, shared)
        if current_key in self._plan.own:
            layer.add_adapter(adapter_name, peft_config)
            layer._move_adapter_to_device_of_base_layer(adapter_name)
        if current_key in self._plan.output:
            layer.use_output_weights(owner=current_key == next(iter(self._plan.output)))
        if layer is not target:
            self._replace_module(parent, target_name, layer, target)

    def _replace_module(
        self, parent: nn.Module, child_name: str, new_module: nn.Module, child: nn.Module
    ) -> None:
        """A parent may be wrapped itself, by a layer that looks like the module it wraps."""
        owner = parent.base_layer if isinstance(parent, TunerLayer) else parent
        setattr(owner, child_name, new_module)

    @contextmanager
    def _enable_peft_forward_hooks(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Where PEFT asks a tuner for a batch whose rows belong to different adapters."""
        names = kwargs.get("adapter_names")
        if names is None:
            shared = getattr(self.model, SharedParameters.NAME)
            with nullcontext() if torch.compiler.is_compiling() else shared.one_call():
                yield
            return
        shared = self._check_rows()
        batch = batch_size(args, kwargs)
        names = check_names(names, self.peft_config, batch)
        if shared.disable_adapters:
            with shared.one_call():
                yield
            return
        assert self._mixing is not None
        if self._mixing[1]:
            check_media(getattr(self.model, "config", None), args, kwargs)
        rows = Rows(names, {n: self._alike(n) for n in names if n != BASE})
        hooks = [
            head.register_forward_hook(partial(_mix_head, shared, rows), with_kwargs=True)
            for head in self.places.values()
            if isinstance(head, ModulesToSaveWrapper)
        ]
        if batch is None:
            check = partial(_check_batch, shared, rows)
            hooks.append(self.model.register_forward_pre_hook(check, with_kwargs=True))
        try:
            with shared.one_call(rows):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _check_rows(self) -> SharedParameters:
        """Rows of one batch can belong to different adapters now."""
        if self.one_adapter_only:
            raise AdapterError(f"adapter_names were given, but {self.one_adapter_only}")
        if self.training:
            raise AdapterError(
                "adapter_names were given in training mode; rows of different adapters are for "
                "inference: call model.eval() first, or train one adapter at a time"
            )
        shared: SharedParameters = getattr(self.model, SharedParameters.NAME)
        if shared.merged:
            raise AdapterError(
                f"adapter_names were given, but the adapter {shared.merged_adapters[0]!r} is "
                "merged into the base model, for all rows; call unmerge_adapter() first"
            )
        if self._mixing is None:
            places = [path for path in self.places if path != SharedParameters.NAME]
            self._mixing = obstacle(self.model, places), beside_the_text(self.model, places)
        if self._mixing[0] is not None:
            raise AdapterError(
                f"adapter_names were given, but {self._mixing[0]}, where rows of different "
                "adapters cannot be told apart: call the model for each adapter alone"
            )
        return shared

    def _alike(self, adapter: str) -> Hashable:
        """Equal for adapters whose rows can be computed together."""
        config = self.peft_config[adapter]
        return config.tensor_digest, getattr(config, "activation", None)

    def delete_adapter(self, adapter_name: str) -> None:
        """As PEFT's, where each layer picks the next active adapter among its own; layers need
        not all have the same adapters here (dropped layers), so one is picked for all."""
        was_active = adapter_name in self.active_adapters
        super().delete_adapter(adapter_name)
        if was_active and self.peft_config:
            successor = min(self.peft_config)
            frozen = self.peft_config[successor].inference_mode
            self.set_adapter(successor, inference_mode=frozen)

    def _enable_adapter_layers(self, enabled: bool = True) -> None:
        """As PEFT's, which however makes frozen modules that were saved whole trainable."""
        whole = [m for m in self.model.modules() if isinstance(m, AuxiliaryTrainingWrapper)]
        shared: SharedParameters | None = getattr(self.model, SharedParameters.NAME, None)
        if not enabled and (shared is None or not shared.disable_adapters):
            self._flags = [(p, p.requires_grad) for m in whole for p in m.parameters()]
        super()._enable_adapter_layers(enabled)
        if enabled:
            for parameter, flag in self._flags:
                parameter.requires_grad_(flag)
            self._flags = []

    def set_adapter(self, *args: Any, **kwargs: Any) -> None:
        """As PEFT's, which decides anew what is trained."""
        super().set_adapter(*args, **kwargs)
        self._flags = []

    @abstractmethod
    def check_mergeable(self, adapter: str) -> None:
        """Raise if the adapter cannot be added to the weights of the base model."""

    def merge_adapter(
        self, adapter_names: list[str] | None = None, safe_merge: bool = False
    ) -> None:
        adapter = self._to_merge(adapter_names, safe_merge)
        super().merge_adapter(adapter_names=[adapter])

    def _check_merge_allowed(self) -> None:
        """Was checked for the adapter that is merged."""

    def _to_merge(self, adapter_names: list[str] | None, safe_merge: bool) -> str:
        """The one adapter to merge, after all checks."""
        names = adapter_names or self.active_adapters
        if len(names) != 1 or names[0] not in self.peft_config:
            raise AdapterError(
                f"adapters to merge: found {list(names)}, expected one of {list(self.peft_config)}"
            )
        self.check_mergeable(names[0])
        merged = getattr(self.model, SharedParameters.NAME).merged_adapters
        if merged not in ([], names):
            raise AdapterError(
                f"the adapter {merged[0]!r} is merged already; call unmerge_adapter() first"
            )
        if safe_merge:
            for name, parameter in self.model.named_parameters():
                own = f".{self.prefix}" in name and names[0] in name.split(".")
                if own and not parameter.isfinite().all():
                    raise AdapterError(f"{name} is not finite everywhere; nothing was merged")
        return names[0]

    def _unload_and_optionally_merge(
        self,
        merge: bool = True,
        progressbar: bool = False,
        safe_merge: bool = False,
        adapter_names: list[str] | None = None,
    ) -> nn.Module:
        adapter = self._to_merge(adapter_names, safe_merge) if merge else None
        names = [name for name, m in self.model.named_modules() if isinstance(m, TunerLayer)]
        for name in reversed(names):  # a layer inside another one is out of PEFT's sight
            layer = self.model.get_submodule(name)
            assert isinstance(layer, TunerLayer)
            if adapter is not None:
                layer.merge(adapter_names=[adapter])
            else:
                layer.unmerge()
            parent, _, child = name.rpartition(".")
            self._replace_module(self.model.get_submodule(parent), child, layer.base_layer, layer)
        if hasattr(self.model, SharedParameters.NAME):
            delattr(self.model, SharedParameters.NAME)
        result: nn.Module = super()._unload_and_optionally_merge(merge=False)  # other wrappers
        return result

    @classmethod
    def _remap_adapter_state_dict_for_load(
        cls, model: nn.Module, config: PeftConfig, adapter_name: str, state_dict: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """As PEFT's, which loads what fits and warns of the rest; an adapter is whole or refused,
        and nothing of it is copied before that is known."""
        remapped: dict[str, Tensor] = super()._remap_adapter_state_dict_for_load(
            model, config, adapter_name, state_dict
        )
        own = {
            name: tuple(tensor.shape)
            for name, tensor in model.state_dict().items()
            if f".{cls.prefix}" in name and adapter_name in name.split(".")
        }
        found = {n: tuple(t.shape) for n, t in remapped.items() if f".{cls.prefix}" in n}
        check_shapes(own, found, "the given tensors")
        return remapped

    def _container(self, anchor: nn.Module) -> SharedParameters:
        shared = getattr(self.model, SharedParameters.NAME, None)
        if shared is None:
            base = anchor.get_base_layer() if isinstance(anchor, TunerLayer) else anchor
            shared = SharedParameters(self.prefix, self.shared_kinds, base)
            self.model.add_module(SharedParameters.NAME, shared)
        assert isinstance(shared, SharedParameters)
        return shared

    def _new_shared_parameters(self, config: PeftConfig) -> dict[str, nn.Parameter]:
        parameters = self.shared_parameters(config, self._plan)
        if self._plan.output:
            head = next(iter(self._plan.output.values()))
            for name, kind in OUTPUT_KINDS.items():
                if kind in self._plan.shared:
                    parameters[kind] = nn.Parameter(getattr(head, name).detach().clone())
        return parameters


def _places(
    module: nn.Module, path: str = ""
) -> Iterator[tuple[str, SwitchableLayer | ModulesToSaveWrapper]]:
    """Path -> layer or module trained whole, without a look at the adapters in them, which are
    many more."""
    for name, child in module.named_children():
        place = f"{path}.{name}" if path else name
        if isinstance(child, SwitchableLayer | ModulesToSaveWrapper):
            yield place, child
        if isinstance(child, TunerLayer):
            yield from _places(child.base_layer, f"{place}.base_layer")
        elif not isinstance(child, SwitchableLayer | ModulesToSaveWrapper):
            yield from _places(child, place)


def _mix_head(shared: SharedParameters, rows: Rows, head: ModulesToSaveWrapper, *given: Any) -> Any:
    """The head's output, given arguments, keywords and the output that it would have. A hook is
    called by other threads too, and while it is added or removed without the keywords."""
    if shared.here.rows is not rows:
        return None
    args, kwargs, _ = given
    return head_rows(rows, head, *args, **kwargs)


def _check_batch(shared: SharedParameters, rows: Rows, model: nn.Module, *given: Any) -> None:
    """PEFT's models for some tasks keep the batch to themselves; it is seen when it arrives."""
    if shared.here.rows is rows:
        check_names(rows.names, dict.fromkeys(rows.names), batch_size(*given))


def meta_shapes(module: nn.Module, name: str) -> dict[str, tuple[int, ...]]:
    """Name -> shape of a module's parameters, as saved under the attribute `name`."""
    return {f"{name}.{key}": tuple(tensor.shape) for key, tensor in module.state_dict().items()}


def saved_whole_paths(model: nn.Module, config: AdapterConfig) -> set[str]:
    """Paths of all modules that PEFT trains and saves whole, and of everything inside them. PEFT
    takes every module whose path ends with one of the names, as "pre_classifier" does with
    "classifier"."""
    if not config.modules_to_save:
        return set()
    names = tuple(config.modules_to_save)
    paths = list(base_modules(model))
    roots = [path for path in paths if path.endswith(names)]
    return {path for path in paths if any(f"{path}.".startswith(f"{root}.") for root in roots)}


def _saved_whole(model: nn.Module, config: AdapterConfig) -> dict[str, tuple[int, ...]]:
    """The expected shapes of stored tensors that belong to modules saved whole (heads)."""
    paths = saved_whole_paths(model, config)
    modules = base_modules(model) if paths else {}
    return {
        f"{MODEL_PREFIX}{path}.{name}": tuple(tensor.shape)
        for path in paths
        for name, tensor in modules[path].state_dict().items()
    }

"""The part of a PEFT tuner that the three tuners of this package share.

A tuner first makes a plan, a pure function of model and configuration. All errors are found while
planning, so that a model is either changed as planned or not at all."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from peft import PeftConfig
from peft.tuners.tuners_utils import BaseTuner, _ExcludedModule
from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper
from torch import Tensor, nn

from compacter.errors import AdapterError
from compacter.models import (
    Target,
    bare_model,
    base_modules,
    check_trained_whole,
    count_loss_once,
    linear_targets,
    named_targets,
    obstacle,
    outer_modules,
    trainable_output_layer,
)
from compacter.nn import SLOW, AdapterWeights, Layout, slow_weights
from compacter.tuners.config import AdapterConfig
from compacter.tuners.files import MODEL_PREFIX
from compacter.tuners.layers import OUTPUT_NAMES, Adapters, SwitchableLayer, TunerLayer
from compacter.tuners.mixed_call import mixed_call
from compacter.tuners.names import check_adapter_name, parts_of_paths
from compacter.tuners.plan import (
    Plan,
    check_shapes,
    embedding_tensors,
    head_tensors,
    in_stored_order,
    places_of,
    saved_whole_paths,
    shapes_of,
    without_tokens,
)

if TYPE_CHECKING:
    pass

TASKS_WITH_HEADS = ("TOKEN_CLS", "QUESTION_ANS")
PEFTS_HEADS = ("classifier", "score", "qa_outputs")
ALL_LINEAR = "all-linear"
"""What PEFT takes for `target_modules` to mean every linear layer but the output layer."""


class Tuner(BaseTuner):
    """Wraps the planned modules and puts the container of all adapters at the root."""

    tuner_layer_cls = SwitchableLayer
    target_module_mapping: ClassVar[dict[str, list[str]]] = {}
    output_layer_cls: ClassVar[type[TunerLayer]] = TunerLayer
    _flags: Sequence[tuple[nn.Parameter, bool]] = ()
    """Of modules trained whole, while adapters are disabled: what was trained before."""
    one_adapter_only: ClassVar[str] = ""
    """Why all examples of a batch must have one adapter, if they must."""
    _obstacle: tuple[str | None] | None = None
    """What keeps examples from having different adapters; None: not looked for yet."""
    _wrappers: dict[str, nn.Module] | None = None

    @abstractmethod
    def plan(self, model: nn.Module, config: Any) -> Plan:
        """Which modules to wrap, and all shapes; raises if model and settings do not fit."""

    @property
    def adapters(self) -> Adapters:
        """The container of all adapters."""
        found: Adapters = getattr(bare_model(self.model), Adapters.NAME)
        return found

    def targets(
        self, model: nn.Module, config: AdapterConfig, found: Sequence[Target]
    ) -> list[Target]:
        """The targets among those found, or those that the configuration names by hand, without
        those that it excludes."""
        if config.target_modules == ALL_LINEAR:  # what it stands for is kept in the configuration
            config.target_modules = [target.path for target in linear_targets(model)]
        if config.target_modules is not None:
            whole = saved_whole_paths(model, config.modules_to_save)
            named = named_targets(model, config.target_modules)
            found = [target for target in named if target.path not in whole]
        kept = [target for target in found if config.includes(target.path, target.index)]
        if not kept:
            raise AdapterError(
                f"no module is left to adapt: exclude_modules={config.exclude_modules}, "
                f"layers_to_transform={config.layers_to_transform} and modules_to_save="
                f"{config.modules_to_save} leave out all {len(found)} that were found"
            )
        return kept

    def plan_output_layer(self, plan: Plan, model: nn.Module) -> None:
        plan.output = trainable_output_layer(model)
        path, head = next(iter(plan.output.items()))
        for name, tensor in OUTPUT_NAMES.items():
            parameter = head._parameters.get(name)
            if parameter is not None:
                plan.whole[tensor] = tuple(parameter.shape), (path, name)
        for path in plan.output:
            plan.layers.setdefault(path, self.output_layer_cls)

    # Adding an adapter

    def inject_adapter(
        self,
        model: nn.Module,
        adapter_name: str,
        autocast_adapter_dtype: bool = True,
        low_cpu_mem_usage: bool = False,
        state_dict: dict[str, Tensor] | None = None,
    ) -> None:
        """As PEFT's, after all checks. The plan needs no `state_dict` to find its targets."""
        config: AdapterConfig = self.peft_config[adapter_name]
        if config.modules_to_save is None:  # PEFT names heads for some tasks only after injection
            heads = [name for name, _ in model.named_children() if name in PEFTS_HEADS]
            config.modules_to_save = heads if config.task_type in TASKS_WITH_HEADS else None
        try:
            check_adapter_name(adapter_name, parts_of_paths(model), self.prefix)
            plan = self.plan(model, config)
            self._check_fit(model, config, plan)
            self._layout = self.check_stored(plan, model, config)
        except ValueError:
            self.peft_config.pop(adapter_name)  # under transformers it is the model's own
            raise
        self._plan = plan
        super().inject_adapter(model, adapter_name, autocast_adapter_dtype, low_cpu_mem_usage)
        self.wrap_all(plan)  # also modules inside of wrapped ones, which PEFT leaves out
        count_loss_once(model)

    def _check_fit(self, model: nn.Module, config: AdapterConfig, plan: Plan) -> None:
        """The planned layers can stand where they are planned, beside what is there already."""
        modules = outer_modules(model)
        container = bare_model(model)._modules.get(Adapters.NAME)
        if container is not None and not isinstance(container, Adapters):
            raise AdapterError(
                f"the model has a module called {Adapters.NAME!r}, the name under which adapters "
                "are kept; rename it"
            )
        if container is not None and container.prefix != self.prefix:
            raise AdapterError(
                f"the model has adapters of another kind ({container.prefix.rstrip('_')}), which "
                f"cannot be joined by one of {self.prefix.rstrip('_')}; unload() them first"
            )
        if container is not None and container.merged:
            raise AdapterError(
                f"the adapter {container.merged_adapters[0]!r} is merged into the base model; call "
                "unmerge_adapter() before another one is added"
            )
        whole = saved_whole_paths(model, config.modules_to_save)
        check_trained_whole(model, whole)
        for path, layer_cls in plan.layers.items():
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

    def check_stored(self, plan: Plan, model: nn.Module, config: AdapterConfig) -> Layout:
        """The layout of the adapter. One that is being loaded must be the one that its settings
        call for on this model."""
        layout = plan.layout
        is_loaded = config.stored is not None
        if config.places is not None and (is_loaded or config.inference_mode):
            layout = in_stored_order(plan, config.places, config.origin)
        if config.stored is not None:
            heads = shapes_of(head_tensors(model, config.modules_to_save))
            embeddings = shapes_of(embedding_tensors(model))
            expected = self.stored_shapes(layout) | heads
            check_shapes(expected, without_tokens(config), config.origin, embeddings)
            config.stored = None
        config.places = places_of(plan, layout)
        return layout

    def stored_names(self, layout: Layout) -> dict[str, str]:
        """Name of a tensor -> its name in a saved file."""
        inside = f"{MODEL_PREFIX}{Adapters.NAME}.{self.prefix}weights"
        return {name: f"{inside}.{name}" for name in layout.shapes}

    def stored_shapes(self, layout: Layout) -> dict[str, tuple[int, ...]]:
        """Name of a tensor in a saved file -> shape."""
        names = self.stored_names(layout)
        return {names[name]: shape for name, shape in layout.shapes.items()}

    def _prepare_adapter_config(self, peft_config: PeftConfig, model_config: dict) -> PeftConfig:  # type: ignore[type-arg]
        return peft_config

    def _check_target_module_exists(self, peft_config: PeftConfig, key: str) -> Any:
        path = key.removeprefix("_orig_mod.")
        return path in self._plan.layers or (peft_config.excludes(path) and _ExcludedModule())

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
        adapters = self._container(target)
        if adapter_name not in adapters.by_name:
            adapters.add_new(adapter_name, self._new_weights(peft_config))
        self._wrap(self._plan, current_key.removeprefix("_orig_mod."), target, target_name, parent)

    def _wrap(self, plan: Plan, path: str, target: nn.Module, name: str, parent: nn.Module) -> None:
        """Put the planned layer around a module, unless there is one."""
        layer = target
        if not isinstance(target, TunerLayer):
            layer = plan.layers[path](target, self.adapters, path)
            self._replace_module(parent, name, layer, target)
        assert isinstance(layer, TunerLayer)
        if path in plan.output:
            layer.use_output_weights(owner=path == next(iter(plan.output)))

    def wrap_all(self, plan: Plan) -> None:
        """Put the planned layers wherever there are none yet."""
        outer, bases = outer_modules(self.model), base_modules(self.model)
        for path in plan.layers:
            parent, _, name = path.rpartition(".")
            self._wrap(plan, path, outer[path], name, bases[parent])
        self._obstacle = self._wrappers = None

    def _replace_module(
        self, parent: nn.Module, child_name: str, new_module: nn.Module, child: nn.Module
    ) -> None:
        """A parent may be wrapped itself, by a layer that looks like the module it wraps."""
        owner = parent.base_layer if isinstance(parent, TunerLayer) else parent
        setattr(owner, child_name, new_module)

    def _container(self, anchor: nn.Module) -> Adapters:
        root = bare_model(self.model)
        if not hasattr(root, Adapters.NAME):
            base = anchor.get_base_layer() if isinstance(anchor, TunerLayer) else anchor
            root.add_module(Adapters.NAME, Adapters(self.prefix, base))
        return self.adapters

    def _new_weights(self, config: Any) -> AdapterWeights:
        bases, layout = base_modules(self.model), self._layout
        tensors: dict[str, Tensor] = {}
        if layout.n is not None:
            tensors[SLOW] = slow_weights(layout.n, config.initial_A_std)
        for stack, names in layout.names():
            initial = stack.initial(bases)
            tensors |= {names[local]: tensor for local, tensor in initial.items()}
        return AdapterWeights(layout, tensors)

    @classmethod
    def _get_adapter_state_dict(
        cls, model: Any, config: PeftConfig, adapter_name: str, **kwargs: Any
    ) -> dict[str, Tensor]:
        """As PEFT's, also of an adapter in the pool."""
        adapters = getattr(bare_model(model), Adapters.NAME, None)
        if adapters is not None and adapters.pool is not None and adapter_name in adapters.pool:
            return cast(dict[str, Tensor], adapters.pool.state_dict(adapter_name))
        return super()._get_adapter_state_dict(  # type: ignore[no-any-return]
            model=model, config=config, adapter_name=adapter_name, **kwargs
        )

    @classmethod
    def _remap_adapter_state_dict_for_load(
        cls, model: nn.Module, config: PeftConfig, adapter_name: str, state_dict: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """As PEFT's, which loads what fits and warns of the rest; an adapter is whole or refused,
        and nothing of it is copied before that is known."""
        remapped: dict[str, Tensor] = super()._remap_adapter_state_dict_for_load(
            model, config, adapter_name, state_dict
        )
        mark = f".{cls.prefix}weights.{adapter_name}."
        own = {n: tuple(t.shape) for n, t in model.state_dict().items() if mark in f".{n}"}
        found = {n: tuple(t.shape) for n, t in remapped.items() if f".{cls.prefix}" in f".{n}"}
        check_shapes(own, found, "the given tensors")
        return remapped

    # Calling the model

    def heads(self, paths: set[str]) -> dict[str, nn.Module]:
        """Modules that adapters have whole: those that PEFT wraps, and those at these paths."""
        wrapped = {p: m for p, m in self._wrapped().items() if isinstance(m, ModulesToSaveWrapper)}
        return wrapped | {path: self.model.get_submodule(path) for path in paths - wrapped.keys()}

    def mixing_obstacle(self) -> str | None:
        """Why examples cannot have different adapters in this model, if so."""
        if self._obstacle is None:
            self._obstacle = (obstacle(self.model, [*self._wrapped()]),)
        return self._obstacle[0]

    def _wrapped(self) -> dict[str, nn.Module]:
        """Path -> wrapper of a module that is adapted or that adapters have whole."""
        if self._wrappers is None:
            self._wrappers = {
                path: module
                for path, module in outer_modules(self.model).items()
                if isinstance(module, TunerLayer | ModulesToSaveWrapper)
            }
        return self._wrappers

    @contextmanager
    def _enable_peft_forward_hooks(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Where PEFT asks a tuner for a batch whose examples have different adapters."""
        names = kwargs.get("adapter_names")
        if names is not None:
            call: AbstractContextManager[None] = mixed_call(self, names, args, kwargs)
        elif torch.compiler.is_compiling():
            call = nullcontext()
        else:  # perhaps inside of another call, of a batch of several adapters
            call = self.adapters.computing(None)
        with call:
            yield

    # Switching and deleting

    def set_adapter(self, adapter_name: str | list[str], inference_mode: bool = False) -> None:
        """As PEFT's, which decides anew what is trained. An adapter of the pool leaves it."""
        for name in [adapter_name] if isinstance(adapter_name, str) else adapter_name:
            if self.adapters.pool is not None and name in self.adapters.pool:
                self.adapters.pool.take_out(name)
                self._wrappers = None
        super().set_adapter(adapter_name, inference_mode=inference_mode)
        self._flags = []

    def delete_adapter(self, adapter_name: str) -> None:
        """As PEFT's, where each layer picks the next active adapter among its own; here one is
        picked for all."""
        if self.adapters.pool is not None and adapter_name in self.adapters.pool:
            self.adapters.pool.drop(adapter_name)
            return
        was_active = adapter_name in self.active_adapters
        super().delete_adapter(adapter_name)
        if was_active and self.adapters.by_name:
            successor = min(self.adapters.by_name)
            frozen = self.peft_config[successor].inference_mode
            self.set_adapter(successor, inference_mode=frozen)

    def _enable_adapter_layers(self, enabled: bool = True) -> None:
        """As PEFT's, which however makes frozen modules that were saved whole trainable."""
        whole = [m for m in self.model.modules() if isinstance(m, AuxiliaryTrainingWrapper)]
        container: Adapters | None = getattr(bare_model(self.model), Adapters.NAME, None)
        if not enabled and (container is None or not container.disable_adapters):
            self._flags = [(p, p.requires_grad) for m in whole for p in m.parameters()]
        super()._enable_adapter_layers(enabled)
        if enabled:
            for parameter, flag in self._flags:
                parameter.requires_grad_(flag)
            self._flags = []

    # Merging and unloading

    @abstractmethod
    def check_mergeable(self, adapter: str) -> None:
        """Raise if the adapter cannot be added to the weights of the base model."""

    def merge_adapter(
        self, adapter_names: list[str] | None = None, safe_merge: bool = False
    ) -> None:
        adapter = self._to_merge(adapter_names, safe_merge)
        if self.adapters.merged:
            warnings.warn("All adapters are already merged, nothing to do.", stacklevel=2)
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
        merged = self.adapters.merged_adapters
        if merged not in ([], names):
            raise AdapterError(
                f"the adapter {merged[0]!r} is merged already; call unmerge_adapter() first"
            )
        if safe_merge:
            for name, parameter in self.adapters.by_name[names[0]].named_parameters():
                if not parameter.isfinite().all():
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
        if hasattr(bare_model(self.model), Adapters.NAME):
            delattr(bare_model(self.model), Adapters.NAME)
        result: nn.Module = super()._unload_and_optionally_merge(merge=False)  # other wrappers
        return result

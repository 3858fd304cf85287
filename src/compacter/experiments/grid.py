"""Grids: axes over the keys of a recipe become recipes.

    model: t5-base
    axes:
      method: [full, compacter]
      max_train_samples: [100, 500]
      learning_rate: {full: [3e-4], compacter: [3e-4, 3e-3]}   # depends on the method
      epochs: {100: 50, 500: 10}                               # depends on max_train_samples

Which key an axis depends on follows from the keys of its mapping; `by` names it where they are
values of several.

Where `axes` is a list of such blocks, a grid is all of theirs, each around the same values:

    learning_rate: 3e-3
    axes:
      - method: [full, compacter]
      - {method: [compacter], learning_rate: [1e-3, 1e-2]}     # in place of 3e-3

Reading and checking a grid imports no torch; making its recipes does."""

from __future__ import annotations

import difflib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from compacter.errors import ExperimentError
from compacter.methods import METHODS, find_method
from compacter.tasks import find_task
from compacter.training.recipe import Recipe, find_file, read_recipe, ready_files

AXES = "axes"
OTHERS = "others"
"""In an axis that depends on another one: the values for whatever is not listed."""
BY = "by"
"""In an axis that depends on another one: the name of that one."""

SUBJECTS = ("task", "method")
"""What a block of axes is about."""

NO_ROWS = "no run is left: every training size is above what its task has"

Values = tuple[Any, ...]


@dataclass(frozen=True)
class Dependent:
    """Values that depend on the value of another key."""

    on: str
    table: Mapping[Any, Values]

    def lists(self, found: Any) -> bool:
        return isinstance(found, Hashable) and found in self.table

    def values(self, name: str, found: Any) -> Values:
        if self.lists(found):
            return self.table[found]
        if OTHERS in self.table:
            return self.table[OTHERS]
        raise ExperimentError(
            f"axis {name!r} has no values for {self.on}={found!r}; it has some for "
            f"{_list(self.table)}; add {found!r} or {OTHERS!r}, or set {name} to one value"
        )


@dataclass(frozen=True)
class Block:
    """Keys with one value, and axes with several."""

    base: Mapping[str, Any]
    axes: Mapping[str, Values | Dependent]

    @classmethod
    def make(cls, base: Mapping[str, Any], axes: Any) -> Block:
        if not isinstance(axes, Mapping):
            raise ExperimentError(
                f"{AXES} holds {axes!r}; expected lines of 'key: [values]', or a list of blocks "
                "of such lines"
            )
        for name in axes:
            _check_key(name)
        plain = {
            name: _checked(name, found, found)
            for name, found in axes.items()
            if not isinstance(found, Mapping)
        }
        made: dict[str, Values | Dependent] = {}
        for name, found in axes.items():
            made[name] = plain[name] if name in plain else _dependent(name, found, base, axes)
        block = cls(base, made)
        block._ordered()
        return block

    def with_values(self, given: Mapping[str, Any]) -> Block:
        axes = {name: found for name, found in self.axes.items() if name not in given}
        return replace(self, base={**self.base, **given}, axes=axes)

    def with_axes(self, axes: Mapping[str, Values]) -> Block:
        base = {key: value for key, value in self.base.items() if key not in axes}
        return replace(self, base=base, axes={**self.axes, **axes})

    def plain_axes(self) -> dict[str, Any]:
        """What `make` would read: the same recipes in the same order. Of an axis that depends on
        another one only what can still occur is left, as `make` wants keys that do."""
        axes: dict[str, Any] = {}
        for name in self._ordered():
            axis = self.axes[name]
            if isinstance(axis, Dependent):
                cases = self._cases(name, axis)
                lists = {key: list(values) for key, values in cases.items()}
                axes[name] = (
                    {BY: axis.on, **lists} if len(cases) > 1 else next(iter(lists.values()))
                )
            else:
                axes[name] = list(axis)
        return axes

    def check(self) -> list[Recipe]:
        """All combinations as they are given."""
        found = []
        for values in self._combinations(dict(self.base), self._ordered()):
            recipe = Recipe.make(values)
            _check_names(recipe)
            if "max_train_samples" not in self.axes or _has_rows(recipe):
                found.append(recipe)
        return found

    def _combinations(
        self, values: dict[str, Any], names: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        if not names:
            yield values
            return
        name, rest = names[0], names[1:]
        axis = self.axes[name]
        if isinstance(axis, Dependent):
            axis = axis.values(name, values.get(axis.on, Recipe.model_fields[axis.on].default))
        for value in axis:
            yield from self._combinations({**values, name: value}, rest)

    def _cases(self, name: str, axis: Dependent) -> dict[Any, Values]:
        """The part of a dependent axis that this grid comes to."""
        cases = {}
        for found in self.possible(axis.on):
            cases[found if axis.lists(found) else OTHERS] = axis.values(name, found)
        return cases

    def possible(self, name: str) -> Values:
        """The values that a key takes."""
        axis = self.axes.get(name)
        if axis is None:
            return (self.base.get(name, Recipe.model_fields[name].default),)
        if isinstance(axis, Dependent):
            return tuple(value for part in self._cases(name, axis).values() for value in part)
        return axis

    def _ordered(self) -> list[str]:
        """The axes in their order, each after the one that it depends on."""
        ordered: list[str] = []
        left = list(self.axes)
        while left:
            for name in left:
                axis = self.axes[name]
                if not isinstance(axis, Dependent) or axis.on not in left:
                    break
            else:
                raise ExperimentError(f"the axes {_list(left)} depend on each other in a circle")
            ordered.append(name)
            left.remove(name)
        return ordered


@dataclass(frozen=True)
class Grid:
    """Blocks, of which the runs are all that one of them has."""

    blocks: tuple[Block, ...]

    @classmethod
    def make(cls, values: Mapping[str, Any]) -> Grid:
        """A grid from plain values."""
        base = {key: value for key, value in values.items() if key != AXES}
        Recipe.make(base)
        axes = values.get(AXES, {})
        if not isinstance(axes, list):
            twice = [name for name in _keys(axes) if name in base]
            if twice:
                raise ExperimentError(
                    f"{twice[0]!r} has one value and is an axis too; expected it in one of the "
                    "places"
                )
            return cls((Block.make(base, axes),))
        return cls(
            tuple(
                Block.make({k: v for k, v in base.items() if k not in _keys(block)}, block)
                for block in axes
            )
        )

    @classmethod
    def read(cls, grid: str | Path | None) -> Grid:
        """A grid from a YAML file, or one that the package brings; None is an empty one."""
        if grid is None:
            return cls.make({})
        return cls.make(read_recipe(find_file(grid, ready_grids(), "grid"), "grid"))

    def with_values(self, given: Mapping[str, Any]) -> Grid:
        """One value for each of these keys, whether or not it was an axis."""
        Recipe.make(dict(given))
        return Grid(tuple(block.with_values(given) for block in self.blocks))

    def with_axes(self, axes: Mapping[str, Sequence[Any]]) -> Grid:
        """These axes in place of those of the same name, or of one value. Of several blocks, each
        is about certain tasks and methods: it keeps those that it has, and goes if it has none."""
        grid = self
        for name, found in axes.items():
            grid = grid._with_axis(name, _checked(name, found, found))
        return grid

    def _with_axis(self, name: str, values: Values) -> Grid:
        own = [tuple(v for v in values if v in block.possible(name)) for block in self.blocks]
        known = [value for kept in own for value in kept]
        if name not in SUBJECTS or len(self.blocks) == 1 or not known:
            own = [values] * len(self.blocks)
        elif unknown := [value for value in values if value not in known]:
            raise ExperimentError(
                f"{name}={unknown[0]!r} is in no block of the grid, unlike {known[0]!r}; expected "
                "values that the blocks have, or only others"
            )
        parts = zip(self.blocks, own, strict=True)
        return Grid(tuple(block.with_axes({name: kept}) for block, kept in parts if kept))

    def plain(self) -> dict[str, Any]:
        """What `make` would read: the same recipes in the same order."""
        base = {key: value for block in self.blocks for key, value in block.base.items()}
        lists = {key: list(v) if isinstance(v, tuple) else v for key, v in base.items()}
        axes = [block.plain_axes() for block in self.blocks]
        return {**lists, AXES: axes[0] if len(axes) == 1 else axes}

    @property
    def varied(self) -> list[str]:
        """The axes of any block."""
        return list(dict.fromkeys(name for block in self.blocks for name in block.axes))

    def recipes(self) -> list[Recipe]:
        """All combinations, each once. A setting that a method does not have is left out for it; so
        are one that says what the method does anyway, and a training size above what a task has."""
        from compacter.training.prepare import for_method

        found: dict[Recipe, None] = {}
        for recipe in self.check():
            found[_without_defaults(for_method(recipe, recipe.method))] = None
        return list(found)

    def check(self) -> list[Recipe]:
        """All combinations as they are given. Names that do not exist, and values that do not fit,
        are told here, before torch is imported."""
        if not self.varied:
            raise ExperimentError(
                "there is nothing to vary: no axis is given; name a grid (one of "
                f"{', '.join(ready_grids())}, or a file), or give axes"
            )
        found = [recipe for block in self.blocks for recipe in block.check()]
        if not found:
            raise ExperimentError(NO_ROWS)
        return found


def ready_grids() -> dict[str, Path]:
    """The grids that the package brings, by name."""
    return ready_files("grids")


def parse_axis(text: str) -> tuple[str, Values]:
    """An axis from the command line: 'learning_rate=3e-4,3e-3'."""
    name, equals, values = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not values.strip():
        raise ExperimentError(f"--axis {text!r} does not fit; expected KEY=VALUE,VALUE,...")
    _check_key(name)
    annotation: Any = Recipe.model_fields[name].annotation
    reader: TypeAdapter[Any] = TypeAdapter(annotation)
    found = []
    for value in values.split(","):
        try:
            found.append(reader.validate_strings(value.strip()))
        except ValidationError as error:
            reason = error.errors()[0]["msg"].lower()
            raise ExperimentError(f"{name}={value.strip()!r} does not fit: {reason}") from None
    return name, tuple(found)


def _check_key(name: Any) -> None:
    if name not in Recipe.model_fields:
        near = difflib.get_close_matches(str(name), Recipe.model_fields, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "expected a key of a recipe"
        raise ExperimentError(f"there is no axis {name!r}; {hint}")


def _keys(axes: Any) -> list[Any]:
    return list(axes) if isinstance(axes, Mapping) else []


def _checked(name: str, found: Any, whole: Any) -> Values:
    """The values of an axis, each of which a recipe would take."""
    if isinstance(found, str) or not isinstance(found, Sequence):
        raise ExperimentError(
            f"axis {name!r} holds {whole!r}; expected a list of values, or a mapping from the "
            "values of another axis to such lists"
        )
    if not found:
        raise ExperimentError(f"axis {name!r} is empty; expected one value or more")
    _check_key(name)
    for value in found:
        Recipe.make({name: value})
    return tuple(found)


def _dependent(
    name: str, table: Mapping[Any, Any], base: Mapping[str, Any], axes: Mapping[str, Any]
) -> Dependent:
    cases = {key: found for key, found in table.items() if key != BY}
    on = _named(name, table[BY], cases, axes) if BY in table else _implied(name, cases, base, axes)
    return Dependent(
        on,
        {
            key: _checked(name, found if isinstance(found, list) else [found], table)
            for key, found in cases.items()
        },
    )


def _named(name: str, by: Any, cases: Mapping[Any, Any], axes: Mapping[str, Any]) -> str:
    """The key that a mapping says it depends on."""
    _check_key(str(by))
    values = _every_value(axes[by]) if by in axes else list(cases)
    unknown = [key for key in cases if key != OTHERS and key not in values]
    if unknown:
        raise ExperimentError(
            f"axis {name!r} depends on {by!r} and has values for {unknown[0]!r}; expected values "
            f"of {by!r}: {_list(values)}, or {OTHERS!r}"
        )
    return str(by)


def _implied(
    name: str, cases: Mapping[Any, Any], base: Mapping[str, Any], axes: Mapping[str, Any]
) -> str:
    """The key whose values the keys of a mapping are."""
    keys = {key for key in cases if key != OTHERS}
    fitting = [
        other
        for other, axis in axes.items()
        if other != name and keys and keys <= set(_every_value(axis))
    ] or [k for k, value in base.items() if isinstance(value, Hashable) and value in keys]
    if len(fitting) != 1:
        which = (
            f"of several: {_list(fitting)}; say which with '{BY}: {fitting[0]}' among them"
            if fitting
            else "of no other axis; expected values of one other axis"
        )
        raise ExperimentError(
            f"axis {name!r} is a mapping whose keys ({_list(cases)}) are values {which}"
        )
    return fitting[0]


def _every_value(axis: Any) -> list[Any]:
    if isinstance(axis, Mapping):
        return [value for key, part in axis.items() if key != BY for value in _every_value(part)]
    return [v for v in axis if isinstance(v, Hashable)] if isinstance(axis, list) else [axis]


def _check_names(recipe: Recipe) -> None:
    """A name that is wrong is wrong in every run, so it is told before the first."""
    if recipe.method != "head-only":
        find_method(recipe.method)
    name = recipe.task_name()
    if recipe.train_file is None and name is not None:
        find_task(name)


def _without_defaults(recipe: Recipe) -> Recipe:
    """Leave open what is given as the method has it, as it is the same run."""
    own = _own_settings(recipe.method)
    said = {k: None for k, value in recipe.method_settings().items() if own.get(k) == value}
    return recipe.model_copy(update=said)


def _own_settings(method: str) -> dict[str, Any]:
    """What a method does where nothing is given, without n and bottleneck: they depend on the
    model."""
    from compacter.methods.attach import CONFIG_CLASSES, DEFAULT_NUM_TOKENS

    found = METHODS.get(method)
    if found is None or found.family == "full":
        return {}
    if found.family == "prompt":
        return {"num_tokens": DEFAULT_NUM_TOKENS}
    own = {field.name: field.default for field in fields(CONFIG_CLASSES[found.family])}
    return {k: v for k, v in {**own, **found.settings}.items() if k not in ("n", "bottleneck")}


def _has_rows(recipe: Recipe) -> bool:
    name = recipe.task_name()
    if recipe.train_file is not None or recipe.max_train_samples is None or name is None:
        return True
    sizes = find_task(name).sizes
    return sizes is None or recipe.max_train_samples <= sizes[0]


def _list(names: Any) -> str:
    return ", ".join(str(name) for name in names)

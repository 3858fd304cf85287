"""PEFT's test classes with our configurations and models.

The lists that PEFT's tests run over are bound to them when they are imported, as marks. `adopt`
makes a subclass in which every such mark has our list. A test without any is about another method
and is left out, unless it is named: either it runs as it is, or each of our methods takes the
place of LoRA in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps
from typing import Any

import pytest

from our_methods import METHODS, Method

Lists = Mapping[str, list[Any]]
"""Names of arguments, or the name of a test whose configurations are others -> the values."""
Test = Callable[..., Any]


def adopt(
    theirs: type,
    lists: Lists,
    *,
    as_lora: Collection[str] = (),
    as_it_is: Collection[str] = (),
    left_out: Collection[str] = (),
    methods: Sequence[Method] = METHODS,
    **attributes: Any,
) -> type:
    tests = {name: getattr(theirs, name) for name in dir(theirs) if name.startswith("test_")}
    named = {name for name in lists if name in tests} | {*as_lora, *as_it_is, *left_out}
    assert named <= set(tests), f"{theirs.__name__} has no {sorted(named - set(tests))}"

    def ours(name: str, test: Test) -> Test | None:
        if name in left_out or name in as_it_is:
            return test if name in as_it_is else None
        return _as_lora(test, methods) if name in as_lora else _with_lists(test, lists)

    body = {name: ours(name, test) for name, test in tests.items()}
    return type(theirs.__name__, (theirs,), body | attributes | {"__doc__": None})


def _with_lists(test: Test, lists: Lists) -> Test | None:
    replaced = False
    marks = []
    for mark in _marks(test):
        names = _arguments(mark)
        values = lists.get(names)
        if names and not names.startswith("model"):
            values = lists.get(test.__name__, values) if "config" in names else values
            replaced |= values is not None
        if values is not None:
            mark = pytest.mark.parametrize(mark.args[0], values).mark
        marks.append(mark)
    return _copy(test, marks) if replaced else None


def _as_lora(test: Test, methods: Sequence[Method]) -> Test:
    values = [pytest.param(method, id=method.name) for method in methods]
    ours = pytest.mark.parametrize("in_place_of_lora", values, indirect=True)
    return _copy(test, [*_marks(test), ours.mark, pytest.mark.usefixtures("in_place_of_lora").mark])


def _marks(test: Test) -> list[pytest.Mark]:
    return list(getattr(test, "pytestmark", []))


def _arguments(mark: pytest.Mark) -> str:
    """The arguments of a parametrize mark, "a,b"; an empty string for other marks."""
    if mark.name != "parametrize":
        return ""
    names = mark.args[0]
    parts = names.split(",") if isinstance(names, str) else names
    return ",".join(part.strip() for part in parts)


def _copy(test: Test, marks: list[pytest.Mark]) -> Test:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> Any:
        return test(*args, **kwargs)

    run.pytestmark = marks  # type: ignore[attr-defined]
    return run

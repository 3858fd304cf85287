"""Flags that mirror the keys of a recipe: one declaration, in training/recipe.py, serves both."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from compacter.training.recipe import Recipe

FLAGS = {"text_columns": "--text-column", "regression": "--regression/--classification"}
"""Where a flag is not called like its key."""

Command = Callable[..., None]


def with_recipe(keys: Sequence[str] = tuple(Recipe.model_fields)) -> Callable[[Command], Command]:
    """Give a command flags for these keys of a recipe. The command gets, as `given`, those that
    were set on the command line."""

    def decorate(command: Command) -> Command:
        @wraps(command)
        def wrapped(**arguments: Any) -> None:
            given = {k: _value(k, arguments.pop(k)) for k in keys}
            command(given={k: v for k, v in given.items() if v is not None}, **arguments)

        keyword = inspect.Parameter.KEYWORD_ONLY
        own = [
            parameter.replace(kind=keyword)
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.name != "given"
        ]
        flags = [
            inspect.Parameter(key, keyword, default=None, annotation=_annotation(key))
            for key in keys
        ]
        wrapped.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]
        wrapped.__annotations__ = {p.name: p.annotation for p in [*own, *flags]}
        return wrapped

    return decorate


def _annotation(key: str) -> Any:
    field = Recipe.model_fields[key]
    help_text = field.description
    plain = _without_none(field.annotation)
    flag = FLAGS.get(key, f"--{key.replace('_', '-').lower()}")
    if key == "text_columns":
        return Annotated[list[str] | None, typer.Option(flag, help=help_text)]
    if get_origin(plain) is tuple:
        help_text = f"{help_text}, with commas between them"
        plain = str
    if plain is bool and "/" not in flag:
        flag = f"{flag}/--no-{flag[2:]}"
    if get_origin(plain) is Literal:
        help_text = f"{help_text} ({', '.join(get_args(plain))})"
        plain = str
    return Annotated[plain | None, typer.Option(flag, help=help_text)]


def _value(key: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value) or None
    if key == "labels" and value is not None:
        return tuple(part.strip() for part in value.split(","))
    return value


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, UnionType):
        (annotation,) = (part for part in get_args(annotation) if part is not type(None))
    return annotation

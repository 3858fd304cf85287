"""Flags that mirror the keys of a recipe: one declaration, in training/recipe.py, serves both."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from compacter.training.recipe import Recipe

REPEATED = {"text_columns": "--text-column", "labels": "--label"}


def with_recipe(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag for every key of a recipe. The command gets, as `given`, the keys that
    were set on the command line."""

    @wraps(command)
    def wrapped(**arguments: Any) -> None:
        names = Recipe.model_fields
        given = {k: v for k, v in arguments.items() if k in names and v not in (None, [])}
        rest = {k: v for k, v in arguments.items() if k not in names}
        command(given=given, **rest)

    own = [p for p in inspect.signature(command).parameters.values() if p.name != "given"]
    keyword = inspect.Parameter.KEYWORD_ONLY
    flags = [
        inspect.Parameter(
            name, keyword, default=None, annotation=_annotation(name, field.annotation)
        )
        for name, field in Recipe.model_fields.items()
    ]
    resolved = inspect.signature(command, eval_str=True).parameters
    own = [p.replace(kind=keyword, annotation=resolved[p.name].annotation) for p in own]
    wrapped.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in [*own, *flags]}
    return wrapped


def _annotation(name: str, annotation: Any) -> Any:
    help_text = Recipe.model_fields[name].description
    if name in REPEATED:
        return Annotated[list[str] | None, typer.Option(REPEATED[name], help=help_text)]
    plain = _without_none(annotation)
    flag = f"--{name.replace('_', '-').lower()}"
    if plain is bool:
        return Annotated[bool | None, typer.Option(f"{flag}/--no-{flag[2:]}", help=help_text)]
    if get_origin(plain) is Literal:
        help_text = f"{help_text} ({', '.join(get_args(plain))})"
        plain = str
    return Annotated[plain | None, typer.Option(flag, help=help_text)]


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, UnionType):
        (annotation,) = (part for part in get_args(annotation) if part is not type(None))
    return annotation


def make_recipe(file: Path | None, given: dict[str, Any]) -> Recipe:
    """The recipe of a file, of flags, or of both, where flags win."""
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    return Recipe.make(values) if file is None else Recipe.read(file, values)

"""`compacter preview`: a task's rows as a model reads them, and how long they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from compacter.training.recipe import DATA_KEYS, Recipe
from compacter_cli.flags import with_recipe
from compacter_cli.output import console, print_json

if TYPE_CHECKING:
    from compacter.tasks import Example, Split

MEASURED = 5_000
"""Lengths are those of at most this many examples."""


@with_recipe((*DATA_KEYS, "label_words"))
def preview(
    *,
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "train",
    rows: Annotated[int, typer.Option(min=0, help="How many rows to show.")] = 3,
    model: Annotated[
        str | None, typer.Option(help="A folder or a hub name whose tokenizer counts tokens.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Count the rows that are longer than this.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    given: dict[str, Any],
) -> None:
    """Show formatted rows of a task and the lengths of its texts."""
    from compacter.tasks import examples, load_split

    recipe = Recipe.make(given)
    declared, found = load_split(recipe.task_name(), recipe.source(), cast("Split", split))
    every = examples(declared, found, train=split == "train", label_words=recipe.label_words)
    answer: dict[str, Any] = {
        "task": declared.name,
        "split": split,
        "rows": len(found),
        "examples": len(every),
        "labels": list(declared.labels),
        "shown": [{"source": e.source, "target": e.target} for e in every[:rows]],
        "lengths": _lengths(every[:MEASURED], model, max_length) if every else None,
    }
    if as_json:
        print_json(answer)
    else:
        _print(answer)


def _lengths(measured: list[Example], model: str | None, max_length: int | None) -> dict[str, Any]:
    unit, note, count = _counter(model)
    found: dict[str, Any] = {"unit": unit, "note": note, "measured": len(measured)}
    found["source"] = _summary(count([e.source for e in measured]))
    answers = [e.target for e in measured if e.target is not None]
    found["target"] = _summary(count(answers)) if answers else None
    if max_length is not None:
        over = sum(n > max_length for n in count([e.source for e in measured]))
        found |= {"max_length": max_length, "longer": over}
    return found


def _counter(model: str | None) -> tuple[str, str, Callable[[list[str]], list[int]]]:
    """What is counted, why, and how."""
    if model is None:
        return "words", "words, because no --model was named", _count_words
    from compacter.models.pretrained import load_tokenizer
    from compacter.training.progress import silence_transformers

    silence_transformers()
    tokenizer = load_tokenizer(model)

    def count_tokens(texts: list[str]) -> list[int]:
        return [len(ids) for ids in tokenizer(texts, verbose=False)["input_ids"]]

    return "tokens", f"tokens of {model}", count_tokens


def _count_words(texts: list[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def _summary(lengths: list[int]) -> dict[str, int]:
    """Minimum, median, 95th percentile and maximum, each the length of some text."""
    ordered = sorted(lengths)

    def at(share: float) -> int:
        return ordered[math.ceil(share * len(ordered)) - 1]

    return {"min": ordered[0], "median": at(0.5), "p95": at(0.95), "max": ordered[-1]}


def _print(answer: dict[str, Any]) -> None:
    out = console()
    count = f"{answer['rows']:,} rows"
    if answer["examples"] != answer["rows"]:
        count += f", {answer['examples']:,} examples"
    out.print(f"{answer['task']}, {answer['split']}: {count}", markup=False)
    if not answer["rows"]:
        out.print("There is no such set: no file was named for it.")
    for shown in answer["shown"]:
        out.print(f"\nsource: {shown['source']}", markup=False)
        target = "(no label)" if shown["target"] is None else shown["target"]
        out.print(f"target: {target}", markup=False)
    if answer["lengths"]:
        _print_lengths(answer)


def _print_lengths(answer: dict[str, Any]) -> None:
    from rich.table import Table

    lengths = answer["lengths"]
    title = f"Lengths in {lengths['note']}"
    if lengths["measured"] < answer["examples"]:
        title += f", of the first {lengths['measured']:,} examples"
    table = Table()
    table.add_column("")
    names = ("min", "median", "p95", "max")
    for name in names:
        table.add_column("95%" if name == "p95" else name, justify="right")
    for part in ("source", "target"):
        if lengths[part]:
            table.add_row(part, *(str(lengths[part][name]) for name in names))
    out = console()
    out.print(f"\n{title}", markup=False)
    out.print(table)
    if "max_length" in lengths:
        out.print(
            f"{lengths['longer']:,} of {lengths['measured']:,} sources are longer than "
            f"{lengths['max_length']}"
        )

"""`compacter methods`: the twelve methods and what each trains."""

from __future__ import annotations

from typing import Annotated

import typer

from compacter.methods.table import METHODS
from compacter.paper import printed_figures
from compacter_cli.output import console, print_json


def methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List the methods of the paper, what each trains, and its share of T5-base."""
    rows = [
        {
            "method": method.name,
            "title": method.title,
            "trains": method.trains,
            "settings": dict(method.settings),
            "paper_percent_t5_base": _paper_percent(method.name, method.n_preference),
        }
        for method in METHODS.values()
    ]
    if as_json:
        print_json(rows)
        return
    from rich.table import Table

    table = Table(title="Methods", title_justify="left")
    table.add_column("method", no_wrap=True)
    table.add_column("trains")
    table.add_column("% of T5-base\n(paper)", justify="right", no_wrap=True)
    for row in rows:
        percent = row["paper_percent_t5_base"]
        shown = "" if percent is None else f"{percent:g}"
        table.add_row(str(row["method"]), str(row["trains"]), shown)
    console().print(table)


def _paper_percent(name: str, n_preference: tuple[int, ...]) -> float | None:
    """None of a method that the paper does not have."""
    figures = printed_figures("t5-base", name, n_preference[0] if n_preference else None, tasks=8)
    return None if figures is None else figures["trained_percent"]

"""Printing: JSON for programs, tables for people."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_WIDTH = 120


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=1, allow_nan=False))


def table_of_numbers(title: str, first: str, *columns: str) -> Table:
    """A table in which many columns find place in a terminal of 80: nothing is cut, and what is too
    wide all the same goes on in the next line."""
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    table.add_column(first, overflow="fold")
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    return table


def console() -> Console:
    """A console of the terminal's width; wide enough for tables where there is no terminal."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else shutil.get_terminal_size((PIPE_WIDTH, 24)).columns
    return Console(width=width, highlight=False)

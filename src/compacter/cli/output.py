"""Printing: JSON for programs, tables for people."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 120


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=1))


def console() -> Console:
    """A console of the terminal's width; wide enough for tables where there is no terminal."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else shutil.get_terminal_size((PIPE_WIDTH, 24)).columns
    return Console(width=width, highlight=False)

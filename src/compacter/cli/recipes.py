"""`compacter recipes`: what can be run by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compacter.cli.output import print_json
from compacter.training.recipe import ready_recipes


def recipes(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """List the ready recipes: 'compacter train NAME' runs one, and flags win over it."""
    found = [
        {"recipe": name, "file": str(path), "about": _about(path)}
        for name, path in ready_recipes().items()
    ]
    if as_json:
        print_json(found)
        return
    for entry in found:
        typer.echo(f"{entry['recipe']:<18} {entry['about']}")


def _about(path: Path) -> str:
    """The comment at the head of the file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = [line for line in lines if line.startswith("#")]
    return " ".join(line.lstrip("# ") for line in comment)

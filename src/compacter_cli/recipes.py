"""`compacter recipes`: what can be run by name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from compacter.experiments.grid import ready_grids
from compacter.training.recipe import ready_recipes
from compacter_cli.output import print_json


def recipes(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """List the ready recipes of 'compacter train NAME' and grids of 'compacter sweep NAME'."""
    found = [
        {"recipe": name, "kind": kind, "file": str(path), "about": _about(path)}
        for kind, ready in (("recipe", ready_recipes()), ("grid", ready_grids()))
        for name, path in ready.items()
    ]
    if as_json:
        print_json(found)
        return
    for kind, title in (("recipe", "for 'compacter train'"), ("grid", "for 'compacter sweep'")):
        typer.echo(f"{title}:")
        for entry in found:
            if entry["kind"] == kind:
                typer.echo(f"  {entry['recipe']:<18} {entry['about']}")


def _about(path: Path) -> str:
    """The comment at the head of the file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = [line for line in lines if line.startswith("#")]
    return " ".join(line.lstrip("# ") for line in comment)

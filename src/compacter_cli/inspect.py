"""`compacter inspect`: what an adapter is."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from compacter_cli.output import print_json


def inspect(
    folder: Annotated[
        Path, typer.Argument(help="The folder of an adapter, or the --output of 'compacter train'.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Tell what an adapter is, from its files alone: method, places, tensors, score."""
    from compacter.training.inspection import inspect as read

    found = read(folder)
    if as_json:
        print_json(asdict(found))
    else:
        typer.echo(str(found))

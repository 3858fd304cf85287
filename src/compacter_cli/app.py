"""The Typer application. Commands import what they need when they run, so that `--help`,
`methods`, `tasks` and `inspect` answer without importing torch."""

from __future__ import annotations

from typing import Annotated

import typer

import compacter
from compacter_cli.bench import bench
from compacter_cli.inspect import inspect
from compacter_cli.methods import methods
from compacter_cli.params import params
from compacter_cli.preview import preview
from compacter_cli.recipes import recipes
from compacter_cli.report import report
from compacter_cli.runs import runs
from compacter_cli.sweep import sweep
from compacter_cli.tasks import tasks
from compacter_cli.train import compare, evaluate, predict, train

app = typer.Typer(
    name="compacter",
    help="Fine-tune transformers by training a few hundredths of a percent of their parameters.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(methods)
app.command()(params)
app.command()(tasks)
app.command()(preview)
app.command()(recipes)
app.command()(train)
app.command()(evaluate)
app.command()(predict)
app.command()(compare)
app.command()(inspect)
app.command()(bench)
app.command()(sweep)
app.command()(runs)
app.command()(report)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"compacter {compacter.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Options that stand before a command."""

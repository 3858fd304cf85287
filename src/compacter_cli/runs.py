"""`compacter runs`: how the runs of a sweep stand."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from compacter.experiments.overview import Overview
from compacter.experiments.pace import Pace, clock
from compacter.experiments.store import Store
from compacter_cli.output import print_json
from compacter_cli.sweep import describe, told


def runs(
    folder: Annotated[Path, typer.Argument(help="The --output of 'compacter sweep'.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """List the runs of a sweep: done, diverged, failed, running, waiting, stopped."""
    found = Store.open(folder).runs()
    pace = Pace(run for run in found if run.state == "done")
    overview = Overview({run.id: run for run in found}, pace=pace)
    overview.slots = max(1, len(overview.running()))
    left = overview.seconds_left()
    if as_json:
        listed = [asdict(run) for run in found]
        counts = overview.count()
        answer = {"folder": str(folder), "counts": counts, "seconds_left": left, "runs": listed}
        print_json(answer)
        return
    typer.echo("".join(f"{describe(run)}\n" for run in found), nl=False)
    time = f"; about {clock(left)} left" if left else ""
    typer.echo(f"{told(overview.count())}{time}")

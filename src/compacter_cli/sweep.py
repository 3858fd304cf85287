"""`compacter sweep`: the runs of a grid."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from compacter.errors import ExperimentError
from compacter.experiments.grid import Grid, parse_axis
from compacter.experiments.pace import Pace, clock
from compacter.experiments.store import STATES, Run, State, Store
from compacter_cli.flags import with_recipe
from compacter_cli.output import print_json

if TYPE_CHECKING:
    from compacter.experiments.engines import Engine
    from compacter.experiments.overview import Overview

ENGINES = ("local", "ray")
BAR = 20


@with_recipe()
def sweep(
    *,
    grid: Annotated[
        str | None,
        typer.Argument(help="A YAML file, or a grid of 'compacter recipes'; flags win over it."),
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for the runs.")] = Path("runs/sweep"),
    tasks: Annotated[str | None, typer.Option(help="Tasks, with commas between them.")] = None,
    methods: Annotated[str | None, typer.Option(help="Methods, with commas between them.")] = None,
    axis: Annotated[
        list[str] | None,
        typer.Option(help="KEY=VALUE,VALUE,... for any key of a recipe; may be repeated."),
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Only say how many runs there are.")] = False,
    time_steps: Annotated[
        int | None,
        typer.Option(min=1, help="With --dry-run: train so many steps of each kind, to time them."),
    ] = None,
    retry_failed: Annotated[bool, typer.Option(help="Try failed runs again.")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time (engine local).")] = None,
    engine: Annotated[str, typer.Option(help="local: this machine; ray: a Ray cluster.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="A running Ray cluster (default: one on this machine).")
    ] = None,
    cpus: Annotated[float | None, typer.Option(help="CPUs of a run (engine ray).")] = None,
    gpus: Annotated[float | None, typer.Option(help="GPUs of a run (engine ray).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    given: dict[str, Any],
) -> None:
    """Train every run of a grid; finished ones are skipped, interrupted ones go on."""
    texts = list(axis or ())
    texts += [f"{k}={v}" for k, v in (("task", tasks), ("method", methods)) if v is not None]
    axes: dict[str, Any] = {}
    for name, values in map(parse_axis, texts):
        if name in axes:
            raise ExperimentError(
                f"the axis {name} is given twice; expected all of its values in one list"
            )
        axes[name] = values
    both = sorted(given.keys() & axes.keys())
    if both:
        raise ExperimentError(f"{both[0]} is given once and as an axis; expected one of them")
    wanted = Grid.read(grid).with_values(given).with_axes(axes)
    wanted.check()
    store = Store.create(output)
    ray = {"address": address, "cpus": cpus, "gpus": gpus}
    _check_engine(engine, jobs, ray)
    if dry_run:
        _dry_run(wanted, store, jobs or 1, retry_failed, time_steps, as_json)
        return
    if time_steps is not None:
        raise ExperimentError("--time-steps is for --dry-run; expected both or neither")
    from compacter.experiments.sweep import sweep as run

    placed = _engine(engine, jobs or 1, ray)
    try:
        with _View(output) as view:
            runs = run(wanted, output, engine=placed, retry_failed=retry_failed, watch=view.watch)
    finally:
        placed.close()
    _tell_end(runs, output, as_json)


def _check_engine(engine: str, jobs: int | None, ray: dict[str, Any]) -> None:
    if engine not in ENGINES:
        raise ExperimentError(f"engine {engine!r} is unknown; choose one of {', '.join(ENGINES)}")
    stray = [name for name, value in ray.items() if value is not None and engine != "ray"]
    if jobs is not None and engine == "ray":
        stray = ["jobs"]
    if stray:
        raise ExperimentError(
            f"--{stray[0]} is not for the engine {engine!r}; expected --jobs with 'local', and "
            "--address, --cpus or --gpus with 'ray'"
        )


def _engine(engine: str, jobs: int, ray: dict[str, Any]) -> Engine:
    if engine == "ray":
        from compacter.experiments.engines.ray import Ray

        return Ray(**{name: value for name, value in ray.items() if value is not None})
    from compacter.experiments.engines.local import Local

    return Local(jobs)


def _dry_run(
    grid: Grid, store: Store, jobs: int, retry_failed: bool, time_steps: int | None, as_json: bool
) -> None:
    """How many runs, how many of them would be skipped, and how long the others take."""
    from compacter.experiments.first_steps import timed
    from compacter.experiments.overview import Overview

    runs, pace = _standing(grid, store)
    if retry_failed:
        runs = [replace(run, state="waiting") if run.state == "failed" else run for run in runs]
    if time_steps is not None:
        waiting = [run for run in runs if run.state == "waiting" and not pace.knows(run.recipe)]
        for run in timed(waiting, time_steps, jobs):
            pace.add(run)
    overview = Overview({run.id: run for run in runs}, jobs, pace)
    count, total = overview.count(), overview.seconds_left()
    done, failed = count["done"] + count["diverged"], count["failed"]
    left = len(runs) - done - failed
    if as_json:
        numbers = {"runs": len(runs), "done": done, "failed": failed, "left": left}
        print_json({**numbers, "seconds": total})
        return
    skipped = f"{done} done" + (f", {failed} failed" if failed else "")
    typer.echo(f"{len(runs)} runs: {skipped}, {left} to do")
    if total is None:
        typer.echo(
            f"time: unknown, since no run is finished in {str(store.folder)!r} yet; "
            "--time-steps 5 trains a few steps to tell"
        )
    else:
        told = "the finished runs' speed" if time_steps is None else "finished runs and first steps"
        typer.echo(f"time: about {clock(total)} with {jobs} at a time, by {told}")


def _standing(grid: Grid, store: Store) -> tuple[list[Run], Pace]:
    """The runs of a grid as they stand, and the pace of all that are finished. Data is read, as
    runs are named by it too, only where there are runs to compare with."""
    from compacter.experiments.plan import given
    from compacter.experiments.sweep import plan_runs

    if not store.begun():
        recipes = enumerate(grid.recipes())
        return [Run(str(index), "waiting", "", given(recipe)) for index, recipe in recipes], Pace()
    plan = plan_runs(grid)
    found = store.runs(plan)
    return found[: len(plan)], Pace(run for run in found if run.state == "done")


def _tell_end(runs: list[Run], output: Path, as_json: bool) -> None:
    count = {state: sum(run.state == state for run in runs) for state in STATES}
    if as_json:
        print_json({"folder": str(output), "counts": count})
    else:
        typer.echo(f"{told(count)}; everything is in {output}")
        for run in runs:
            if run.state in ("failed", "diverged"):
                typer.echo(f"{run.state}: {run.id} {run.label}: {run.error or 'see its warnings'}")
        if count["failed"]:
            typer.echo("--retry-failed tries the failed ones again")
    if count["done"] < len(runs):
        raise typer.Exit(1)


def told(count: Mapping[State, int]) -> str:
    """The states that occur, and how often."""
    return ", ".join(f"{number} {state}" for state, number in count.items() if number) or "no runs"


class _View:
    """What goes on: a bar and the runs under way on a terminal, else a line for each that ends."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.live: Any = None
        self.has_begun = False

    def __enter__(self) -> _View:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self.live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
            self.live.start()
            self.live.update("planning ...", refresh=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self.live is not None:
            self.live.stop()

    def watch(self, overview: Overview, ended: Run | None) -> None:
        if self.live is not None:
            self.live.update(_picture(overview), refresh=True)
        elif ended is not None:
            _say(f"{_place(overview)}: {describe(ended)}")
        elif not self.has_begun:
            _say(f"{len(overview.runs)} runs: {told(overview.count())}; all in {self.output}")
        self.has_begun = True


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _place(overview: Overview) -> str:
    left = overview.seconds_left()
    time = "" if left is None else f", about {clock(left)} left"
    return f"{_ended(overview)}/{len(overview.runs)}{time}"


def _ended(overview: Overview) -> int:
    count = overview.count()
    return count["done"] + count["diverged"] + count["failed"]


def describe(run: Run) -> str:
    """A run and how it stands, in a line."""
    told = f"{run.state:<8} {run.id} {run.label}"
    if run.score is not None:
        told += f": {run.score:.2f}"
    if run.seconds is not None:
        told += f" in {clock(run.seconds)}"
    if run.state == "running" and run.steps:
        told += f": step {run.step}/{run.steps}"
    return f"{told}: {run.error}" if run.error else told


def _picture(overview: Overview) -> Any:
    from rich.text import Text

    full = BAR * _ended(overview) // max(1, len(overview.runs))
    bar = "#" * full + "." * (BAR - full)
    lines = [f"[{bar}] {_place(overview)}; {told(overview.count())}"]
    lines += [describe(run) for run in overview.running()]
    return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")

"""The other tables: what was chosen, efficiency, and every run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compacter.paper import printed_rate
from compacter.report.cells import (
    DIVERGED,
    MISSING,
    Cell,
    Column,
    Table,
    amount,
    count_range,
    percent,
    score_text,
    show,
    signed,
    with_best,
)
from compacter.report.papers import papers_efficiency
from compacter.report.runs import FailedRun, Found, Run, task_order, task_title
from compacter.report.scores import Scored
from compacter.report.selection import Setting

# What was chosen


def chosen_table(setting: Setting, rows: Sequence[Scored], name: str) -> Table:
    """Learning rate and n of every method, and the bottleneck of every task."""
    columns = [
        Column("Method", numeric=False),
        Column("Learning rate"),
        Column("n"),
        Column("Bottleneck", "by task", numeric=False),
        Column("Seeds"),
        Column("Choices"),
    ]
    body = []
    for row in rows:
        choice = row.choice
        rate, n = (choice.chosen.get(key) for key in ("learning_rate", "n"))
        n = dict(choice.variant).get("n", n)
        widths = {task: runs[0].setting("bottleneck") for task, runs in choice.runs.items()}
        values = set(widths.values())
        text = ", ".join(f"{task_title(t)} {show(w)}" for t, w in widths.items())
        if len(values) == 1:
            text = MISSING if values == {None} else show(next(iter(values)))
        seeds = [len(runs) for runs in choice.runs.values()]
        paper = printed_rate(setting.model, setting.benchmark, setting.tuned, choice.method)
        body.append(
            (
                Cell(row.label, row.label),
                Cell(
                    show(rate), rate, paper=paper, paper_text="" if paper is None else show(paper)
                ),
                Cell(MISSING if n is None else show(n), n),
                Cell(text, text),
                Cell(count_range(seeds), max(seeds)),
                Cell(str(choice.candidates), choice.candidates),
            )
        )
    caption = (
        "Learning rate and n: one per method, by the mean validation score over tasks; bottleneck: "
        "one per task. Choices: how many pairs of learning rate and n were compared."
    )
    return Table(name, "Chosen settings", caption, tuple(columns), tuple(body))


# Efficiency


def efficiency_table(setting: Setting, rows: Sequence[Scored], name: str) -> Table:
    """Table 3: parameters, time and memory, and the difference to full fine-tuning."""
    full = [row for row in rows if row.choice.method == "full"]
    tasks = sorted({task for row in rows for task in row.runs}, key=task_order)
    shared = [task for task in tasks if all(task in row.runs for row in rows)]
    runs = [run for row in rows for part in row.runs.values() for run in part]
    printed = papers_efficiency(setting, runs)
    columns = (
        Column("Method", numeric=False),
        Column("Trained", "parameters"),
        Column("Trained", "% per task"),
        Column("Head", "parameters"),
        Column("Time", "s per run"),
        Column("Time", "to full, %"),
        Column("Speed", "rows/s"),
        Column("Memory", "MB per row"),
        Column("Memory", "to full, %"),
    )
    body = [_efficiency_row(row, _alike(row, full), shared, printed) for row in rows]
    if shared:
        diverged = [number for number, row in enumerate(rows) if row.diverged]
        for places, highest in (((4, 5, 7, 8), False), ((6,), True)):
            body = with_best(body, places, highest, left_out=diverged)
    title = "Efficiency" + (" (the paper's Table 3)" if printed else "")
    caption = _efficiency_caption(rows, tasks, shared, bool(printed))
    return Table(name, title, caption, columns, tuple(body))


def _efficiency_caption(
    rows: Sequence[Scored], tasks: Sequence[str], shared: Sequence[str], printed: bool
) -> str:
    parts = ["Means over the runs that the table of scores shows"]
    if not shared:
        parts.append(
            "No task has runs of every row, so time, speed and memory are of different tasks and "
            "none is marked as the best"
        )
    elif len(shared) < len(tasks):
        named = ", ".join(map(task_title, shared))
        parts.append(f"Time, speed and memory: on the tasks that all rows share, {named}")
    parts.append("Time and memory against full fine-tuning are on the same tasks")
    full = [row for row in rows if row.choice.method == "full"]
    if len(full) > 1:
        parts[-1] += ", and left out where it was trained in several ways and none is the row's"
    parts.append("Memory is the peak divided by the rows of a batch")
    parts.append("Runs that share a machine slow each other down")
    if any(row.diverged for row in rows):
        parts.append(f"{DIVERGED} a run diverged, and may have ended early")
    if printed:
        parts.append("The paper's differences are for one epoch of MNLI on one GPU")
    return ". ".join(parts) + "."


def _alike(row: Scored, full: Sequence[Scored]) -> Scored | None:
    """The full fine-tuning that differs from the row in nothing that tells rows apart, if there is
    one and not several."""
    own = dict(row.choice.variant)
    found = [f for f in full if all(own.get(k, value) == value for k, value in f.choice.variant)]
    return found[0] if len(found) == 1 else None


def _efficiency_row(
    row: Scored,
    full: Scored | None,
    shared: Sequence[str],
    printed: Mapping[str, tuple[float, float]],
) -> tuple[Cell, ...]:
    tasks = shared or list(row.runs)
    trained = row.mean_of(lambda r: r.result.trainable)
    head = row.mean_of(lambda r: r.result.head_trainable)
    seconds = row.mean_of(lambda r: r.result.seconds, tasks)
    speed = row.mean_of(lambda r: r.result.samples_per_second, tasks)
    memory = row.mean_of(lambda r: r.memory_per_row, tasks)
    time_change, memory_change = printed.get(row.choice.method, (None, None))
    return (
        Cell(row.label, row.label, marks=DIVERGED if row.diverged else ""),
        Cell(f"{trained:,.0f}", trained),
        Cell(percent(row.percent), row.percent),
        Cell(f"{head:,.0f}", head),
        Cell(amount(seconds), seconds),
        _to_full(row, full, tasks, lambda r: r.result.seconds, time_change),
        Cell(f"{speed:,.1f}", speed),
        Cell(amount(memory), memory),
        _to_full(row, full, tasks, lambda r: r.memory_per_row, memory_change),
    )


def _to_full(
    row: Scored,
    full: Scored | None,
    tasks: Sequence[str],
    measure: Callable[[Run], float],
    paper: float | None,
) -> Cell:
    both = [task for task in tasks if full and task in full.runs]
    if full is None or row is full or not both:
        return Cell(MISSING, paper=paper)
    theirs = full.mean_of(measure, both)
    if not theirs:
        return Cell(MISSING, paper=paper)
    change = 100 * (row.mean_of(measure, both) / theirs - 1)
    return Cell(signed(change, 1), change, paper=paper)


# Runs


def runs_table(runs: Sequence[Run], keys: Sequence[str]) -> Table:
    """Every run, with the settings in which runs differ."""
    columns = [Column("Run", numeric=False), Column("Score"), Column("Status", numeric=False)]
    columns += [Column(key, numeric=False) for key in keys]
    columns += [Column("Trained", "%"), Column("Time", "s"), Column("Memory", "MB")]
    body = []
    for run in runs:
        result = run.result
        value = result.score
        body.append(
            (
                Cell(run.id, run.id),
                Cell(MISSING if value is None else score_text(value), value),
                Cell(result.status, result.status, note="; ".join(result.warnings)),
                *(_setting_cell(run.setting(key)) for key in keys),
                Cell(percent(result.percent), result.percent),
                Cell(f"{result.seconds:,.0f}", result.seconds),
                Cell(f"{result.peak_memory_bytes / 1e6:,.0f}", result.peak_memory_bytes / 1e6),
            )
        )
    caption = (
        "Settings that all runs share are left out here and listed below. "
        "The score is that of the test set, or of validation where there is none."
    )
    return Table("runs", "All runs", caption, tuple(columns), tuple(body))


def failed_table(found: Found) -> Table:
    """Runs that ended with an error and runs that diverged."""
    keys = ("method", "task", "model", "learning_rate", "seed")
    columns = [Column("Run", numeric=False)]
    columns += [Column(key, numeric=False) for key in keys]
    columns += [Column("Error", numeric=False), Column("Attempts"), Column("When", numeric=False)]
    body = [
        (
            Cell(run.id, run.id),
            *(_setting_cell(run.recipe.get(key)) for key in keys),
            Cell(f"{run.kind}: {run.error}" if run.kind else run.error, run.error),
            Cell(str(run.attempts), run.attempts),
            Cell(run.when, run.when),
        )
        for run in (*found.failed, *map(_as_failed, found.diverged))
    ]
    caption = (
        "Runs that ended with an error, which no table above counts, and runs that diverged, whose "
        f"scores are those of their best checkpoint and are marked with {DIVERGED}."
        if found.diverged
        else "Runs that ended with an error; no table above counts them."
    )
    return Table("failed", "Failed runs", caption, tuple(columns), tuple(body))


def _as_failed(run: Run) -> FailedRun:
    error = "; ".join(run.result.warnings)
    return FailedRun(run.id, run.result.recipe, error, kind="diverged", when="", attempts=1)


def _setting_cell(value: Any) -> Cell:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    text = show(value)
    return Cell(text if value not in (None, ()) else MISSING, value if number else text)

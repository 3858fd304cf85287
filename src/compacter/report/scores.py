"""Tables of scores: the paper's, from runs, with the paper's own figures where they apply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from compacter.paper import score_columns
from compacter.report.cells import (
    BEST_OF,
    DIFFERS,
    DIVERGED,
    MISSING,
    Cell,
    Column,
    Table,
    count_range,
    percent,
    score_text,
    show,
    signed,
    with_best,
)
from compacter.report.papers import paper_row, papers_epochs
from compacter.report.runs import METRICS, Run, known_task, method_title, task_order, task_title
from compacter.report.selection import Choice, Setting, best_seed
from compacter.report.statistics import (
    Bootstrap,
    Comparison,
    Resampled,
    average,
    compare,
    mean,
    mean_and_deviation,
)


@dataclass(frozen=True)
class Scored:
    """A row of scores, before it is written."""

    choice: Choice
    runs: Mapping[str, Sequence[Run]]
    """By task: the runs whose mean is shown; with the best of k seeds, one."""
    columns: Mapping[str, Mapping[str, tuple[float, float | None]]]
    """By task and metric: the mean over seeds and its deviation."""
    best_of: int
    """Of how many seeds the best is shown, at most; 1: the mean is shown."""
    comparisons: Mapping[str, Comparison] = field(default_factory=dict)
    """By task, and for the average by the empty name: against full fine-tuning."""

    @property
    def label(self) -> str:
        """The method's name, with the n that was chosen and what tells the row from others of the
        method."""
        settings = {"n": self.choice.chosen.get("n")} | dict(self.choice.variant)
        parts = [f"{key}={show(value)}" for key, value in settings.items() if value is not None]
        return method_title(self.choice.method) + (f" ({', '.join(parts)})" if parts else "")

    @property
    def borrowed(self) -> dict[str, dict[str, Any]]:
        """By task: settings that are not the row's, but the only ones that the task has."""
        found = {
            task: {
                key: found
                for key, value in self.choice.variant
                if (found := runs[0].setting(key)) != value and (key, found) != ("data", None)
            }
            for task, runs in self.runs.items()
        }
        return {task: settings for task, settings in found.items() if settings}

    def average(self, wanted: Sequence[tuple[str, str]]) -> tuple[float, float | None] | None:
        """The mean over these columns and its deviation over seeds; None if one is missing."""
        if not wanted or not all(metric in self.columns.get(task, {}) for task, metric in wanted):
            return None
        tasks = list(dict.fromkeys(task for task, _ in wanted))
        means = {t: [self.columns[t][m][0] for u, m in wanted if u == t] for t in tasks}
        by_seed = [{run.result.seed: run for run in self.runs[task]} for task in tasks]
        shared = sorted(set.intersection(*(set(runs) for runs in by_seed)))
        singles = [
            average(
                {
                    t: [runs[seed].scores[m] for u, m in wanted if u == t]
                    for t, runs in zip(tasks, by_seed, strict=True)
                }
            )
            for seed in shared
        ]
        return average(means), mean_and_deviation(singles)[1] if singles else None

    @property
    def percent(self) -> float:
        """Trained parameters per task, in percent of the model: the mean over tasks, since the
        bottleneck may differ between them."""
        return self.mean_of(lambda run: run.result.percent)

    @property
    def memory(self) -> float:
        return self.mean_of(lambda run: run.memory_per_row)

    @property
    def diverged(self) -> bool:
        return any(r.result.status == "diverged" for runs in self.runs.values() for r in runs)

    def mean_of(self, measure: Callable[[Run], float], tasks: Iterable[str] | None = None) -> float:
        """The mean over tasks, or these tasks, of the mean over seeds."""
        wanted = self.runs if tasks is None else tasks
        return mean([mean([measure(run) for run in self.runs[task]]) for task in wanted])


# Scores


def scored(
    found: Sequence[Choice], bootstrap: Bootstrap | None, best_of_seeds: bool
) -> list[Scored]:
    """The choices with their scores, compared to full fine-tuning where that is there once and a
    bootstrap is given."""
    rows = [_scored(choice, best_of_seeds) for choice in found]
    full = [row for row in rows if row.choice.method == "full"]
    if bootstrap is None or len(full) != 1:
        return rows
    return [row if row is full[0] else _compared(row, full[0], bootstrap) for row in rows]


def _scored(choice: Choice, best_of_seeds: bool) -> Scored:
    most = max(map(len, choice.runs.values()))
    runs = choice.runs
    if best_of_seeds:
        runs = {task: [best_seed(seeds)] for task, seeds in runs.items()}
    columns = {
        task: {
            metric: mean_and_deviation([run.scores[metric] for run in seeds])
            for metric in seeds[0].scores
            if all(metric in run.scores for run in seeds)
        }
        for task, seeds in runs.items()
    }
    return Scored(choice, runs, columns, most if best_of_seeds else 1)


def _compared(row: Scored, full: Scored, bootstrap: Bootstrap) -> Scored:
    parts: dict[str, Resampled] = {}
    for task in row.runs:
        if task in full.runs:
            part = bootstrap(row.runs[task], full.runs[task])
            if part is not None:
                parts[task] = part
    found = {task: compare([part]) for task, part in parts.items()}
    if len(parts) > 1 and len(parts) == len(row.runs) == len(full.runs):
        found[""] = compare(list(parts.values()))
    return replace(row, comparisons=found)


def columns_of(rows: Sequence[Scored]) -> list[tuple[str, str]]:
    """All metric columns, in the order of the paper."""
    found: dict[tuple[str, str], None] = {}
    for task in sorted({task for row in rows for task in row.columns}, key=task_order):
        known = known_task(task)
        seen = dict.fromkeys(m for row in rows for m in row.columns.get(task, {}))
        ordered = [m for m in known.metrics if m in seen] if known else list(seen)
        found |= dict.fromkeys((task, metric) for metric in ordered)
    return list(found)


def score_table(
    setting: Setting, rows: Sequence[Scored], name: str, title: str, caption: str
) -> Table:
    """A row per method, a column per metric and their average."""
    wanted = columns_of(rows)
    columns = [Column("Method", numeric=False), Column("Trained", "% per task")]
    columns += [_score_column(task, metric, rows) for task, metric in wanted]
    if len(wanted) > 1:
        columns.append(Column("Average"))
    body = [_score_row(setting, row, wanted) for row in rows]
    body = with_best(body, range(2, len(columns)), highest=True)
    return Table(name, title, caption, tuple(columns), tuple(body))


def _score_column(task: str, metric: str, rows: Sequence[Scored]) -> Column:
    runs = [run for row in rows for run in row.runs.get(task, ())]
    untested = any(not run.result.test for run in runs)
    (size,) = {run.setting("max_train_samples") for run in runs}
    parts = [METRICS.get(metric, metric)]
    parts += [] if size is None else [f"{size:,} rows"]
    parts += ["validation"] if untested else []
    return Column(task_title(task), ", ".join(parts))


def _score_row(
    setting: Setting, row: Scored, wanted: Sequence[tuple[str, str]]
) -> tuple[Cell, ...]:
    printed = paper_row(setting, row.choice)
    theirs = score_columns(printed["scores"]) if printed else {}
    share = printed["trained_percent"] if printed else None
    cells = [
        Cell(row.label, row.label, note=_chosen_note(row.choice)),
        Cell(percent(row.percent), row.percent, paper=share, paper_text=_share_text(share)),
    ]
    cells += [_score_cell(row, task, metric, theirs) for task, metric in wanted]
    if len(wanted) > 1:
        cells.append(_average_cell(row, wanted, theirs, printed))
    return tuple(cells)


def _share_text(share: float | None) -> str:
    return "" if share is None else percent(share)


def _score_cell(row: Scored, task: str, metric: str, theirs: Mapping[str, Sequence[float]]) -> Cell:
    known = known_task(task)
    place = known.metrics.index(metric) if known and metric in known.metrics else None
    paper = theirs[task][place] if task in theirs and place is not None else None
    if metric not in row.columns.get(task, {}):
        return Cell(MISSING, paper=paper, note="no finished run")
    value, deviation = row.columns[task][metric]
    runs = row.runs[task]
    notes = [_seeds_note(row, task)]
    borrowed = row.borrowed.get(task, {})
    notes += [f"{key}={show(given)} in all rows of the method" for key, given in borrowed.items()]
    bottleneck = runs[0].setting("bottleneck")
    if bottleneck is not None:
        notes.append(f"bottleneck {bottleneck}")
    comparison = row.comparisons.get(task)
    if comparison:
        notes.append(_comparison_note(comparison, "the task's score"))
    marks = DIFFERS if comparison and comparison.significant else ""
    if row.best_of > 1 and len(row.choice.runs[task]) > 1:
        marks += BEST_OF
    if any(run.result.status == "diverged" for run in runs):
        marks += DIVERGED
        notes.append("a run diverged")
    return Cell(
        score_text(value), value, deviation, paper=paper, marks=marks, note="; ".join(notes)
    )


def _average_cell(
    row: Scored,
    wanted: Sequence[tuple[str, str]],
    theirs: Mapping[str, Sequence[float]],
    printed: Mapping[str, Any] | None,
) -> Cell:
    tasks = list(dict.fromkeys(task for task, _ in wanted))
    paper = None
    if printed and all(task in theirs for task in tasks):
        whole = "avg" in printed["scores"] and set(tasks) == set(theirs)
        paper = printed["scores"]["avg"] if whole else average({t: theirs[t] for t in tasks})
    found = row.average(wanted)
    if found is None:
        lacking = dict.fromkeys(task_title(t) for t, m in wanted if m not in row.columns.get(t, {}))
        return Cell(MISSING, paper=paper, note=f"no average: {', '.join(lacking)} missing")
    comparison = row.comparisons.get("")
    note = f"mean over {len(wanted)} columns"
    if comparison:
        note += "; " + _comparison_note(comparison, "the average")
    marks = (DIFFERS if comparison and comparison.significant else "") + _best_of_mark(row)
    value, deviation = found
    return Cell(score_text(value), value, deviation, paper=paper, marks=marks, note=note)


def _chosen_note(choice: Choice) -> str:
    rate = choice.chosen.get("learning_rate")
    tried = f", the best of {choice.candidates} choices" if choice.candidates > 1 else ""
    return f"learning rate {show(rate)}{tried}"


def _seeds_note(row: Scored, task: str) -> str:
    seeds = [run.result.seed for run in row.choice.runs[task]]
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    listed = ", ".join(map(str, seeds[:8])) + (", ..." if len(seeds) > 8 else "")
    if row.best_of > 1:
        return f"best of {len(seeds)} seeds on validation: {row.runs[task][0].result.seed}"
    return f"mean of {len(seeds)} seeds ({listed})"


def _comparison_note(found: Comparison, what: str) -> str:
    return (
        f"{what} against full fine-tuning: {signed(found.difference)} "
        f"({signed(found.low)} to {signed(found.high)}), p = {found.p:.3f}"
    )


def significance_table(rows: Sequence[Scored], name: str) -> Table | None:
    """Differences to full fine-tuning with their intervals."""
    rows = [row for row in rows if row.comparisons]
    if not rows:
        return None
    tasks = sorted({t for row in rows for t in row.comparisons if t}, key=task_order)
    has_average = any("" in row.comparisons for row in rows)
    keys = [*tasks, *([""] if has_average else [])]
    columns = [Column("Method", numeric=False)]
    columns += [Column(task_title(task) if task else "Average") for task in keys]
    body = [
        (Cell(row.label, row.label), *(_difference_cell(row.comparisons.get(k)) for k in keys))
        for row in rows
    ]
    caption = (
        "Score of a task (the mean of its metrics) less that of full fine-tuning, with the "
        "interval that holds 95% of the differences on resampled test rows. "
        f"{DIFFERS}: p < 0.05. Other seeds may differ by more."
    )
    return Table(name, "Difference to full fine-tuning", caption, tuple(columns), tuple(body))


def _difference_cell(found: Comparison | None) -> Cell:
    if found is None:
        return Cell(MISSING)
    return Cell(
        signed(found.difference),
        found.difference,
        below=f"{signed(found.low)} to {signed(found.high)}",
        marks=DIFFERS if found.significant else "",
        note=f"p = {found.p:.3f}",
        more=(("low", found.low), ("high", found.high), ("p", found.p)),
    )


# Low-resource


def shared_columns(sizes: Mapping[int, Sequence[Scored]]) -> list[tuple[str, str]]:
    """The metric columns that every number of training rows has."""
    first, *others = (columns_of(rows) for rows in sizes.values())
    return [column for column in first if all(column in other for other in others)]


def seeds_text(sizes: Mapping[int, Sequence[Scored]], of_means: str = "") -> str:
    """What stands for several seeds, with what is to be said of means."""
    if any(row.best_of > 1 for rows in sizes.values() for row in rows):
        return f"{BEST_OF} The best of several seeds, chosen on validation"
    return f"Mean over seeds{of_means}"


def epochs_text(sizes: Mapping[int, Sequence[Scored]], benchmark: str) -> str:
    """How long was trained on each number of rows, and how long by the paper, if otherwise."""
    found = {
        size: sorted(
            {run.setting("epochs") for row in rows for runs in row.runs.values() for run in runs}
        )
        for size, rows in sizes.items()
    }
    text = f"Epochs: {', '.join(count_range(epochs) for epochs in found.values())}"
    papers = papers_epochs(benchmark)
    theirs = {size: [papers[size]] for size in found if size in papers}
    if len(theirs) == len(found) and theirs != found:
        text += f"; the paper's are {', '.join(count_range(epochs) for epochs in theirs.values())}"
    return text + "."


def size_table(sizes: Mapping[int, Sequence[Scored]], name: str, benchmark: str) -> Table:
    """Scores by the number of training rows, for each task and for their average."""
    columns = [Column("Method", numeric=False), Column("Task", numeric=False)]
    columns += [Column(f"{size:,}", "rows") for size in sizes]
    wanted = list(dict.fromkeys(column for rows in sizes.values() for column in columns_of(rows)))
    tasks = sorted({task for task, _ in wanted}, key=task_order)
    shared = shared_columns(sizes)
    averaged = list(dict.fromkeys(task for task, _ in shared))
    blocks = [("Average", shared)] if len(averaged) > 1 else []
    blocks += [(task_title(task), [c for c in wanted if c[0] == task]) for task in tasks]
    labels = dict.fromkeys(row.label for rows in sizes.values() for row in rows)
    body = []
    for what, block_columns in blocks:
        block = [
            (
                Cell(label, label),
                Cell(what, what),
                *(_size_cell(rows, label, block_columns) for rows in sizes.values()),
            )
            for label in labels
        ]
        body += with_best(block, range(2, len(columns)), highest=True)
    seeds = seeds_text(sizes, " and its standard deviation")
    caption = f"{seeds}; a task's score is the mean of its metrics"
    if len(averaged) > 1:
        named = "" if averaged == tasks else f", {', '.join(map(task_title, averaged))}"
        caption += f", the average is over all metrics of the tasks that every size has{named}"
    caption += f". Best per task and size in bold. {epochs_text(sizes, benchmark)}"
    return Table(name, "Scores by number of training rows", caption, tuple(columns), tuple(body))


def _size_cell(rows: Sequence[Scored], label: str, columns: Sequence[tuple[str, str]]) -> Cell:
    row = next((row for row in rows if row.label == label), None)
    found = row.average(columns) if row else None
    if row is None or found is None:
        return Cell(MISSING)
    seeds = sorted({len(row.choice.runs[task]) for task, _ in columns})
    note = f"{'best of ' if row.best_of > 1 else ''}{count_range(seeds)} seeds"
    return Cell(score_text(found[0]), *found, marks=_best_of_mark(row), note=note)


def _best_of_mark(row: Scored) -> str:
    return BEST_OF if row.best_of > 1 else ""

"""A section for each model and benchmark: its tables and figures, in the order of the paper."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from compacter.paper import papers_model, tables
from compacter.report.cells import BEST_OF, DIFFERS, DIVERGED, Table, amount, percent, score_text
from compacter.report.figures import Bubble, Figure, Line, Point, bubbles, lines
from compacter.report.papers import paper_row
from compacter.report.runs import BENCHMARKS, Run, method_title, task_order, task_title
from compacter.report.scores import (
    Scored,
    columns_of,
    epochs_text,
    score_table,
    scored,
    seeds_text,
    shared_columns,
    significance_table,
    size_table,
)
from compacter.report.selection import (
    Part,
    Setting,
    choices,
    main_parts,
    narrowed,
    of_parts,
    parts_by_size,
    settings_of,
)
from compacter.report.statistics import Bootstrap, mean
from compacter.report.tables import chosen_table, efficiency_table

MOST_CURVES = 24
"""Learning curves of more tasks than this are left to the list of runs."""
CURVE_POINTS = 24

PAPERS_TABLES = {
    ("t5-base", "glue", False): "the paper's Table 1",
    ("t5-base", "superglue", False): "the paper's Table 2",
    ("t5-base", "glue", True): "the paper's Appendix C",
    ("t5-small", "glue", False): "the paper's Appendix E",
}
BY_N_TABLES = {
    ("t5-base", "glue", False): "the paper's Appendix B",
    ("t5-base", "superglue", False): "the paper's Appendix D",
    ("t5-base", "glue", True): "the paper's Appendix C",
    ("t5-small", "glue", False): "the paper's Appendix E",
}


@dataclass(frozen=True)
class Section:
    name: str
    title: str
    summary: str
    scores: tuple[Table, ...]
    figures: tuple[Figure, ...]
    """Figure 1 and the low-resource figures."""
    details: tuple[Table, ...]
    curves: tuple[Figure, ...]
    legend: tuple[tuple[str, str, int], ...]
    """The curves' lines: method, label and the marker of points."""

    @property
    def tables(self) -> tuple[Table, ...]:
        return (*self.scores, *self.details)

    @property
    def all_figures(self) -> tuple[Figure, ...]:
        return (*self.figures, *self.curves)


def sections(runs: Sequence[Run], bootstrap: Bootstrap, best_of_seeds: bool) -> list[Section]:
    """The benchmarks in the order of the paper, models by name."""
    by_setting = settings_of(runs)
    order = list(BENCHMARKS)
    found = sorted(by_setting, key=lambda s: (order.index(s.benchmark), s.model, s.tuned))
    names = _names(found)
    return [_section(names[s], s, by_setting[s], bootstrap, best_of_seeds) for s in found]


def _names(settings: Sequence[Setting]) -> dict[Setting, str]:
    """Names for files and links, each its own."""
    found: dict[Setting, str] = {}
    for setting in settings:
        model = re.sub(r"[^a-z0-9]+", "-", setting.model.lower()).strip("-")[-40:].strip("-")
        end = "-output-layer" if setting.tuned else ""
        name = f"{setting.benchmark}-{model or 'model'}{end}"
        while name in found.values():
            name += "-2"
        found[setting] = name
    return found


def _section(
    name: str,
    setting: Setting,
    runs: Sequence[Run],
    bootstrap: Bootstrap,
    best_of_seeds: bool,
) -> Section:
    main, sizes = main_parts(runs), parts_by_size(runs)
    rows = scored(choices(of_parts(runs, main)), bootstrap, best_of_seeds)
    title = _title("Scores", setting, main, PAPERS_TABLES)
    scores = [score_table(setting, rows, f"{name}-scores", title, _caption(setting, rows))]
    figures = [_figure1(name, setting, rows)]
    details = [efficiency_table(setting, rows, f"{name}-efficiency")]
    details += _by_n(name, setting, runs, best_of_seeds)
    of_sizes = choices(of_parts(runs, set().union(*sizes.values())))
    by_size = {
        size: scored(narrow, None, best_of_seeds)
        for size, parts in sizes.items()
        if (narrow := narrowed(of_sizes, parts))
    }
    if by_size:
        scores.append(size_table(by_size, f"{name}-by-rows", setting.benchmark))
    if len(by_size) > 1:
        figures += _size_figures(name, setting, by_size)
    differences = significance_table(rows, f"{name}-differences")
    details += [differences] if differences else []
    details.append(chosen_table(setting, rows, f"{name}-settings"))
    return Section(
        name,
        f"{BENCHMARKS[setting.benchmark]}, {setting.model}"
        + (", output layer tuned" if setting.tuned else ""),
        _summary(rows),
        tuple(scores),
        tuple(figure for figure in figures if figure),
        tuple(details),
        tuple(_curves(name, rows)),
        tuple((row.choice.method, row.label, row.choice.number) for row in rows),
    )


def _title(
    what: str,
    setting: Setting,
    parts: Collection[Part],
    papers: Mapping[tuple[str, str, bool], str],
) -> str:
    known = papers.get((papers_model(setting.model) or "", setting.benchmark, setting.tuned))
    all_rows = any(size is None for _, size in parts)
    return what + (f" ({known})" if known and all_rows else "")


def _caption(setting: Setting, rows: Sequence[Scored]) -> str:
    several = any(len(runs) > 1 for row in rows for runs in row.choice.runs.values())
    best_of = any(row.best_of > 1 for row in rows)
    untested = any(
        not run.result.test for row in rows for runs in row.runs.values() for run in runs
    )
    parts = ["Scores in percent on the test rows"]
    if untested:
        parts[0] += ", or on those of validation where a column says so"
    if several and not best_of:
        parts[0] += ", mean over seeds and standard deviation"
    if len(columns_of(rows)) > 1:
        parts.append("The average is over all columns")
    if any(row.borrowed for row in rows):
        parts.append("A task that was trained in one way only stands in every row of its method")
    parts.append("Best in bold")
    if any(paper_row(setting, row.choice) for row in rows):
        parts.append("Small, below: the paper's figures")
    if any(comparison.significant for row in rows for comparison in row.comparisons.values()):
        parts.append(f"{DIFFERS} differs from full fine-tuning (p < 0.05, paired bootstrap)")
    if best_of:
        parts.append(f"{BEST_OF} the best of several seeds, chosen on validation")
    if any(row.diverged for row in rows):
        parts.append(f"{DIVERGED} a run diverged")
    return ". ".join(parts) + "."


def _by_n(name: str, setting: Setting, runs: Sequence[Run], best_of_seeds: bool) -> list[Table]:
    """A row for each n, where a method has several."""
    values: dict[str, set[object]] = defaultdict(set)
    for run in runs:
        values[run.method].add(run.setting("n"))
    several = [run for run in runs if len(values[run.method]) > 1]
    main = main_parts(runs)
    found = choices(of_parts(several, main), per_method=("learning_rate",))
    if not found:
        return []
    rows = scored(found, None, best_of_seeds)
    title = _title("Scores by n", setting, main, BY_N_TABLES)
    return [score_table(setting, rows, f"{name}-by-n", title, _caption(setting, rows))]


def _summary(rows: Sequence[Scored]) -> str:
    wanted = columns_of(rows)
    averages = [(found[0], row) for row in rows if (found := row.average(wanted))]
    if not averages:
        return "No method has finished all tasks."
    best, row = max(averages, key=lambda pair: pair[0])
    what = "average" if len(wanted) > 1 else "score"
    text = (
        f"Best {what}: {row.label} with {score_text(best)}, training {percent(row.percent)}% of "
        "the model per task"
    )
    full = [value for value, other in averages if other.choice.method == "full"]
    if full and row.choice.method != "full":
        text += f"; full fine-tuning has {score_text(max(full))}"
    elif full and len(averages) > 1:
        second, other = max(
            (pair for pair in averages if pair[1].choice.method != "full"),
            key=lambda pair: pair[0],
            default=(0.0, row),
        )
        if other is not row:
            share = percent(other.percent)
            text += f"; next is {other.label} with {score_text(second)}, training {share}%"
    return text + "."


# Figures


def _figure1(name: str, setting: Setting, rows: Sequence[Scored]) -> Figure | None:
    wanted = columns_of(rows)
    points = []
    for row in rows:
        found = row.average(wanted)
        if found is None or not math.isfinite(found[0]) or row.percent <= 0:
            continue
        words = (
            f"{row.label}: {score_text(found[0])}, {percent(row.percent)}% trained, "
            f"{amount(row.memory)} MB per row"
        )
        points.append(
            Bubble(
                row.label,
                row.choice.method,
                row.percent,
                found[0],
                row.memory,
                words,
                marker=row.choice.number,
            )
        )
    if len(points) < 2:
        return None
    caption = (
        "Score against trained parameters on a log axis; the area of a bubble is the peak memory "
        "divided by the rows of a batch."
    )
    theirs = _papers_bubbles(setting, rows, wanted, max(point.size for point in points))
    if theirs:
        caption += (
            " Rings: the paper's scores, with the memory of its Table 3 to a scale of its own."
        )
    return bubbles(f"{name}-figure-1", "Score, parameters and memory", caption, [*points, *theirs])


def _papers_bubbles(
    setting: Setting, rows: Sequence[Scored], wanted: Sequence[tuple[str, str]], largest: float
) -> list[Bubble]:
    """The paper's points, where our columns are the paper's."""
    memory = {row["method"]: row["memory_mb"] for row in tables()["efficiency_t5_base_mnli"]}
    memory |= dict.fromkeys(("prompt-tuning-r", "prompt-tuning-t"), memory["prompt-tuning"])
    most = max(memory.values())
    found = []
    for row in rows:
        printed = paper_row(setting, row.choice)
        if printed is None or {t for t, _ in wanted} != {*printed["scores"]} - {"avg"}:
            continue
        score, share = printed["scores"]["avg"], printed["trained_percent"]
        name = method_title(row.choice.method)
        words = f"{name} in the paper: {score_text(score)}, {percent(share)}% trained"
        size = largest * memory[row.choice.method] / most
        marker = row.choice.number
        found.append(Bubble(name, row.choice.method, share, score, size, words, True, marker))
    return found


def _size_figures(
    name: str, setting: Setting, by_size: Mapping[int, Sequence[Scored]]
) -> list[Figure]:
    """Score against training rows: the average where sizes share several tasks, and each task."""
    tasks = sorted(
        {t for rows in by_size.values() for row in rows for t in row.runs}, key=task_order
    )
    shared = shared_columns(by_size)
    averaged = list(dict.fromkeys(task_title(task) for task, _ in shared))
    epochs = epochs_text(by_size, setting.benchmark)
    seeds = seeds_text(by_size, "; bands of one standard deviation")
    found = []
    for number, task in enumerate([*([""] if len(averaged) > 1 else []), *tasks[:MOST_CURVES]]):
        series = _size_lines(by_size, task, shared)
        if series:
            what = task_title(task) if task else "Average"
            caption = f"{seeds}. {epochs}"
            if not task:
                named = ", ".join(averaged)
                caption += f" The average is over the tasks that every size has: {named}."
            found.append(
                lines(
                    f"{name}-rows-{number}",
                    f"{what} by number of training rows",
                    caption,
                    series,
                    ("training rows", f"{what}, score"),
                    small=bool(number),
                    log=True,
                )
            )
    return found


def _size_lines(
    by_size: Mapping[int, Sequence[Scored]], task: str, shared: Sequence[tuple[str, str]]
) -> list[Line]:
    points: dict[tuple[str, str, int], list[Point]] = defaultdict(list)
    for size, rows in by_size.items():
        columns = [c for c in columns_of(rows) if c[0] == task] if task else shared
        for row in rows:
            found = row.average(columns)
            if found is None or not math.isfinite(found[0]):
                continue
            spread = "" if found[1] is None else f" ± {found[1]:.2f}"
            words = f"{row.label}, {size:,} rows: {score_text(found[0])}{spread}"
            point = Point(size, found[0], words, found[1] or 0.0)
            points[row.label, row.choice.method, row.choice.number].append(point)
    return [Line(label, method, tuple(p), number) for (label, method, number), p in points.items()]


def _curves(name: str, rows: Sequence[Scored]) -> list[Figure]:
    """Validation score by step, a small figure for each task."""
    tasks = sorted({task for row in rows for task in row.runs}, key=task_order)
    seeds = seeds_text({0: rows})
    found = []
    for number, task in enumerate(tasks[:MOST_CURVES]):
        series = [line for row in rows if task in row.runs and (line := _curve(row, task))]
        if series:
            title = task_title(task)
            caption = f"{seeds}: validation score by step, with the settings that were chosen."
            found.append(
                lines(
                    f"{name}-curve-{number}",
                    title,
                    caption,
                    series,
                    ("step", f"{title}, validation score"),
                    small=True,
                    reachable=False,
                )
            )
    return found


def _curve(row: Scored, task: str) -> Line | None:
    """The mean over seeds at the steps that all of them have."""
    curves = [
        {
            int(entry["step"]): entry["eval_score"]
            for entry in run.result.curve
            if math.isfinite(entry.get("eval_score", math.nan))
        }
        for run in row.runs[task]
    ]
    shared = sorted(set.intersection(*(set(curve) for curve in curves)))
    if not shared:
        return None
    kept = thinned(shared, CURVE_POINTS)
    values = {step: mean([curve[step] for curve in curves]) for step in kept}
    points = tuple(
        Point(step, value, f"{row.label}, step {step:,}: {score_text(value)}")
        for step, value in values.items()
    )
    best = max(values, key=values.__getitem__)
    words = f"{row.label}: {len(shared)} checkpoints, best {score_text(values[best])} at {best:,}"
    return Line(row.label, row.choice.method, points, row.choice.number, words)


def thinned(items: Sequence[int], most: int) -> list[int]:
    """At most so many of them, evenly spread, the first and the last included."""
    if len(items) <= most:
        return list(items)
    last = len(items) - 1
    return [items[round(i * last / (most - 1))] for i in range(most)]

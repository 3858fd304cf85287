"""All that a report says, before it becomes a page or a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import compacter
from compacter.report.cells import Table
from compacter.report.figures import Figure
from compacter.report.runs import Found, Run
from compacter.report.sections import Section, sections
from compacter.report.statistics import RESAMPLES, Bootstrap
from compacter.report.tables import failed_table, runs_table
from compacter.training.recipe import Recipe

FIRST = ("method", "task", "model", "seed", "learning_rate", "n", "bottleneck")
"""Settings that lead the list of runs."""


@dataclass(frozen=True)
class Content:
    title: str
    facts: tuple[str, ...]
    warning: str
    """What the reader must know before all else, or nothing."""
    sections: tuple[Section, ...]
    runs: tuple[Run, ...]
    all_runs: Table | None
    varying: tuple[str, ...]
    """Keys of the recipe in which runs differ, or what the method took for them."""
    common: dict[str, Any]
    """What all recipes have in common."""
    failures: Table | None
    sweep: str | None
    notes: tuple[str, ...]

    @property
    def tables(self) -> list[Table]:
        found = [table for section in self.sections for table in section.tables]
        return found + [table for table in (self.all_runs, self.failures) if table]

    @property
    def figures(self) -> list[Figure]:
        return [figure for section in self.sections for figure in section.all_figures]


def make_content(
    found: Found,
    *,
    title: str | None = None,
    best_of_seeds: bool = False,
    resamples: int = RESAMPLES,
) -> Content:
    runs = found.runs
    bootstrap = Bootstrap(resamples)
    varying = tuple(
        key
        for key in sorted(Recipe.model_fields, key=lambda k: FIRST.index(k) if k in FIRST else 99)
        if len({_hashable(run.setting(key)) for run in runs}) > 1
        or len({_hashable(run.result.recipe.get(key)) for run in runs}) > 1
    )
    first = runs[0].result.recipe if runs else {}
    return Content(
        title=title or f"Runs in {found.folder.resolve().name or found.folder}",
        facts=tuple(_facts(found)),
        warning=_warning(found),
        sections=tuple(sections(runs, bootstrap, best_of_seeds)),
        runs=runs,
        all_runs=runs_table(runs, varying) if runs else None,
        varying=varying,
        common={key: value for key, value in first.items() if key not in varying},
        failures=failed_table(found) if found.failed or found.diverged else None,
        sweep=found.sweep,
        notes=_notes(best_of_seeds, resamples),
    )


def _hashable(value: Any) -> Any:
    return value if isinstance(value, tuple | str | int | float | None) else repr(value)


def _facts(found: Found) -> list[str]:
    runs = found.runs
    done = found.planned - found.missing
    facts = [f"{done:,} of {found.planned:,} planned runs are finished"] if found.missing else []
    if done != len(runs) or not found.missing:
        facts.append(_count(len(runs), "finished run"))
    if found.diverged:
        facts.append(f"{len(found.diverged)} of them diverged")
    if found.failed:
        facts.append(f"{len(found.failed)} failed")
    if found.unfinished:
        facts.append(f"{found.unfinished} not finished")
    if runs:
        facts.append(_count(len({run.method for run in runs}), "method"))
        facts.append(_count(len({run.task for run in runs}), "task"))
        facts.append(_count(len({run.result.seed for run in runs}), "seed"))
        hours = sum(run.result.seconds for run in runs) / 3600
        facts.append(f"{hours:,.1f} hours of training")
    return [*facts, f"compacter {compacter.__version__}"]


def _warning(found: Found) -> str:
    if not found.missing:
        return ""
    return (
        f"This is not the whole sweep: of {_count(found.planned, 'planned run')} "
        f"{found.missing:,} are not finished. Scores, averages and what is best may change."
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


NOTES = """
Learning rate and n are one per method: the pair with the best validation score in the mean over
tasks and numbers of training rows. The bottleneck is one per task, the checkpoint one per run. A
choice for which runs are missing gives way to one with more runs. The test rows choose nothing.

Settings between which the paper does not choose, and data, have rows of their own where they
differ. A task that was trained in one way only stands in every row of its method.

{seeds}

An average is the mean over all metric columns, so that a task with two metrics counts twice. It is
given where no column is missing.

Differences to full fine-tuning: a paired bootstrap with {resamples:,} resamplings of the test rows,
two-sided. It tells how sure a difference is on other test rows, not with other seeds.

The paper's figures stand beside runs on its models and tasks with its n, rank, intrinsic
dimension, prompt length, dropped layers and epochs, on all training rows and not quantised. Other
settings may differ from the paper's, as the recipes say.
"""


def _notes(best_of_seeds: bool, resamples: int) -> tuple[str, ...]:
    seeds = (
        "With several seeds, the one that is best on validation is shown and marked with a dagger."
        if best_of_seeds
        else "With several seeds, scores are means with the sample standard deviation."
    )
    text = NOTES.format(seeds=seeds, resamples=resamples)
    return tuple(" ".join(part.split()) for part in text.strip().split("\n\n"))

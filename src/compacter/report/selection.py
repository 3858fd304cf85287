"""Selection as in the paper: the learning rate and n are one per method, the bottleneck is one per
task, all by validation scores; the checkpoint was chosen by the run itself."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from compacter.report.runs import Run, benchmark_of, method_order, task_order
from compacter.report.statistics import mean
from compacter.training.recipe import DATA_KEYS, Recipe

PER_METHOD = ("learning_rate", "n")
PER_TASK = ("bottleneck",)

_PLACE = ("model", "method", "tune_output_layer", "max_train_samples", "seed")
VARYING = (
    "data",
    *(k for k in Recipe.model_fields if k not in (*_PLACE, *PER_METHOD, *PER_TASK, *DATA_KEYS)),
)
"""Settings that the paper does not choose between. Where they differ, each value has its row."""


@dataclass(frozen=True)
class Setting:
    """What all runs of a table have in common."""

    model: str
    benchmark: str
    tuned: bool = False
    """Whether the output layer is trained (Appendix C)."""


Part = tuple[str, int | None]
"""A task, and on how many of its rows it was trained; None: on all."""
Variant = tuple[tuple[str, Any], ...]
"""Names and values of settings."""


@dataclass(frozen=True)
class Choice:
    """A row of a table: a method with what was chosen for it."""

    method: str
    variant: Variant
    """Settings that tell this row from others of the same method."""
    number: int
    """Its place among the rows of the method, from 0."""
    chosen: Mapping[str, Any]
    """One per method: the learning rate and n."""
    parts: Mapping[Part, Sequence[Run]]
    """The runs of the chosen settings, one per seed, in the order of the seeds."""
    candidates: int
    """How many pairs of learning rate and n there were."""

    @property
    def runs(self) -> dict[str, Sequence[Run]]:
        """By task, of a choice that has each task once."""
        return {task: runs for (task, _), runs in self.parts.items()}


def settings_of(runs: Iterable[Run]) -> dict[Setting, list[Run]]:
    """The runs by the tables to which they belong."""
    return _grouped(
        runs,
        lambda run: Setting(
            run.result.model, benchmark_of(run.task), bool(run.setting("tune_output_layer"))
        ),
    )


def part_of(run: Run) -> Part:
    return run.task, run.setting("max_train_samples")


def main_parts(runs: Iterable[Run]) -> set[Part]:
    """Each task with all rows, or with the most there are."""
    sizes = _sizes(runs)
    return {(task, None if None in found else max(found)) for task, found in sizes.items()}


def parts_by_size(runs: Iterable[Run]) -> dict[int, set[Part]]:
    """The tasks that were trained on several numbers of rows, by that number."""
    found: dict[int, set[Part]] = defaultdict(set)
    for task, sizes in _sizes(runs).items():
        for size in sizes - {None} if len(sizes) > 1 else ():
            found[size].add((task, size))
    return {size: found[size] for size in sorted(found)}


def _sizes(runs: Iterable[Run]) -> dict[str, set[Any]]:
    return {t: {part_of(r)[1] for r in g} for t, g in _grouped(runs, lambda r: r.task).items()}


def of_parts(runs: Iterable[Run], parts: Collection[Part]) -> list[Run]:
    return [run for run in runs if part_of(run) in parts]


def narrowed(found: Sequence[Choice], parts: Collection[Part]) -> list[Choice]:
    """The choices with these parts alone, less those that have none of them."""
    kept = [
        replace(choice, parts={part: r for part, r in choice.parts.items() if part in parts})
        for choice in found
    ]
    return [choice for choice in kept if choice.parts]


def choices(runs: Sequence[Run], per_method: Sequence[str] = PER_METHOD) -> list[Choice]:
    """A choice for each method, and for each value of the settings that are not chosen between;
    `per_method` are those that are."""
    shown = tuple(key for key in PER_METHOD if key not in per_method)
    found = []
    by_method = _grouped(runs, lambda run: run.method)
    for method in sorted(by_method, key=method_order):
        variants = _variants(by_method[method], shown)
        for number, variant in enumerate(sorted(variants, key=_variant_order)):
            of_variant = variants[variant]
            named = _with_data(variant, of_variant)
            found.append(_choose(method, named, number, of_variant, per_method))
    return found


def _with_data(variant: Variant, runs: Iterable[Run]) -> Variant:
    """With the names of the data where another method has other data of the same task."""
    names = sorted({run.data for run in runs if run.data is not None})
    if not names or "data" in dict(variant):
        return variant
    return (*variant, ("data", ", ".join(names)))


def _variants(runs: list[Run], shown: Sequence[str]) -> dict[Variant, list[Run]]:
    """The runs by what tells rows of a method apart. A task that was trained in one way only
    belongs to every row: without it none would have an average."""
    keys = _varying(runs)
    by_part = [_grouped(part, lambda run: _values(run, keys)) for part in _by_part(runs)]
    several = {values for part in by_part if len(part) > 1 for values in part} or {()}
    found: dict[Variant, list[Run]] = defaultdict(list)
    for part in by_part:
        only = next(iter(part.values())) if len(part) == 1 else []
        for values in several:
            for run in part.get(values, only):
                names = (*shown, *keys)
                found[tuple(zip(names, (*_values(run, shown), *values), strict=True))].append(run)
    return dict(found)


def _variant_order(variant: Variant) -> tuple[Any, ...]:
    return _order(tuple(value for _, value in variant))


def _choose(
    method: str,
    variant: Variant,
    number: int,
    runs: list[Run],
    per_method: Sequence[str],
) -> Choice:
    """The pair with the best validation score in the mean over tasks and numbers of rows. A pair
    for which runs are missing would be judged by other tasks or seeds than the rest, so more runs
    come first."""
    best: tuple[tuple[int, float], tuple[Any, ...], dict[Part, list[Run]]] | None = None
    candidates = _grouped(runs, lambda run: _values(run, per_method))
    for values in sorted(candidates, key=_order):
        by_part = _grouped(candidates[values], part_of)
        kept = {part: _best_of_task(by_part[part]) for part in sorted(by_part, key=_part_order)}
        means = [mean([run.validation_score for run in chosen]) for chosen in kept.values()]
        rank = (sum(map(len, kept.values())), mean(means))
        if best is None or rank > best[0]:
            best = (rank, values, kept)
    assert best is not None
    chosen = dict(zip(per_method, best[1], strict=True))
    return Choice(method, variant, number, chosen, best[2], len(candidates))


def _part_order(part: Part) -> tuple[Any, ...]:
    task, size = part
    return (*task_order(task), math.inf if size is None else size)


def _best_of_task(runs: list[Run]) -> list[Run]:
    """The runs with the bottleneck that is best on this task, one per seed."""
    best: tuple[tuple[int, float], list[Run]] | None = None
    by_value = _grouped(runs, lambda run: _values(run, PER_TASK))
    for values in sorted(by_value, key=_order):
        seeds = {run.result.seed: run for run in reversed(by_value[values])}
        kept = [seeds[seed] for seed in sorted(seeds)]
        rank = (len(kept), mean([run.validation_score for run in kept]))
        if best is None or rank > best[0]:
            best = (rank, kept)
    assert best is not None
    return best[1]


def best_seed(runs: Sequence[Run]) -> Run:
    """The run that is best on validation: the test set chooses nothing."""
    return max(runs, key=lambda run: run.validation_score)


def _varying(runs: list[Run]) -> tuple[str, ...]:
    """The settings that take several values on the same rows of one task; not those that follow
    from others, as the warm-up follows from the epochs."""
    by_part = _by_part(runs)
    keys = [
        key
        for key in VARYING
        if any(len({run.setting(key) for run in part}) > 1 for part in by_part)
    ]
    for key in reversed(keys.copy()):
        rest = [other for other in keys if other != key]
        if rest and all(
            len({_values(run, rest) for run in part}) == len({_values(run, keys) for run in part})
            for part in by_part
        ):
            keys = rest
    return tuple(keys)


def _by_part(runs: list[Run]) -> list[list[Run]]:
    return list(_grouped(runs, part_of).values())


def _values(run: Run, keys: Sequence[str]) -> tuple[Any, ...]:
    return tuple(run.setting(key) for key in keys)


def _order(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sorts settings: what is not set first, then numbers, then the rest by their text."""
    return tuple(
        (0, 0.0, "")
        if value is None
        else (1, float(value), "")
        if isinstance(value, int | float)
        else (2, 0.0, str(value))
        for value in values
    )


def _grouped(runs: Iterable[Run], key: Any) -> dict[Any, list[Run]]:
    found: dict[Any, list[Run]] = defaultdict(list)
    for run in runs:
        found[key(run)].append(run)
    return dict(found)

"""Selection against a search by hand over all combinations."""

from __future__ import annotations

import itertools
import random
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from reading import contents, table_of

from compacter.report.content import make_content
from compacter.report.runs import Found, Run, read_folder
from compacter.report.selection import (
    best_seed,
    choices,
    main_parts,
    narrowed,
    parts_by_size,
    settings_of,
)
from compacter.training.result import Result
from made_runs import make_run

RATES, NS, BOTTLENECKS, SEEDS = (3e-4, 3e-3, 3e-2), (4, 8), (24, 48), (1, 2)
TASKS = ("cola", "mrpc", "rte")


@pytest.mark.parametrize("seed", range(5))
def test_selection_is_that_of_a_search_by_hand(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    table = {}
    for number, key in enumerate(itertools.product(TASKS, RATES, NS, BOTTLENECKS, SEEDS)):
        task, rate, n, bottleneck, run_seed = key
        names = {"cola": ["matthews"], "mrpc": ["accuracy", "f1"], "rte": ["accuracy"]}[task]
        validation = {name: rng.uniform(50, 90) for name in names}
        table[key] = sum(validation.values()) / len(validation)
        make_run(
            tmp_path / str(number),
            task=task,
            method="compacter",
            learning_rate=rate,
            n=n,
            bottleneck=bottleneck,
            seed=run_seed,
            validation=validation,
            test={name: rng.uniform(50, 90) for name in names},
        )

    def of_task(task: str, rate: float, n: int, bottleneck: int) -> float:
        return sum(table[task, rate, n, bottleneck, s] for s in SEEDS) / len(SEEDS)

    best = None
    for rate, n in itertools.product(RATES, NS):
        widths = [max(BOTTLENECKS, key=lambda b: of_task(t, rate, n, b)) for t in TASKS]
        total = sum(of_task(t, rate, n, b) for t, b in zip(TASKS, widths, strict=True))
        if best is None or total > best[0]:
            best = (total, rate, n, widths)
    assert best is not None
    _, rate, n, widths = best

    (choice,) = choices(read_folder(tmp_path).runs)
    assert choice.chosen == {"learning_rate": rate, "n": n}
    assert choice.candidates == len(RATES) * len(NS)
    assert list(choice.runs) == list(TASKS)
    for task, width in zip(TASKS, widths, strict=True):
        assert [run.setting("bottleneck") for run in choice.runs[task]] == [width] * len(SEEDS)
        assert [run.result.seed for run in choice.runs[task]] == list(SEEDS)

    by_n = choices(read_folder(tmp_path).runs, per_method=("learning_rate",))
    assert [dict(row.variant) for row in by_n] == [{"n": n} for n in NS]
    for row, fixed in zip(by_n, NS, strict=True):
        totals = {
            r: sum(max(of_task(t, r, fixed, b) for b in BOTTLENECKS) for t in TASKS) for r in RATES
        }
        assert row.chosen == {"learning_rate": max(totals, key=totals.__getitem__)}


def one_choice(folder: Path) -> tuple[float, list[str]]:
    (choice,) = choices(read_folder(folder).runs)
    return choice.chosen["learning_rate"], [run.id for runs in choice.runs.values() for run in runs]


def test_a_rate_is_not_chosen_for_the_tasks_it_lacks(tmp_path: Path) -> None:
    """The higher rate has failed on the hard task; on the easy one alone it is no better choice."""
    for task, score in (("sst2", 90.0), ("rte", 60.0)):
        scores = {"accuracy": score}
        make_run(tmp_path / f"low-{task}", task=task, learning_rate=1e-3, test=scores)
    make_run(tmp_path / "high", task="sst2", learning_rate=1e-1, test={"accuracy": 91.0})
    assert one_choice(tmp_path) == (1e-3, ["low-sst2", "low-rte"])


def test_the_test_set_chooses_nothing(tmp_path: Path) -> None:
    better, worse = {"accuracy": 80.0}, {"accuracy": 70.0}
    make_run(tmp_path / "a", learning_rate=1e-3, validation=better, test=worse)
    make_run(tmp_path / "b", learning_rate=1e-2, validation=worse, test=better)
    assert one_choice(tmp_path) == (1e-3, ["a"])
    runs = read_folder(tmp_path).runs
    assert best_seed(runs).id == "a"


def test_no_number_is_the_worst_score(tmp_path: Path) -> None:
    make_run(tmp_path / "a", learning_rate=1e-3, validation={"accuracy": float("nan")})
    make_run(tmp_path / "b", learning_rate=1e-2, validation={"accuracy": 1.0})
    assert one_choice(tmp_path) == (1e-2, ["b"])


def test_the_same_run_twice_counts_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_run(tmp_path / name, seed=1)
    assert one_choice(tmp_path)[1] == ["a"]


def test_other_settings_have_rows_of_their_own(tmp_path: Path) -> None:
    """The warm-up follows from the epochs and is not named; epochs that differ between tasks, as
    the paper's do, make no rows."""
    for epochs, warmup in ((3, 9), (6, 18)):
        make_run(tmp_path / f"rte{epochs}", task="rte", epochs=epochs, warmup_steps=warmup)
    make_run(tmp_path / "sst2", task="sst2", method="full", epochs=2)
    make_run(tmp_path / "cola", task="cola", method="full", epochs=20)
    found = choices(read_folder(tmp_path).runs)
    assert [(row.method, row.variant) for row in found] == [
        ("full", ()),
        ("compacter++", (("epochs", 3),)),
        ("compacter++", (("epochs", 6),)),
    ]


def test_a_task_that_was_trained_in_one_way_belongs_to_every_row(tmp_path: Path) -> None:
    for epochs in (2, 6):
        make_run(tmp_path / f"cola{epochs}", task="cola", epochs=epochs, n=4)
    make_run(tmp_path / "mrpc", task="mrpc", epochs=3, n=4)
    runs = read_folder(tmp_path).runs
    found = choices(runs)
    assert [(row.variant, row.number) for row in found] == [
        ((("epochs", 2),), 0),
        ((("epochs", 6),), 1),
    ]
    ids = [[run.id for part in row.runs.values() for run in part] for row in found]
    assert ids == [["cola2", "mrpc"], ["cola6", "mrpc"]]
    make_run(tmp_path / "cola8", task="cola", epochs=2, n=8)
    by_n = choices(read_folder(tmp_path).runs, per_method=("learning_rate",))
    assert [dict(row.variant) for row in by_n] == [
        {"n": 4, "epochs": 2},
        {"n": 4, "epochs": 6},
        {"n": 8, "epochs": 2},
    ]
    assert list(by_n[-1].runs) == ["cola"]  # MRPC has no run with that n


def test_a_rate_is_chosen_once_for_all_numbers_of_rows(tmp_path: Path) -> None:
    """On 100 rows the high rate is the better one, on 1,000 the low one, by more. The epochs follow
    from the rows and make no rows of the table."""
    for size, rate, score in ((100, 1e-3, 60), (100, 1e-1, 62), (1000, 1e-3, 80), (1000, 1e-1, 70)):
        make_run(
            tmp_path / f"{size}-{rate}",
            task="rte",
            max_train_samples=size,
            epochs=10_000 // size,
            learning_rate=rate,
            test={"accuracy": float(score)},
        )
    runs = read_folder(tmp_path).runs
    (choice,) = choices(runs)
    assert (choice.variant, choice.chosen["learning_rate"]) == ((), 1e-3)
    assert list(choice.parts) == [("rte", 100), ("rte", 1000)]
    assert main_parts(runs) == {("rte", 1000)}
    assert parts_by_size(runs) == {100: {("rte", 100)}, 1000: {("rte", 1000)}}
    (small,) = narrowed([choice], {("rte", 100)})
    assert [run.id for run in small.runs["rte"]] == ["100-0.001"]


def test_runs_on_few_rows_do_not_choose_the_rate_of_the_main_table(tmp_path: Path) -> None:
    for rate, score in ((1e-3, 90.0), (1e-2, 80.0)):
        scores = {"accuracy": score}
        make_run(tmp_path / f"all-{rate}", task="rte", learning_rate=rate, test=scores)
    for rows in (100, 500):
        scores = {"accuracy": rows / 10}
        settings = {"max_train_samples": rows, "learning_rate": 1e-2}
        make_run(tmp_path / str(rows), task="rte", test=scores, **settings)  # type: ignore[arg-type]
    content = contents(tmp_path)
    (row,) = table_of(content, "glue-builtin-minilm-scores").rows
    assert row[2].value == 90.0
    (row,) = table_of(content, "glue-builtin-minilm-by-rows").rows
    assert [cell.value for cell in row[2:]] == [10.0, 50.0]


@dataclass(frozen=True)
class Told(Result):
    """A result that tells the settings that its method took."""

    settings: dict[str, Any] = field(default_factory=dict)


def test_what_the_recipe_left_open_is_what_the_method_took(tmp_path: Path) -> None:
    """n left open and n given are one choice; the width of the model's own is shown."""
    for seed, n in ((1, None), (2, 4)):
        make_run(tmp_path / str(seed), seed=seed, n=n)
    taken = {"settings": {"n": 4, "bottleneck": 24}}
    runs = [
        replace(run, result=Told(**(asdict(run.result) | taken)))
        for run in read_folder(tmp_path).runs
    ]
    (choice,) = choices(runs)
    assert choice.chosen == {"learning_rate": 3e-3, "n": 4}
    assert choice.candidates == 1
    assert len(choice.runs["builtin/roles"]) == 2
    found = Found(tmp_path, tuple(runs), (), 0, None, 0, 0)
    content = make_content(found)
    (row,) = next(table for table in content.tables if table.name.endswith("settings")).rows
    assert [cell.text for cell in row[:4]] == ["Compacter++ (n=4)", "0.003", "4", "24"]
    assert content.all_runs is not None
    column = [column.title for column in content.all_runs.columns].index("n")
    assert [row[column].text for row in content.all_runs.rows] == ["4", "4"]
    assert "n" not in content.common  # the recipes differ


def make_own(
    folder: Path, name: str, file: str, digest: str, seed: int = 1, **settings: Any
) -> None:
    own = {"task": "custom", "train_file": file, "text_columns": ("text",), "seed": seed}
    make_run(folder / name, changed={"data_fingerprint": digest}, **own, **settings)


def test_runs_on_other_data_have_rows_of_their_own(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_own(tmp_path, f"a{seed}", "x/old.csv", "a", seed)
        make_own(tmp_path, f"b{seed}", "x/new.csv", "b", seed)
    found = choices(read_folder(tmp_path).runs)
    assert [row.variant for row in found] == [(("data", "new.csv"),), (("data", "old.csv"),)]
    assert [[run.id for run in row.runs["custom"]] for row in found] == [["b1", "b2"], ["a1", "a2"]]


def test_data_of_the_same_name_is_told_apart_by_its_fingerprint(tmp_path: Path) -> None:
    make_own(tmp_path, "a", "x/rows.csv", "1234567")
    make_own(tmp_path, "b", "y/rows.csv", "7654321")
    found = choices(read_folder(tmp_path).runs)
    assert [dict(row.variant)["data"] for row in found] == ["rows.csv 123456", "rows.csv 765432"]


def test_other_seeds_may_draw_other_rows(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_own(tmp_path, f"a{seed}", "rows.csv", f"{seed}", seed, max_train_samples=10)
    (choice,) = choices(read_folder(tmp_path).runs)
    assert choice.variant == ()


def test_where_all_rows_are_used_seeds_do_not_explain_other_data(tmp_path: Path) -> None:
    for seed in (1, 2):
        make_own(tmp_path, f"a{seed}", "rows.csv", f"{seed}23456", seed)
    found = choices(read_folder(tmp_path).runs)
    assert [dict(row.variant)["data"] for row in found] == ["rows.csv 123456", "rows.csv 223456"]


def test_methods_on_other_data_say_so(tmp_path: Path) -> None:
    make_own(tmp_path, "a", "x/reviews.csv", "1", method="full")
    make_own(tmp_path, "b", "x/news.csv", "2", method="compacter++")
    make_run(tmp_path / "c", task="other", method="full", train_file="o.csv", text_columns=("t",))
    found = choices(read_folder(tmp_path).runs)
    assert [row.variant for row in found] == [(("data", "reviews.csv"),), (("data", "news.csv"),)]
    content = contents(tmp_path)
    scores = next(table for table in content.tables if table.name.endswith("scores"))
    assert [row[0].text for row in scores.rows] == [
        "Full fine-tuning (data=reviews.csv)",
        "Compacter++ (data=news.csv)",
    ]
    assert "in one way only" not in scores.caption
    efficiency = next(table for table in content.tables if table.name.endswith("efficiency"))
    assert efficiency.rows[1][5].value is None, "against full fine-tuning on other data"


def test_runs_are_told_apart_by_model_benchmark_and_output_layer(tmp_path: Path) -> None:
    make_run(tmp_path / "a", task="rte")
    make_run(tmp_path / "b", task="cola")
    make_run(tmp_path / "c", task="rte", tune_output_layer=True)
    make_run(tmp_path / "d", task="sst2", max_train_samples=100)
    make_run(tmp_path / "e", task="copa")
    make_run(tmp_path / "f", task="mine", train_file="x.csv", text_columns=("t",))
    make_run(tmp_path / "g", task="rte", model="t5-base")
    found = settings_of(read_folder(tmp_path).runs)

    def ids(runs: list[Run]) -> str:
        return "".join(run.id for run in runs)

    assert sorted(map(ids, found.values())) == ["abd", "c", "e", "f", "g"]

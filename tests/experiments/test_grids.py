"""Grids: which runs they make, the paper's own, and one clear line for what does not fit."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from compacter.errors import CompacterError, ExperimentError, TrainingError
from compacter.experiments.grid import Dependent, Grid, parse_axis, ready_grids
from compacter.experiments.plan import label
from compacter.methods import METHODS
from compacter.methods.attach import settings_of
from compacter.paper import tables
from compacter.tasks import TASKS

RATES = (3e-5, 3e-4, 3e-3, 3e-2, 3e-1)
GLUE = {name for name, task in TASKS.items() if task.benchmark == "glue"}
SUPERGLUE = {name for name, task in TASKS.items() if task.benchmark == "superglue"}


def grid(**axes):
    return Grid.make({"task": "rte", "axes": axes})


def test_every_combination_once():
    made = Grid.make(
        {"model": "t5-base", "axes": {"method": ["full", "compacter"], "seed": [1, 2, 3]}}
    )
    found = [(recipe.method, recipe.seed, recipe.model) for recipe in made.recipes()]
    assert found == [(m, s, "t5-base") for m in ("full", "compacter") for s in (1, 2, 3)]


def test_a_setting_that_a_method_has_not_makes_no_runs_of_its_own():
    made = grid(method=["full", "adapter", "compacter"], bottleneck=[24, 48], n=[4, 8, 12])
    count = Counter(recipe.method for recipe in made.recipes())
    assert count == {"full": 1, "adapter": 2, "compacter": 6}
    assert next(r for r in made.recipes() if r.method == "full").bottleneck is None


@pytest.mark.parametrize(
    ("method", "setting", "own", "other"),
    [
        ("intrinsic-said", "intrinsic_dim", 20_000, 400),
        ("compacter", "rank", 1, 2),
        ("prompt-tuning-r", "num_tokens", 100, 20),
        ("adapter-drop", "drop_layers", 5, 0),
        ("adapter", "drop_layers", 0, 5),
        ("compacter++", "use_bias", True, False),
        ("bitfit", "tune_output_layer", False, True),
    ],
)
def test_the_methods_own_setting_is_the_same_run_given_or_not(method, setting, own, other):
    made = Grid.make({"method": method, "axes": {setting: [None, own, other]}})
    assert [getattr(recipe, setting) for recipe in made.recipes()] == [None, other]


def test_what_depends_on_the_model_stays_as_it_is_given():
    made = grid(method=["compacter"], n=[4], bottleneck=[24])
    assert [(recipe.n, recipe.bottleneck) for recipe in made.recipes()] == [(4, 24)]


def test_an_axis_that_depends_on_another():
    made = grid(
        learning_rate={"full": [1e-4], "others": [1e-3, 1e-2]},
        method=["full", "compacter", "bitfit"],
    )
    found = [(recipe.method, recipe.learning_rate) for recipe in made.recipes()]
    assert found == [
        ("full", 1e-4),
        ("compacter", 1e-3),
        ("compacter", 1e-2),
        ("bitfit", 1e-3),
        ("bitfit", 1e-2),
    ]


def test_an_axis_names_what_it_depends_on_where_values_do_not_tell():
    made = grid(seed=[1, 2, 3], n=[1, 2], method=["compacter"], epochs={"by": "n", 1: 5, 2: 6})
    assert {(r.n, r.epochs) for r in made.recipes()} == {(1, 5), (2, 6)}
    assert len(made.recipes()) == 6
    assert Grid.make(made.plain()) == made
    told = grid(seed=[1, 2, 3], n=[4, 5], method=["compacter"], epochs={4: 5, 5: 6})
    cut = told.with_axes({"seed": [4, 5]})
    assert Grid.make(cut.plain()).check() == cut.check(), "seeds look like values of n now"


def test_an_axis_may_depend_on_a_key_with_one_value():
    table = {"t5-base": [24, 48], "t5-small": [16]}
    values = {"model": "t5-base", "method": "compacter", "axes": {"bottleneck": table}}
    made = Grid.make(values)
    assert [r.bottleneck for r in made.recipes()] == [24, 48]
    assert [r.bottleneck for r in made.with_values({"model": "t5-small"}).recipes()] == [16]


def test_values_and_axes_replace_those_of_the_grid():
    made = grid(method=["full", "compacter"], seed=[1, 2])
    assert len(made.with_values({"seed": 7}).recipes()) == 2
    cut = made.with_axes({"method": ["bitfit"], "task": ["cola", "sst2"]}).recipes()
    assert [(r.method, r.task, r.seed) for r in cut] == [
        ("bitfit", "cola", 1),
        ("bitfit", "sst2", 1),
        ("bitfit", "cola", 2),
        ("bitfit", "sst2", 2),
    ]


def test_what_is_written_is_read_again():
    for name in ready_grids():
        made = Grid.read(name)
        assert Grid.make(made.plain()) == made


RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize(
    "path", [*ready_grids().values(), *sorted(RESULTS.glob("*.yaml"))], ids=lambda path: path.stem
)
def test_a_grid_that_is_cut_down_is_read_again(path):
    whole = Grid.read(path)
    axes = [item for block in whole.blocks for item in block.axes.items()]
    for axis, values in axes:
        for value in () if isinstance(values, Dependent) else values:
            for cut in (whole.with_axes({axis: [value]}), whole.with_values({axis: value})):
                assert Grid.make(cut.plain()).check() == cut.check(), (axis, value)


def test_what_is_written_is_what_can_occur():
    made = grid(
        rank={1: [5], 2: [6]},
        n={"full": [1], "others": [2]},
        method=["full", "compacter", "bitfit"],
        seed={1: [7], 2: [8, 9]},
    )
    cut = made.with_axes({"method": ["compacter", "bitfit"]})
    written = cut.plain()["axes"]
    assert written == {"method": ["compacter", "bitfit"], "n": [2], "rank": [6], "seed": [8, 9]}
    assert Grid.make(cut.plain()).check() == cut.check(), "in the same order"
    cut = made.with_axes({"method": ["full", "bitfit"]})
    assert cut.plain()["axes"]["n"] == {"by": "method", "full": [1], "others": [2]}
    assert Grid.make(cut.plain()).check() == cut.check()


STUDY = {
    "task": "rte",
    "method": "compacter",
    "learning_rate": 3e-3,
    "axes": [
        {"method": ["full", "compacter"], "learning_rate": {"full": [1e-4], "others": [3e-3]}},
        {"learning_rate": [1e-3, 3e-3]},
        {"n": [8], "seed": [1, 2]},
    ],
}


def test_blocks_of_axes_are_taken_together_each_around_the_same_values():
    made = Grid.make(STUDY)
    assert [(r.method, r.learning_rate, r.n, r.seed) for r in made.recipes()] == [
        ("full", 1e-4, None, 42),
        ("compacter", 3e-3, None, 42),  # once, though two blocks have it
        ("compacter", 1e-3, None, 42),
        ("compacter", 3e-3, 8, 1),
        ("compacter", 3e-3, 8, 2),
    ]
    assert made.varied == ["method", "learning_rate", "n", "seed"]


def test_flags_hold_for_all_blocks():
    made = Grid.make(STUDY)
    cut = made.with_values({"learning_rate": 1e-2, "seed": 7})
    assert [(r.method, r.learning_rate, r.n, r.seed) for r in cut.recipes()] == [
        ("full", 1e-2, None, 7),
        ("compacter", 1e-2, None, 7),
        ("compacter", 1e-2, 8, 7),
    ]
    for some in (made, cut, made.with_axes({"seed": [1, 2]}), made.with_values({"n": 4})):
        assert Grid.make(some.plain()).check() == some.check()


def test_blocks_keep_their_own_of_the_tasks_and_methods_asked_for():
    blocks = [
        {"task": ["rte"], "warmup_steps": [0, 50]},
        {"task": ["rte", "cola"], "method": ["full"], "learning_rate": [1e-4]},
    ]
    made = Grid.make({"task": "mrpc", "method": "compacter", "axes": [*blocks, {"seed": [1, 2]}]})

    def runs(**axes):
        return [(r.task, r.method, r.seed) for r in made.with_axes(axes).recipes()]

    assert runs(task=["rte"]) == [*[("rte", "compacter", 42)] * 2, ("rte", "full", 42)]
    assert runs(task=["cola"], method=["full"]) == [("cola", "full", 42)]
    assert runs(method=["compacter"]) == [
        *[("rte", "compacter", 42)] * 2,
        *[("mrpc", "compacter", seed) for seed in (1, 2)],
    ]
    assert {task for task, _, _ in runs(task=["sst2"])} == {"sst2"}  # none has it: all are changed
    assert len(runs(seed=[1, 2])) == 2 * (2 + 2 + 1)
    with pytest.raises(ExperimentError, match="task='sst2' is in no block of the grid, unlike"):
        runs(task=["rte", "sst2"])


def test_labels_tell_runs_apart():
    made = grid(method=["full", "compacter"], bottleneck=[8, 16], seed=[1])
    assert [label(made, recipe) for recipe in made.recipes()] == [
        "full rte seed=1",
        "compacter rte bottleneck=8 seed=1",
        "compacter rte bottleneck=16 seed=1",
    ]


def test_an_axis_of_the_command_line():
    assert parse_axis("learning-rate=3e-4, 0.003") == ("learning_rate", (3e-4, 3e-3))
    assert parse_axis("seed=1,2") == ("seed", (1, 2))
    assert parse_axis("method=full,compacter++") == ("method", ("full", "compacter++"))
    assert parse_axis("bf16=true,false") == ("bf16", (True, False))


# The paper's


BY_BOTTLENECK = {"adapter", "pfeiffer-adapter", "adapter-drop", "adapter-lowrank"}
BY_N = {"phm-adapter", "compacter", "compacter++"}


def per_method(methods):
    """With three bottlenecks and three n."""
    return sum(9 if m in BY_N else 3 if m in BY_BOTTLENECK else 1 for m in methods)


@pytest.mark.parametrize(
    ("name", "model", "tasks", "bottlenecks", "ns"),
    [
        ("glue", "t5-base", GLUE, {24, 48, 96}, {4, 8, 12}),
        ("superglue", "t5-base", SUPERGLUE, {24, 48, 96}, {4, 8, 12}),
        ("glue-small", "t5-small", GLUE, {16, 32, 64}, {4, 8, 16}),
    ],
)
def test_the_papers_score_grids(name, model, tasks, bottlenecks, ns):
    recipes = Grid.read(name).recipes()
    assert len(recipes) == len(tasks) * len(RATES) * per_method(METHODS)
    assert {r.model for r in recipes} == {model}
    assert {r.task for r in recipes} == tasks
    assert {r.method for r in recipes} == set(METHODS)
    assert {r.learning_rate for r in recipes} == set(RATES)
    assert {r.bottleneck for r in recipes} - {None} == bottlenecks
    assert {r.n for r in recipes} - {None} == ns
    for recipe in recipes:
        assert recipe.method_settings().keys() <= settings_of(METHODS[recipe.method])


def test_the_papers_grid_with_the_output_layer():
    recipes = Grid.read("output-layer").recipes()
    methods = set(tables()["learning_rates_output_layer_tuned"])
    assert {r.method for r in recipes} == methods
    assert all(r.tune_output_layer for r in recipes)
    assert len(recipes) == len(GLUE) * len(RATES) * per_method(methods)


def test_the_papers_ablations():
    by_n = Grid.read("ablation-n").recipes()
    assert {(r.method, r.n) for r in by_n} == {
        (row["method"], row["n"]) for row in tables()["superglue_t5_base_by_n"]
    }
    assert {r.task for r in by_n} == GLUE | SUPERGLUE
    assert len(by_n) == 3 * 3 * 3 * 14
    dims = Grid.read("intrinsic-dim").recipes()
    printed = [row.get("intrinsic_dim") for row in tables()["glue_t5_base_ablations"]]
    own = METHODS["intrinsic-said"].settings["intrinsic_dim"]
    assert {r.intrinsic_dim or own for r in dims} == {dim for dim in printed if dim}
    assert len(dims) == 5 * 8


def test_the_papers_low_resource_grid_leaves_out_what_a_task_has_not():
    recipes = Grid.read("low-resource").recipes()
    epochs = {100: 1000, 500: 200, 1000: 100, 2000: 50, 4000: 25}
    assert {(r.max_train_samples, r.epochs) for r in recipes} == set(epochs.items())
    assert {(r.batch_size, r.save_steps) for r in recipes} == {(40, 250)}
    fitting = sum(size <= TASKS[task].sizes[0] for task in GLUE for size in epochs)
    assert fitting == 8 * 5 - 2, "RTE and MRPC have fewer than 4,000 rows"
    assert len(recipes) == fitting * 2 * 5
    one_size = Grid.read("low-resource").with_values({"max_train_samples": 4000, "epochs": 1})
    assert len(one_size.recipes()) == 8 * 2 * 5, "asked for by name, all rows are taken"


def test_the_batches_of_the_efficiency_grid_fill_24_gigabytes():
    recipes = {r.method: r for r in Grid.read("efficiency").recipes()}
    for row in tables()["efficiency_t5_base_mnli"]:
        name = row["method"] if row["method"] in METHODS else "prompt-tuning-r"
        recipe = recipes.pop(name)
        assert (recipe.task, recipe.epochs) == ("mnli", 1)
        assert recipe.batch_size == 24 * 1024 // row["memory_mb"]
    assert not recipes


def test_the_table_of_grids_in_the_docs(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| ([\d,]+) \|", page, re.MULTILINE)
    counts = {name: int(count.replace(",", "")) for name, count in rows}
    assert counts == {name: len(Grid.read(name).recipes()) for name in ready_grids()}
    examples = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    for example, count in zip(examples, (54, 5), strict=True):
        (tmp_path / "grid.yaml").write_text(example)
        assert len(Grid.read(tmp_path / "grid.yaml").recipes()) == count
    assert "= 54." in page
    assert "five runs" in page


def test_every_ready_grid_says_what_it_is():
    for name, path in ready_grids().items():
        assert path.read_text().startswith("# "), name
    assert len(ready_grids()) == 8


# What does not fit


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("axes: {learning_rat: [1]}", "no axis 'learning_rat'; did you mean 'learning_rate'"),
        ("axes: {xyzzy: [1]}", "no axis 'xyzzy'; expected a key of a recipe"),
        ("axes: {seed: 3}", "axis 'seed' holds 3; expected a list"),
        ("axes: {method: full}", "axis 'method' holds 'full'; expected a list"),
        ("axes: {seed: []}", "axis 'seed' is empty"),
        ("axes: [seed]", "axes holds 'seed'; expected lines of"),
        ("axes: 3", "axes holds 3; expected lines of"),
        ("axes: []", "nothing to vary"),
        ("seed: 1\naxes: [{seed: [2]}, {sed: [1]}]", "no axis 'sed'; did you mean 'seed'"),
        ("axes: {seed: [1, two]}", "seed='two' does not fit"),
        ("axes: {epochs: [0]}", "epochs=0 does not fit"),
        ("seed: 1\naxes: {seed: [1]}", "'seed' has one value and is an axis too"),
        ("sed: 1\naxes: {seed: [1]}", "no setting 'sed' .* did you mean 'seed'"),
        ("axes: {method: [compactor]}", "no method 'compactor'; did you mean 'compacter'"),
        ("axes: {task: [rtee]}", "rtee.*rte"),
        ("model: t5-base", "there is nothing to vary"),
        ("axes: {epochs: {a: [1], b: [2]}}", r"keys \(a, b\) are values of no other axis"),
        (
            "axes: {seed: [1, 2], n: [1, 2], epochs: {1: 5, 2: 6}}",
            "are values of several: seed, n; say which with 'by: seed' among them",
        ),
        ("axes: {seed: [1], epochs: {by: sed, 1: 5}}", "no axis 'sed'; did you mean 'seed'"),
        ("axes: {n: [1], epochs: {by: [n], 1: 5}}", r"no axis .*\['n'\]"),
        (
            "axes: {n: [1, 2], epochs: {by: n, 1: 5, 3: 6}}",
            "depends on 'n' and has values for 3; expected values of 'n': 1, 2, or 'others'",
        ),
        ("axes: {epochs: {by: epochs, 5: 5}}", "depend on each other in a circle"),
        (
            "axes: {method: [full, bitfit], learning_rate: {full: [1.0e-3]}}",
            "axis 'learning_rate' has no values for method='bitfit'; it has some for full",
        ),
        ("axes: {n: {1: [2]}, rank: {2: [1]}}", "depend on each other in a circle"),
        (
            "text_columns: [a]\naxes: {seed: [1], method: {ful: [full]}}",
            r"keys \(ful\) are values of no other axis",
        ),
        (
            "labels: [a, b]\naxes: {seed: {by: labels, a: [1]}}",
            r"no values for labels=\['a', 'b'\]",
        ),
        ("- a", "the grid .* holds a list"),
        ("a: [", "the grid .* is not YAML"),
    ],
)
def test_what_does_not_fit(text, message, tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text(text)
    with pytest.raises(CompacterError, match=message):
        Grid.read(path).recipes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed", "expected KEY=VALUE"),
        ("seed=", "expected KEY=VALUE"),
        ("sede=1", "no axis 'sede'; did you mean 'seed'"),
        ("seed=1,x", "seed='x' does not fit"),
    ],
)
def test_axes_of_the_command_line_that_do_not_fit(text, message):
    with pytest.raises(ExperimentError, match=message):
        parse_axis(text)


def test_a_grid_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrainingError, match=r"no grid 'gleu', .* did you mean 'glue'"):
        Grid.read("gleu")
    with pytest.raises(TrainingError, match=r"the grid 'nothing.yaml' cannot be read"):
        Grid.read("nothing.yaml")

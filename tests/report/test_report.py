"""The report of runs that were made up, read back number by number."""

from __future__ import annotations

import csv
import html
import itertools
import json
import random
import re
import statistics
from html.parser import HTMLParser
from pathlib import Path

import pytest
from reading import contents, rows_of, table_of

from compacter.paper import tables
from compacter.report import write_report
from compacter.report.cells import BEST_OF, DIVERGED, MINUS
from compacter.report.content import Content
from made_runs import make_run, make_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Content]:
    return write_report(make_study(tmp_path_factory.mktemp("study")))


# Numbers


def test_means_deviations_and_averages(tmp_path: Path) -> None:
    scores = {
        1: {"cola": {"matthews": 50.0}, "mrpc": {"accuracy": 80.0, "f1": 86.0}},
        2: {"cola": {"matthews": 54.0}, "mrpc": {"accuracy": 83.0, "f1": 90.0}},
    }
    for seed, by_task in scores.items():
        for task, test in by_task.items():
            make_run(tmp_path / f"{task}{seed}", task=task, seed=seed, test=test)
    table = table_of(contents(tmp_path), "glue-builtin-minilm-scores")
    (row,) = table.rows
    assert [column.title for column in table.columns[2:]] == ["CoLA", "MRPC", "MRPC", "Average"]
    values = [(cell.value, cell.deviation) for cell in row[2:]]
    columns = [[50.0, 54.0], [80.0, 83.0], [86.0, 90.0]]
    expected = [(statistics.mean(c), statistics.stdev(c)) for c in columns]
    by_seed = [statistics.mean(c) for c in zip(*columns, strict=True)]
    expected.append((statistics.mean(by_seed), statistics.stdev(by_seed)))
    for found, wanted in zip(values, expected, strict=True):
        assert found == pytest.approx(wanted)


def test_the_papers_figures_stand_beside_ours(study: tuple[Path, Content]) -> None:
    table = table_of(study[1], "glue-t5-base-scores")
    assert "Table 1" in table.title
    rows = list(table.rows)
    assert len(rows) == 12
    for row, printed in zip(rows, tables()["glue_t5_base"], strict=True):
        scores = printed["scores"]
        flat = [x for v in scores.values() for x in (v if isinstance(v, list) else [v])]
        assert [cell.paper for cell in row[1:]] == [printed["trained_percent"], *flat]
    ours = table_of(study[1], "builtin-builtin-minilm-scores")
    assert all(cell.paper is None for row in ours.rows for cell in row)


def test_some_tasks_are_compared_with_the_same_tasks_of_the_paper(tmp_path: Path) -> None:
    for task in ("cola", "rte"):
        make_run(tmp_path / task, task=task, model="google-t5/t5-base", method="full")
    table = table_of(contents(tmp_path), "glue-google-t5-t5-base-scores")
    assert table.rows[0][-1].paper == pytest.approx((61.76 + 71.94) / 2)


def test_the_best_is_bold_and_a_missing_task_gives_no_average(tmp_path: Path) -> None:
    make_run(tmp_path / "a", task="cola", method="full", test={"matthews": 50.0})
    make_run(tmp_path / "b", task="rte", method="full", test={"accuracy": 70.0})
    make_run(tmp_path / "c", task="cola", method="adapter", test={"matthews": 60.0})
    rows = rows_of(table_of(contents(tmp_path), "glue-builtin-minilm-scores"))
    full, adapter = rows["Full fine-tuning"], rows["Adapter"]
    assert [cell.best for cell in adapter[2:]] == [True, False, False]
    assert (full[-1].value, adapter[-1].value) == (60.0, None)
    assert "RTE missing" in adapter[-1].note


def test_differences_to_full_are_marked(study: tuple[Path, Content]) -> None:
    rows = rows_of(table_of(study[1], "builtin-builtin-minilm-differences"))
    assert set(rows) == {"Adapter", "Compacter++"}
    assert all("*" in cell.marks for cell in rows["Compacter++"][1:])
    assert not any(cell.marks for cell in rows["Adapter"][1:])
    scores = rows_of(table_of(study[1], "builtin-builtin-minilm-scores"))
    for place, cell in enumerate(rows["Compacter++"][1:], start=2):
        difference = scores["Compacter++"][place].value - scores["Full fine-tuning"][place].value
        assert cell.value == pytest.approx(difference)


def test_scores_by_training_rows(study: tuple[Path, Content]) -> None:
    table = table_of(study[1], "glue-builtin-minilm-by-rows")
    assert [column.title for column in table.columns[2:]] == ["100", "500", "1,000"]
    assert [row[1].text for row in table.rows[::2]] == ["Average", "CoLA", "SST-2"]
    average, cola, sst2 = (row[2].value for row in table.rows[::2])
    assert average == pytest.approx((cola + sst2) / 2)
    figures = [figure for figure in study[1].figures if "-rows-" in figure.name]
    assert len(figures) == 3
    assert all(figure.svg.count('class="band"') == 2 for figure in figures)


def test_best_of_seeds_is_chosen_on_validation_and_marked(tmp_path: Path) -> None:
    for seed, validation, test in ((1, 70.0, 90.0), (2, 80.0, 60.0)):
        scores = {"validation": {"accuracy": validation}, "test": {"accuracy": test}}
        make_run(tmp_path / str(seed), task="rte", seed=seed, **scores)  # type: ignore[arg-type]
    name = "glue-builtin-minilm-scores"
    cell = table_of(contents(tmp_path, best_of_seeds=True), name).rows[0][2]
    assert (cell.text, cell.marks, cell.deviation) == ("60.00", BEST_OF, None)
    mean = table_of(contents(tmp_path), name).rows[0][2]
    assert (mean.text, mean.marks) == ("75.00", "")


def test_best_of_seeds_is_said_wherever_it_is_shown(tmp_path: Path) -> None:
    for task, size, seed in itertools.product(("rte", "sst2"), (100, 500), (1, 2)):
        scores = {"accuracy": 40.0 * seed}
        name = f"{task}-{size}-{seed}"
        make_run(tmp_path / name, task=task, seed=seed, max_train_samples=size, test=scores)
    for best_of_seeds, score, mark in ((True, 80.0, BEST_OF), (False, 60.0, "")):
        content = contents(tmp_path, best_of_seeds=best_of_seeds)
        average = table_of(content, "glue-builtin-minilm-scores").rows[0][-1]
        by_rows = table_of(content, "glue-builtin-minilm-by-rows")
        for cell in (average, *(cell for row in by_rows.rows for cell in row[2:])):
            assert (cell.value, cell.marks) == (score, mark)
        drawn = [f.caption for f in content.figures if "-rows-" in f.name or "-curve-" in f.name]
        assert len(drawn) == 3 + 2
        for caption in (by_rows.caption, *drawn):
            assert ("The best of several seeds" in caption) == best_of_seeds
            assert ("Mean over seeds" in caption) != best_of_seeds


def test_a_table_by_n_where_there_are_several(tmp_path: Path) -> None:
    for n, score in ((4, 70.0), (8, 80.0)):
        test = {"accuracy": score}
        make_run(tmp_path / str(n), task="rte", model="t5-base", method="compacter", n=n, test=test)
    content = contents(tmp_path)
    assert [row[0].text for row in table_of(content, "glue-t5-base-by-n").rows] == [
        "Compacter (n=4)",
        "Compacter (n=8)",
    ]
    assert [row[0].text for row in table_of(content, "glue-t5-base-scores").rows] == [
        "Compacter (n=8)"
    ]


def test_rows_of_one_method_have_averages_and_markers(tmp_path: Path) -> None:
    for epochs in (2, 6):
        make_run(tmp_path / f"cola{epochs}", task="cola", epochs=epochs)
    make_run(tmp_path / "mrpc", task="mrpc", epochs=3)
    page, content = write_report(tmp_path)
    table = table_of(content, "glue-builtin-minilm-scores")
    assert all(cell.text == "80.00" for row in table.rows for cell in row[2:])
    assert "epochs=3 in all rows of the method" in table.rows[0][3].note
    assert "in one way only" in table.caption
    (section,) = content.sections
    assert [number for _, _, number in section.legend] == [0, 1]
    for figure in (section.curves[0].svg, page.read_text(encoding="utf-8").split("legend")[-1]):
        first, second = figure.split('class="series')[1:3]
        assert "<circle" in first
        assert "<polygon" in second


def test_diverged_runs_and_scores_of_validation_are_told(tmp_path: Path) -> None:
    reason = "the loss was no number at step 7"
    changed = {"status": "diverged", "test": {}, "warnings": [reason]}
    make_run(tmp_path / "a", task="rte", changed=changed)
    content = contents(tmp_path)
    assert content.failures is not None
    (failure,) = content.failures.rows
    assert failure[0].text == "a"
    assert f"diverged: {reason}" in [cell.text for cell in failure]
    table = table_of(content, "glue-builtin-minilm-scores")
    assert table.columns[2].below == "acc., validation"
    assert DIVERGED in table.rows[0][2].marks


def test_a_run_without_scores_has_no_average(tmp_path: Path) -> None:
    make_run(tmp_path / "a", changed={"test": {}, "validation": {}, "score": None, "curve": []})
    (section,) = contents(tmp_path).sections
    assert section.summary == "No method has finished all tasks."


# The page


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_user_text_is_never_markup(study: tuple[Path, Content]) -> None:
    text = study[0].read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(text)
    assert [tag for tag, _ in reader.tags].count("script") == 2
    assert not any(tag == "img" for tag, _ in reader.tags)
    assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)
    assert html.escape("<script>alert(1)</script>") in text
    assert "\\u003cscript\\u003e" in text
    markdown = (study[0].parent / "report.md").read_text(encoding="utf-8")
    assert "\\<script\\>" in markdown
    assert "<script" not in markdown.replace("\\<", "")
    latex = (study[0].parent / "report.tex").read_text(encoding="utf-8")
    assert r"\textless{}script\textgreater{}" in latex


def test_the_page_needs_nothing_from_elsewhere(study: tuple[Path, Content]) -> None:
    text = study[0].read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)=[\"']?(https?:|//)", text)
    assert not re.search(r"@import|url\(", text)


def test_failed_runs_are_shown_with_their_errors(study: tuple[Path, Content]) -> None:
    text = study[0].read_text(encoding="utf-8")
    assert "1 failed" in text
    assert html.escape("loss is <img src=x onerror=alert(1)> & no number") in text
    assert study[1].failures is not None
    assert study[1].failures.rows[0][0].text == "broken"


def test_the_data_of_the_page_holds_every_recipe(study: tuple[Path, Content]) -> None:
    text = study[0].read_text(encoding="utf-8")
    found = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    data = json.loads(found[1])
    assert len(data["runs"]) == len(study[1].runs)
    for run, (settings, score, loss, best, _) in zip(study[1].runs, data["runs"], strict=True):
        assert {**data["common"], **settings} == run.result.recipe
        assert score[0] == [20, 40]
        assert len(loss[0]) == 8
        assert best == 40


def test_figures_say_their_values(study: tuple[Path, Content]) -> None:
    (figure,) = (f for f in study[1].figures if f.name == "builtin-builtin-minilm-figure-1")
    titles = re.findall(r"<title>(.*?)</title>", figure.svg)
    rows = rows_of(table_of(study[1], "builtin-builtin-minilm-scores"))
    assert f"Compacter++: {rows['Compacter++'][-1].text}, 0.047% trained, 28.1 MB per row" in titles
    assert figure.svg.count('tabindex="0"') == 3
    file = study[0].parent / "figures" / f"{figure.name}.svg"
    assert file.read_text(encoding="utf-8").startswith('<svg xmlns="http://www.w3.org/2000/svg"')


# Other files


def test_csv_holds_plain_numbers(study: tuple[Path, Content]) -> None:
    path = study[0].parent / "tables" / "glue-t5-base-scores.csv"
    rows = list(csv.DictReader(path.open(encoding="utf-8")))
    table = table_of(study[1], "glue-t5-base-scores")
    assert len(rows) == 12
    assert float(rows[0]["CoLA Matthews"]) == pytest.approx(table.rows[0][2].value)
    assert float(rows[0]["CoLA Matthews paper"]) == 61.76
    assert float(rows[0]["Average deviation"]) > 0
    differences = study[0].parent / "tables" / "builtin-builtin-minilm-differences.csv"
    row = next(csv.DictReader(differences.open(encoding="utf-8")))
    low, middle, high, p = (float(row[f"tone{end}"]) for end in (" low", "", " high", " p"))
    assert low < middle < high
    assert 0 < p <= 1
    settings = study[0].parent / "tables" / "glue-t5-base-settings.csv"
    assert next(csv.DictReader(settings.open(encoding="utf-8")))["Learning rate paper"] == "0.0003"


def test_whole_numbers_in_csv_keep_all_digits(tmp_path: Path) -> None:
    for seed in (123456788, 123456789):
        make_run(tmp_path / str(seed), seed=seed, changed={"trainable": 222_903_552})
    tables = write_report(tmp_path)[0].parent / "tables"
    for name, number in (("runs", "123456789"), ("builtin-builtin-minilm-efficiency", "222903552")):
        with (tables / f"{name}.csv").open(encoding="utf-8") as file:
            assert number in list(csv.reader(file))[-1]


def test_markdown_and_latex_hold_the_same_cells(study: tuple[Path, Content]) -> None:
    text = table_of(study[1], "builtin-builtin-minilm-scores").rows[0][-1].text
    folder = study[0].parent
    assert f"**{text}**" in (folder / "report.md").read_text(encoding="utf-8")
    latex = (folder / "report.tex").read_text(encoding="utf-8")
    assert rf"\textbf{{{text}}}" in latex
    assert latex.count(r"\begin{tabular}") == latex.count(r"\bottomrule")
    for link in re.findall(r"\]\((figures/.*?)\)", (folder / "report.md").read_text("utf-8")):
        assert (folder / link).exists()


def test_a_blank_stands_before_what_follows_a_number(study: tuple[Path, Content]) -> None:
    cell = table_of(study[1], "builtin-builtin-minilm-differences").rows[0][1]
    folder, text = study[0].parent, f"{cell.text} ({cell.below})"
    assert text in (folder / "report.md").read_text(encoding="utf-8")
    assert text.replace(MINUS, "$-$") in (folder / "report.tex").read_text(encoding="utf-8")
    cell = table_of(study[1], "glue-t5-base-scores").rows[1][2]
    text = f"{cell.text} ± {cell.deviation:.2f} ({cell.second})"
    assert text in (folder / "report.md").read_text(encoding="utf-8")


# Many runs


def test_a_page_of_a_thousand_runs_is_of_bounded_size(tmp_path: Path) -> None:
    rng = random.Random(0)
    gold = [i % 2 for i in range(500)]
    curve = [
        {"step": step, "loss": 1 / step, "eval_score": 80 - 100 / step}
        for step in range(10, 5010, 10)
    ]
    for number in range(1000):
        method = ("full", "adapter", "compacter", "compacter++")[number % 4]
        make_run(
            tmp_path / "runs" / str(number),
            method=method,
            task=("builtin/roles", "builtin/tone")[number // 4 % 2],
            seed=number // 24,
            learning_rate=(1e-4, 1e-3, 1e-2)[number // 8 % 3],
            predictions=[y if rng.random() < 0.8 else 1 - y for y in gold],
            labels=gold,
            changed={"curve": curve},
        )
    page, content = write_report(tmp_path)
    assert len(content.runs) == 1000
    assert page.stat().st_size < 3_000_000

"""The hub's and the official files' rows, on small files of both layouts and on the real ones."""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from compacter.errors import TaskError
from compacter.tasks import SPLITS, TASKS, Hub, OfficialFiles, Row, load, load_split
from hub_files import write_hub
from official_files import FOREST, OFFICIAL, PARAGRAPH, TASK_NAMES, tsv, write_official


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds GLUE/ and SuperGLUE/."""
    top = tmp_path_factory.mktemp("data")
    for name in TASK_NAMES:
        write_official(name, top / ("GLUE" if TASKS[name].benchmark == "glue" else "SuperGLUE"))
    return top


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Hub:
    top = tmp_path_factory.mktemp("hub")
    write_hub(top / "copy")
    return Hub(path=top / "copy", cache_dir=top / "cache")


@pytest.mark.parametrize("name", TASK_NAMES)
def test_the_hub_and_the_official_files_give_equal_rows(
    name: str, official: Path, hub: Hub
) -> None:
    for split in SPLITS:
        rows = OfficialFiles(official).load_rows(TASKS[name], split)
        assert rows == hub.load_rows(TASKS[name], split)
        assert [row.index for row in rows] == list(range(len(rows)))


def test_some_rows_in_full(official: Path) -> None:
    source = OfficialFiles(official)
    assert source.load_rows(TASKS["cola"], "train")[0] == Row({"sentence": 'He said "no.'}, 1)
    assert source.load_rows(TASKS["stsb"], "train")[2] == Row(
        {"sentence1": "A b.", "sentence2": "A c."}, 3.8, index=2
    )
    assert source.load_rows(TASKS["multirc"], "train")[2] == Row(
        {"question": "What sang?", "answer": "Birds", "paragraph": PARAGRAPH},
        1,
        group=(0, 1),
        index=2,
    )
    assert source.load_rows(TASKS["record"], "train")[0] == Row(
        {"query": "@placeholder live in the north", "passage": FOREST},
        answers=("Anna", "Ravens"),
        candidates=("Anna", "Oslo", "Ravens"),
        group=(0, 0),
    )
    assert source.load_rows(TASKS["copa"], "validation")[0].candidates == (
        "We got wet.",
        "We flew.",
    )


def test_short_rows_of_qqp_are_left_out_and_counted(
    official: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        rows = OfficialFiles(official).load_rows(TASKS["qqp"], "train")
    assert [row.fields["question1"] for row in rows] == ["How old is it?", "Who?"]
    assert "train.tsv: 1 rows with too few columns were left out" in caplog.text


@pytest.mark.parametrize(
    "place",
    [
        "CoLA",
        "cola",
        "GLUE/CoLA",
        "glue/COLA",
        "glue_data/CoLA",
        "GLUE_DATA/CoLA",
        "",
        "elsewhere",
    ],
)
def test_where_a_folder_may_be(place: str, tmp_path: Path) -> None:
    written = write_official("cola", tmp_path / "written")
    top = tmp_path / "top"
    shutil.copytree(written, top / place)
    data_dir = top / "elsewhere" if place == "elsewhere" else top
    assert len(OfficialFiles(data_dir).load_rows(TASKS["cola"], "train")) == 3
    assert len(OfficialFiles(str(top / place)).load_rows(TASKS["cola"], "train")) == 3


@pytest.mark.parametrize("folder", ["SST-2", "SST2", "sst_2"])
def test_folder_names_with_and_without_hyphens(folder: str, tmp_path: Path) -> None:
    write_official("sst2", tmp_path / "written").rename(tmp_path / folder)
    assert len(OfficialFiles(tmp_path).load_rows(TASKS["sst2"], "train")) == 3


def test_rte_is_glues(tmp_path: Path) -> None:
    """SuperGLUE has a folder RTE too, of another layout."""
    write_official("rte", tmp_path / "GLUE")
    (tmp_path / "SuperGLUE" / "RTE").mkdir(parents=True)
    (tmp_path / "SuperGLUE" / "RTE" / "train.jsonl").write_text("{}")
    (tmp_path / "RTE").mkdir()
    assert len(OfficialFiles(tmp_path).load_rows(TASKS["rte"], "train")) == 2


def test_line_ends_of_windows_and_a_missing_last_one(tmp_path: Path) -> None:
    folder = write_official("rte", tmp_path)
    path = folder / "train.tsv"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n").removesuffix(b"\r\n"))
    rows = OfficialFiles(folder).load_rows(TASKS["rte"], "train")
    assert [row.label for row in rows] == [0, 1]


def test_other_line_separators_do_not_end_a_line(tmp_path: Path) -> None:
    folder = write_official("sst2", tmp_path)
    (folder / "dev.tsv").write_bytes(tsv("sentence | label", "a\u2028b\x85c\x0bd | 1"))
    (row,) = OfficialFiles(folder).load_rows(TASKS["sst2"], "validation")
    assert row.fields["sentence"] == "a\u2028b\x85c\x0bd"


def test_one_split_needs_only_its_own_file(tmp_path: Path) -> None:
    folder = write_official("rte", tmp_path)
    (folder / "train.tsv").unlink()
    task, rows = load_split("rte", OfficialFiles(tmp_path), "test")
    assert (task.name, len(rows)) == ("rte", 2)
    (write_official("sst2", tmp_path) / "dev.tsv").unlink()
    assert len(load_split("sst2", OfficialFiles(tmp_path), "validation")[1]) == 1


def test_the_hub_is_asked_for_the_fixed_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked = []

    def load_dataset(*names: str, **settings: object) -> dict[slice, object]:
        asked.append((names, settings["revision"], settings["split"]))
        return datasets.Dataset.from_dict(
            {"premise": ["p"], "hypothesis": ["h"], "label": [1], "idx": [0]}
        )

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    mnli = TASKS["mnli"]
    assert mnli.hub is not None
    (row,) = Hub().load_rows(mnli, "validation")
    assert row == Row({"premise": "p", "hypothesis": "h"}, 1)
    Hub(revision="main").load_rows(TASKS["cb"], "train")
    assert asked == [
        (("nyu-mll/glue", "mnli"), mnli.hub.revision, "validation_matched"),
        (("aps/super_glue", "cb"), "main", "train"),
    ]


@pytest.mark.parametrize(
    ("task", "columns", "message"),
    [
        ("cb", {"premise": ["p"], "label": [0]}, "no column 'hypothesis'.*found 'premise'"),
        ("cb", {"premise": ["p"], "hypothesis": ["h"], "label": [3]}, "row 0: the label is 3"),
        ("cb", {"premise": ["p"], "hypothesis": ["h"], "label": [-1]}, "the label is -1"),
        ("cb", {"premise": [None], "hypothesis": ["h"], "label": [0]}, "'premise' is None"),
        ("cb", {"premise": [], "hypothesis": [], "label": []}, "has no rows"),
        (
            "multirc",
            {"paragraph": ["p"], "question": ["q"], "answer": ["a"], "label": [0], "idx": [3]},
            "'idx' is 3; expected 'paragraph' and 'question'",
        ),
        (
            "record",
            {
                "passage": ["p"],
                "query": ["q"],
                "entities": [["e"]],
                "answers": [[]],
                "idx": [{"passage": 0, "query": 0}],
            },
            "a query has no answers",
        ),
        (
            "record",
            {
                "passage": ["p"],
                "query": ["q"],
                "entities": ["e"],
                "answers": [["e"]],
                "idx": [{"passage": 0, "query": 0}],
            },
            "'entities' is 'e'; expected a list of texts",
        ),
    ],
)
def test_a_hub_that_has_changed(
    task: str, columns: dict[str, list], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    found = datasets.Dataset.from_dict(columns)
    monkeypatch.setattr(datasets, "load_dataset", lambda *names, **settings: found)
    with pytest.raises(TaskError, match=message):
        Hub().load_rows(TASKS[task], "train")


def test_a_copy_of_the_hub_without_the_task(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"cb, train\) could not be loaded .*--data-dir"):
        Hub(path=tmp_path, cache_dir=tmp_path / "cache").load_rows(TASKS["cb"], "train")


def test_a_task_of_ones_own_is_neither_on_the_hub_nor_official(tmp_path: Path) -> None:
    own = replace(TASKS["rte"], name="own", hub=None, disk=None)
    with pytest.raises(TaskError, match="'own' is not on the hub"):
        Hub().load_rows(own, "train")
    with pytest.raises(TaskError, match="'own' has no official files"):
        OfficialFiles(tmp_path).load_rows(own, "train")


def test_load_splits_and_draws(official: Path) -> None:
    task, splits = load("rte", OfficialFiles(official), max_train_samples=1)
    assert task is TASKS["rte"]
    assert [len(splits[name]) for name in SPLITS] == [1, 1, 2]


# Real files

DATA = os.environ.get("COMPACTER_DATA", "")
OFFICIAL_COUNTS = {
    "cola": (8_551, 1_043),
    "sst2": (67_349, 872),
    "mrpc": (3_668, 408),
    "cb": (250, 56),
    "copa": (400, 100),
    "wic": (5_428, 638),
    "multirc": (27_243, 4_848),
}


@pytest.mark.skipif(not DATA, reason="COMPACTER_DATA does not name a folder of real files")
@pytest.mark.parametrize("name", OFFICIAL_COUNTS)
def test_real_files_have_the_official_row_counts(name: str) -> None:
    task, source = TASKS[name], OfficialFiles(DATA)
    train, validation = (source.load_rows(task, split) for split in ("train", "validation"))
    assert (len(train), len(validation)) == OFFICIAL_COUNTS[name] == task.sizes
    _, splits = load(name, source)
    if task.size == "large":
        assert [len(splits[s]) for s in SPLITS] == [len(train) - 1000, 1000, len(validation)]
        assert Counter(map(str, splits.train + splits.validation)) == Counter(map(str, train))
    else:
        assert splits.train == train
        assert Counter(map(str, splits.validation + splits.test)) == Counter(map(str, validation))
        units = [{row.group or row.index for row in splits[s]} for s in ("validation", "test")]
        assert not units[0] & units[1]
        assert len(units[1]) - len(units[0]) in (0, 1)


@pytest.mark.skipif(not DATA, reason="COMPACTER_DATA does not name a folder of real files")
def test_real_questions_of_multirc() -> None:
    rows = OfficialFiles(DATA).load_rows(TASKS["multirc"], "validation")
    assert len({row.group for row in rows}) == 953


def test_every_task_has_small_files() -> None:
    assert set(OFFICIAL) == set(TASKS)

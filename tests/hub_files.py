"""The rows of official_files.py as the hub has them: the columns of each split.

MNLI's validation set has a name of its own there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from official_files import FOREST, PARAGRAPH


def columns(names: str, *rows: tuple[Any, ...]) -> dict[str, list[Any]]:
    return dict(zip(names.split(), map(list, zip(*rows, strict=True)), strict=True))


def _multirc_idx(paragraph: int, question: int, answer: int) -> dict[str, int]:
    return {"paragraph": paragraph, "question": question, "answer": answer}


HUB: dict[str, dict[str, dict[str, list[Any]]]] = {
    "cola": {
        "train": columns(
            "sentence label idx",
            ('He said "no.', 1, 0),
            ("They drank the pub.", 0, 1),
            ("The café  opened.", 1, 2),
        ),
        "validation": columns(
            "sentence label idx", ("Birds sing.", 1, 0), ("Sing birds the.", 0, 1)
        ),
        "test": columns("sentence label idx", ("Bill left.", -1, 0)),
    },
    "sst2": {
        "train": columns(
            "sentence label idx",
            ("hide the units ", 0, 0),
            ("a fine film ", 1, 1),
            ('" good', 1, 2),
        ),
        "validation": columns("sentence label idx", ("it 's charming .", 1, 0), ("dull", 0, 1)),
        "test": columns("sentence label idx", ("uneasy mishmash", -1, 0)),
    },
    "mrpc": {
        "train": columns(
            "sentence1 sentence2 label idx",
            ('He said " yes .', "Yes , he said .", 1, 0),
            ("Snow fell .", "Rain fell .", 0, 3),
        ),
        "validation": columns(
            "sentence1 sentence2 label idx", ("A b .", "B a .", 1, 9), ("C d .", "E f .", 0, 11)
        ),
        "test": columns("sentence1 sentence2 label idx", ("G .", "H .", -1, 0)),
    },
    "qqp": {
        "train": columns(
            "question1 question2 label idx",
            ("How old is it?", "What is its age?", 1, 0),
            ("Who?", "Why?", 0, 2),
        ),
        "validation": columns(
            "question1 question2 label idx", ("Where?", "When?", 0, 0), ("Hm?", "What?", 1, 1)
        ),
        "test": columns("question1 question2 label idx", ("A?", "B?", -1, 0)),
    },
    "stsb": {
        "train": columns(
            "sentence1 sentence2 label idx",
            ("A plane takes off.", "A plane leaves.", 5.0, 0),
            ("A man sings.", "A dog runs.", 0.1, 1),
            ("A b.", "A c.", 3.8, 2),
        ),
        "validation": columns(
            "sentence1 sentence2 label idx", ("X y.", "X z.", 2.5, 0), ("P q.", "R s.", 1.667, 1)
        ),
        "test": columns("sentence1 sentence2 label idx", ("T.", "U.", -1.0, 0)),
    },
    "mnli": {
        "train": columns(
            "premise hypothesis label idx",
            ("The cat sleeps.", "An animal rests.", 0, 0),
            ("It rains.", "It is dry.", 2, 1),
            ("He ran.", "He won.", 1, 2),
        ),
        "validation_matched": columns(
            "premise hypothesis label idx", ("New rights.", "All like them.", 1, 0)
        ),
        "validation_mismatched": columns(
            "premise hypothesis label idx", ("Not this.", "No.", 0, 0)
        ),
        "test_matched": columns("premise hypothesis label idx", ("V.", "W.", -1, 0)),
    },
    "qnli": {
        "train": columns(
            "question sentence label idx",
            ("Who won?", "Ann won.", 0, 0),
            ("When?", "Bob lost.", 1, 1),
        ),
        "validation": columns("question sentence label idx", ("Why?", "No reason.", 1, 0)),
        "test": columns("question sentence label idx", ("What?", "This.", -1, 0)),
    },
    "rte": {
        "train": columns(
            "sentence1 sentence2 label idx",
            ("A dog barks.", "An animal barks.", 0, 0),
            ("A dog barks.", "A cat barks.", 1, 1),
        ),
        "validation": columns(
            "sentence1 sentence2 label idx",
            ("It snows.", "It is cold.", 1, 0),
            ("Ann left.", "Someone left.", 0, 1),
            ("Bob ate.", "Ann ate.", 1, 2),
        ),
        "test": columns("sentence1 sentence2 label idx", ("Y.", "Z.", -1, 0)),
    },
    "boolq": {
        "train": columns(
            "question passage idx label",
            ("is ice cold", "Ice -- Cold.", 0, 1),
            ("is fire cold", "Fire -- Hot.", 1, 0),
        ),
        "validation": columns(
            "question passage idx label",
            ("is it so", "It -- So.", 0, 1),
            ("is it not", "It -- So.", 1, 0),
        ),
        "test": columns("question passage idx label", ("who knows", "Nobody.", 0, -1)),
    },
    "cb": {
        "train": columns(
            "premise hypothesis idx label",
            ("P1.", "h1", 0, 0),
            ("P2.", "h2", 1, 1),
            ("P3.", "h3", 2, 2),
        ),
        "validation": columns(
            "premise hypothesis idx label", ("P4.", "h4", 0, 2), ("P5.", "h5", 1, 0)
        ),
        "test": columns("premise hypothesis idx label", ("P6.", "h6", 0, -1)),
    },
    "copa": {
        "train": columns(
            "premise choice1 choice2 question idx label",
            ("My body cast a shadow.", "The sun was rising.", "The grass was cut.", "cause", 0, 0),
            ("I dropped it.", "It flew.", "It broke.", "effect", 1, 1),
        ),
        "validation": columns(
            "premise choice1 choice2 question idx label",
            ("It rained.", "We got wet.", "We flew.", "effect", 0, 0),
        ),
        "test": columns(
            "premise choice1 choice2 question idx label",
            ("It was dark.", "It was night.", "It was noon.", "cause", 0, -1),
        ),
    },
    "multirc": {
        "train": columns(
            "paragraph question answer idx label",
            (PARAGRAPH, "What rose?", "The sun", _multirc_idx(0, 0, 0), 1),
            (PARAGRAPH, "What rose?", "", _multirc_idx(0, 0, 1), 0),
            (PARAGRAPH, "What sang?", "Birds", _multirc_idx(0, 1, 2), 1),
        ),
        "validation": columns(
            "paragraph question answer idx label",
            ("Text 0.", "Question 0?", "yes", _multirc_idx(0, 0, 0), 0),
            ("Text 0.", "Question 0?", "no", _multirc_idx(0, 0, 1), 1),
            ("Text 0.", "Question 1?", "yes", _multirc_idx(0, 1, 2), 1),
            ("Text 0.", "Question 1?", "no", _multirc_idx(0, 1, 3), 0),
            ("Text 1.", "Question 2?", "yes", _multirc_idx(1, 2, 4), 0),
            ("Text 1.", "Question 2?", "no", _multirc_idx(1, 2, 5), 1),
            ("Text 1.", "Question 3?", "yes", _multirc_idx(1, 3, 6), 1),
            ("Text 1.", "Question 3?", "no", _multirc_idx(1, 3, 7), 0),
        ),
        "test": columns(
            "paragraph question answer idx label",
            ("End.", "End?", "yes", _multirc_idx(0, 0, 0), -1),
        ),
    },
    "record": {
        "train": columns(
            "passage query entities answers idx",
            (
                FOREST,
                "@placeholder live in the north",
                ["Ravens", "Oslo", "Anna"],
                ["Ravens", "Anna"],
                {"passage": 0, "query": 0},
            ),
            (
                FOREST,
                "There is a city, @placeholder",
                ["Anna", "Ravens", "Oslo"],
                ["Oslo"],
                {"passage": 0, "query": 1},
            ),
        ),
        "validation": columns(
            "passage query entities answers idx",
            ("Bo met Al.", "@placeholder was met", ["Al"], ["Al"], {"passage": 0, "query": 0}),
        ),
        "test": columns(
            "passage query entities answers idx",
            ("Cy ran.", "@placeholder ran", ["Cy"], [], {"passage": 0, "query": 0}),
        ),
    },
    "wic": {
        "train": columns(
            "word sentence1 sentence2 start1 start2 end1 end2 idx label",
            ("place", "Come to my place.", "No place for that.", 11, 3, 16, 8, 0, 0),
            ("run", "I run.", "You run.", 2, 4, 5, 7, 1, 1),
        ),
        "validation": columns(
            "word sentence1 sentence2 start1 start2 end1 end2 idx label",
            ("class", "A class.", "Real class.", 2, 5, 7, 10, 0, 0),
        ),
        "test": columns(
            "word sentence1 sentence2 start1 start2 end1 end2 idx label",
            ("sun", "The sun.", "A sun.", 4, 2, 7, 5, 0, -1),
        ),
    },
}


def write_hub(parent: Path) -> None:
    """A copy of the hub's repository: Parquet files, and a README that lists them."""
    lines = ["---", "configs:"]
    for task, splits in HUB.items():
        lines += [f"- config_name: {task}", "  data_files:"]
        for split in splits:
            lines += [f"  - split: {split}", f"    path: {task}/{split}-*"]
        _write_parquet(task, parent / task)
    (parent / "README.md").write_text("\n".join([*lines, "---", ""]), encoding="utf-8")


def _write_parquet(task: str, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    for split, found in HUB[task].items():
        table = pa.table(found)
        if task == "stsb":  # the hub's scores have 32 bits
            at = table.schema.get_field_index("label")
            table = table.set_column(at, "label", table["label"].cast(pa.float32()))
        if task == "record" and split == "test":
            at = table.schema.get_field_index("answers")
            table = table.set_column(at, "answers", table["answers"].cast(pa.list_(pa.string())))
        pq.write_table(table, folder / f"{split}-00000-of-00001.parquet")

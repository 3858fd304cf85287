"""Small data sets in the official layouts, and the same rows as the hub has them.

Every file is written out by hand, so that the two are independent of each other and of the code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TASK_NAMES = (
    *("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte"),
    *("boolq", "cb", "copa", "multirc", "record", "wic"),
)


def tsv(*lines: str, bom: bool = False) -> bytes:
    """Cells are separated by ' | ' here and by tabs in the file."""
    text = "".join("\t".join(line.split(" | ")) + "\n" for line in lines)
    return (b"\xef\xbb\xbf" if bom else b"") + text.encode()


def jsonl(*values: Any) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()


MRPC_HEADER = "Quality | #1 ID | #2 ID | #1 String | #2 String"
STSB_HEADER = (
    "index | genre | filename | year | old_index | source1 | source2 | sentence1 | sentence2"
)
MNLI_HEADER = (
    "index | promptID | pairID | genre | sentence1_binary_parse | sentence2_binary_parse | "
    "sentence1_parse | sentence2_parse | sentence1 | sentence2"
)
MNLI_MIDDLE = "1 | 1e | fiction | (a) | (b) | (c) | (d)"

FOREST = "Ravens live in Oslo. Anna saw one\n@highlight\nRavens are clever!\n@highlight\nSo is Anna"
"""Entities: Oslo 15..18, Anna 21..24, Ravens 0..5 and 45..50."""

PARAGRAPH = "<b>Sent 1: </b>The sun rose.<br><b>Sent 2: </b>Birds sang.<br>"

OFFICIAL: dict[str, tuple[str, dict[str, bytes]]] = {
    "cola": (
        "CoLA",
        {
            "train.tsv": tsv(
                'gj04 | 1 |  | He said "no.',
                "gj04 | 0 | * | They drank the pub.",
                "bc01 | 1 |  | The café  opened.",
            ),
            "dev.tsv": tsv("gj04 | 1 |  | Birds sing.", "gj04 | 0 | * | Sing birds the."),
            "test.tsv": tsv("index | sentence", "0 | Bill left."),
        },
    ),
    "sst2": (
        "SST-2",
        {
            "train.tsv": tsv(
                "sentence | label", "hide the units  | 0", "a fine film  | 1", '" good | 1'
            ),
            "dev.tsv": tsv("sentence | label", "it 's charming . | 1", "dull | 0"),
            "test.tsv": tsv("index | sentence", "0 | uneasy mishmash"),
        },
    ),
    "mrpc": (
        "MRPC",
        {
            "train.tsv": tsv(
                MRPC_HEADER,
                '1 | 702876 | 702977 | He said " yes . | Yes , he said .',
                "0 | 1 | 2 | Snow fell . | Rain fell .",
                bom=True,
            ),
            "dev.tsv": tsv(
                MRPC_HEADER,
                "1 | 3 | 4 | A b . | B a .",
                "0 | 5 | 6 | C d . | E f .",
                bom=True,
            ),
            "test.tsv": tsv(
                "index | #1 ID | #2 ID | #1 String | #2 String", "0 | 7 | 8 | G . | H ."
            ),
        },
    ),
    "qqp": (
        "QQP",
        {
            "train.tsv": tsv(
                "id | qid1 | qid2 | question1 | question2 | is_duplicate",
                "0 | 1 | 2 | How old is it? | What is its age? | 1",
                "1 | 3 | 4 | cut",
                "2 | 5 | 6 | Who? | Why? | 0",
            ),
            "dev.tsv": tsv(
                "id | qid1 | qid2 | question1 | question2 | is_duplicate",
                "0 | 7 | 8 | Where? | When? | 0",
                "1 | 9 | 10 | Hm? | What? | 1",
            ),
            "test.tsv": tsv("id | question1 | question2", "0 | A? | B?"),
        },
    ),
    "stsb": (
        "STS-B",
        {
            "train.tsv": tsv(
                STSB_HEADER + " | score",
                "0 | g | f | 2012 | 1 | none | none | A plane takes off. | A plane leaves. | 5.000",
                "1 | g | f | 2012 | 2 | none | none | A man sings. | A dog runs. | 0.100",
                "2 | g | f | 2012 | 3 | none | none | A b. | A c. | 3.800",
            ),
            "dev.tsv": tsv(
                STSB_HEADER + " | score",
                "0 | g | f | 2012 | 4 | none | none | X y. | X z. | 2.500",
                "1 | g | f | 2012 | 5 | none | none | P q. | R s. | 1.667",
            ),
            "test.tsv": tsv(STSB_HEADER, "0 | g | f | 2012 | 6 | none | none | T. | U."),
        },
    ),
    "mnli": (
        "MNLI",
        {
            "train.tsv": tsv(
                MNLI_HEADER + " | label1 | gold_label",
                f"0 | {MNLI_MIDDLE} | The cat sleeps. | An animal rests. | entailment | entailment",
                f"1 | {MNLI_MIDDLE} | It rains. | It is dry. | contradiction | contradiction",
                f"2 | {MNLI_MIDDLE} | He ran. | He won. | neutral | neutral",
            ),
            "dev_matched.tsv": tsv(
                MNLI_HEADER + " | label1 | label2 | label3 | label4 | label5 | gold_label",
                f"0 | {MNLI_MIDDLE} | New rights. | All like them. | n | n | n | n | n | neutral",
            ),
            "test_matched.tsv": tsv(MNLI_HEADER, f"0 | {MNLI_MIDDLE} | V. | W."),
        },
    ),
    "qnli": (
        "QNLI",
        {
            "train.tsv": tsv(
                "index | question | sentence | label",
                "0 | Who won? | Ann won. | entailment",
                "1 | When? | Bob lost. | not_entailment",
            ),
            "dev.tsv": tsv(
                "index | question | sentence | label", "0 | Why? | No reason. | not_entailment"
            ),
            "test.tsv": tsv("index | question | sentence", "0 | What? | This."),
        },
    ),
    "rte": (
        "RTE",
        {
            "train.tsv": tsv(
                "index | sentence1 | sentence2 | label",
                "0 | A dog barks. | An animal barks. | entailment",
                "1 | A dog barks. | A cat barks. | not_entailment",
            ),
            "dev.tsv": tsv(
                "index | sentence1 | sentence2 | label",
                "0 | It snows. | It is cold. | not_entailment",
                "1 | Ann left. | Someone left. | entailment",
                "2 | Bob ate. | Ann ate. | not_entailment",
            ),
            "test.tsv": tsv("index | sentence1 | sentence2", "0 | Y. | Z."),
        },
    ),
    "boolq": (
        "BoolQ",
        {
            "train.jsonl": jsonl(
                {"question": "is ice cold", "passage": "Ice -- Cold.", "idx": 0, "label": True},
                {"question": "is fire cold", "passage": "Fire -- Hot.", "idx": 1, "label": False},
            ),
            "val.jsonl": jsonl(
                {"question": "is it so", "passage": "It -- So.", "idx": 0, "label": True},
                {"question": "is it not", "passage": "It -- So.", "idx": 1, "label": False},
            ),
            "test.jsonl": jsonl({"question": "who knows", "passage": "Nobody.", "idx": 0}),
        },
    ),
    "cb": (
        "CB",
        {
            "train.jsonl": jsonl(
                {"premise": "P1.", "hypothesis": "h1", "label": "entailment", "idx": 0},
                {"premise": "P2.", "hypothesis": "h2", "label": "contradiction", "idx": 1},
                {"premise": "P3.", "hypothesis": "h3", "label": "neutral", "idx": 2},
            ),
            "val.jsonl": jsonl(
                {"premise": "P4.", "hypothesis": "h4", "label": "neutral", "idx": 0},
                {"premise": "P5.", "hypothesis": "h5", "label": "entailment", "idx": 1},
            ),
            "test.jsonl": jsonl({"premise": "P6.", "hypothesis": "h6", "idx": 0}),
        },
    ),
    "copa": (
        "COPA",
        {
            "train.jsonl": jsonl(
                {
                    "premise": "My body cast a shadow.",
                    "choice1": "The sun was rising.",
                    "choice2": "The grass was cut.",
                    "question": "cause",
                    "label": 0,
                    "idx": 0,
                },
                {
                    "premise": "I dropped it.",
                    "choice1": "It flew.",
                    "choice2": "It broke.",
                    "question": "effect",
                    "label": 1,
                    "idx": 1,
                },
            ),
            "val.jsonl": jsonl(
                {
                    "premise": "It rained.",
                    "choice1": "We got wet.",
                    "choice2": "We flew.",
                    "question": "effect",
                    "label": 0,
                    "idx": 0,
                }
            ),
            "test.jsonl": jsonl(
                {
                    "premise": "It was dark.",
                    "choice1": "It was night.",
                    "choice2": "It was noon.",
                    "question": "cause",
                    "idx": 0,
                }
            ),
        },
    ),
    "multirc": (
        "MultiRC",
        {
            "train.jsonl": jsonl(
                {
                    "idx": 0,
                    "version": 1.1,
                    "passage": {
                        "text": PARAGRAPH,
                        "questions": [
                            {
                                "idx": 0,
                                "question": "What rose?",
                                "answers": [
                                    {"idx": 0, "text": "The sun", "label": 1},
                                    {"idx": 1, "text": "", "label": 0},
                                ],
                            },
                            {
                                "idx": 1,
                                "question": "What sang?",
                                "answers": [{"idx": 2, "text": "Birds", "label": 1}],
                            },
                        ],
                    },
                }
            ),
            "val.jsonl": jsonl(
                *(
                    {
                        "idx": p,
                        "passage": {
                            "text": f"Text {p}.",
                            "questions": [
                                {
                                    "idx": q,
                                    "question": f"Question {q}?",
                                    "answers": [
                                        {"idx": 2 * q, "text": "yes", "label": q % 2},
                                        {"idx": 2 * q + 1, "text": "no", "label": 1 - q % 2},
                                    ],
                                }
                                for q in (2 * p, 2 * p + 1)
                            ],
                        },
                    }
                    for p in range(2)
                )
            ),
            "test.jsonl": jsonl(
                {
                    "idx": 0,
                    "passage": {
                        "text": "End.",
                        "questions": [
                            {"idx": 0, "question": "End?", "answers": [{"idx": 0, "text": "yes"}]}
                        ],
                    },
                }
            ),
        },
    ),
    "record": (
        "ReCoRD",
        {
            "train.jsonl": jsonl(
                {
                    "source": "Daily mail",
                    "idx": 0,
                    "passage": {
                        "text": FOREST,
                        "entities": [
                            {"start": 45, "end": 50},
                            {"start": 15, "end": 18},
                            {"start": 21, "end": 24},
                            {"start": 0, "end": 5},
                        ],
                    },
                    "qas": [
                        {
                            "idx": 0,
                            "query": "@placeholder live in the north",
                            "answers": [
                                {"start": 0, "end": 5, "text": "Ravens"},
                                {"start": 45, "end": 50, "text": "Ravens"},
                                {"start": 21, "end": 24, "text": "Anna"},
                            ],
                        },
                        {
                            "idx": 1,
                            "query": "There is a city, @placeholder",
                            "answers": [{"start": 15, "end": 18, "text": "Oslo"}],
                        },
                    ],
                }
            ),
            "val.jsonl": jsonl(
                {
                    "idx": 0,
                    "passage": {"text": "Bo met Al.", "entities": [{"start": 7, "end": 8}]},
                    "qas": [
                        {
                            "idx": 0,
                            "query": "@placeholder was met",
                            "answers": [{"start": 7, "end": 8, "text": "Al"}],
                        }
                    ],
                }
            ),
            "test.jsonl": jsonl(
                {
                    "idx": 0,
                    "passage": {"text": "Cy ran.", "entities": [{"start": 0, "end": 1}]},
                    "qas": [{"idx": 0, "query": "@placeholder ran"}],
                }
            ),
        },
    ),
    "wic": (
        "WiC",
        {
            "train.jsonl": jsonl(
                {
                    "word": "place",
                    "sentence1": "Come to my place.",
                    "sentence2": "No place for that.",
                    "idx": 0,
                    "label": False,
                    "start1": 11,
                    "start2": 3,
                    "end1": 16,
                    "end2": 8,
                    "version": 1.1,
                },
                {
                    "word": "run",
                    "sentence1": "I run.",
                    "sentence2": "You run.",
                    "idx": 1,
                    "label": True,
                    "start1": 2,
                    "start2": 4,
                    "end1": 5,
                    "end2": 7,
                },
            ),
            "val.jsonl": jsonl(
                {
                    "word": "class",
                    "sentence1": "A class.",
                    "sentence2": "Real class.",
                    "idx": 0,
                    "label": False,
                }
            ),
            "test.jsonl": jsonl(
                {"word": "sun", "sentence1": "The sun.", "sentence2": "A sun.", "idx": 0}
            ),
        },
    ),
}

# The hub: columns of each split. MNLI's validation set has a name of its own there.


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


def write_official(task: str, parent: Path) -> Path:
    """The task's folder, as distributed, in `parent`."""
    folder, files = OFFICIAL[task]
    (parent / folder).mkdir(parents=True)
    for name, content in files.items():
        (parent / folder / name).write_bytes(content)
    return parent / folder


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

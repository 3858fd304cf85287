"""Small data sets in the official layouts; hub_files.py has the same rows as the hub has them.

Both are written out by hand, so that they are independent of each other and of the code."""

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


def write_official(task: str, parent: Path) -> Path:
    """The task's folder, as distributed, in `parent`."""
    folder, files = OFFICIAL[task]
    (parent / folder).mkdir(parents=True)
    for name, content in files.items():
        (parent / folder / name).write_bytes(content)
    return parent / folder

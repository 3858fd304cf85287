"""Rows as text, against strings that are written out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compacter.errors import TaskError
from compacter.tasks import (
    TASKS,
    Candidates,
    Example,
    OfficialFiles,
    Pair,
    Row,
    candidate_pairs,
    chosen,
    examples,
    pair,
    parse,
    source,
    targets,
)
from compacter.tasks.formats import number_text, without_highlights
from official_files import TASK_NAMES, write_official

FOREST = "Ravens live in Oslo. Anna saw one. Ravens are clever! So is Anna"
ENTITIES = "Anna, Oslo, Ravens"
SHADOW = "choice1: The sun was rising. choice2: The grass was cut."
SUN = "Sent 1: The sun rose. Sent 2: Birds sang."

TEXT_TO_TEXT = {
    "cola": [
        ('cola sentence: He said "no.', "acceptable", "1"),
        ("cola sentence: They drank the pub.", "unacceptable", "0"),
        ("cola sentence: The café  opened.", "acceptable", "1"),
    ],
    "sst2": [
        ("sst2 sentence: hide the units", "negative", "0"),
        ("sst2 sentence: a fine film", "positive", "1"),
        ('sst2 sentence: " good', "positive", "1"),
    ],
    "mrpc": [
        ('mrpc sentence1: He said " yes . sentence2: Yes , he said .', "equivalent", "1"),
        ("mrpc sentence1: Snow fell . sentence2: Rain fell .", "not_equivalent", "0"),
    ],
    "qqp": [
        ("qqp question1: How old is it? question2: What is its age?", "duplicate", "1"),
        ("qqp question1: Who? question2: Why?", "not_duplicate", "0"),
    ],
    "stsb": [
        ("stsb sentence1: A plane takes off. sentence2: A plane leaves.", "5.0", "5.0"),
        ("stsb sentence1: A man sings. sentence2: A dog runs.", "0.0", "0.0"),
        ("stsb sentence1: A b. sentence2: A c.", "3.8", "3.8"),
    ],
    "mnli": [
        ("mnli hypothesis: An animal rests. premise: The cat sleeps.", "entailment", "0"),
        ("mnli hypothesis: It is dry. premise: It rains.", "contradiction", "2"),
        ("mnli hypothesis: He won. premise: He ran.", "neutral", "1"),
    ],
    "qnli": [
        ("qnli question: Who won? sentence: Ann won.", "entailment", "0"),
        ("qnli question: When? sentence: Bob lost.", "not_entailment", "1"),
    ],
    "rte": [
        ("rte sentence1: A dog barks. sentence2: An animal barks.", "entailment", "0"),
        ("rte sentence1: A dog barks. sentence2: A cat barks.", "not_entailment", "1"),
    ],
    "boolq": [
        ("boolq passage: Ice -- Cold. question: is ice cold", "True", "1"),
        ("boolq passage: Fire -- Hot. question: is fire cold", "False", "0"),
    ],
    "cb": [
        ("cb hypothesis: h1 premise: P1.", "entailment", "0"),
        ("cb hypothesis: h2 premise: P2.", "contradiction", "1"),
        ("cb hypothesis: h3 premise: P3.", "neutral", "2"),
    ],
    "copa": [
        (
            f"copa {SHADOW} premise: My body cast a shadow. question: cause",
            "choice1",
            "0",
        ),
        (
            "copa choice1: It flew. choice2: It broke. premise: I dropped it. question: effect",
            "choice2",
            "1",
        ),
    ],
    "multirc": [
        (f"multirc question: What rose? answer: The sun paragraph: {SUN}", "True", "1"),
        (f"multirc question: What rose? answer:  paragraph: {SUN}", "False", "0"),
        (f"multirc question: What sang? answer: Birds paragraph: {SUN}", "True", "1"),
    ],
    "record": [
        (
            f"record query: @placeholder live in the north entities: {ENTITIES} passage: {FOREST}",
            "Anna",
            "Anna",
        ),
        (
            f"record query: @placeholder live in the north entities: {ENTITIES} passage: {FOREST}",
            "Ravens",
            "Ravens",
        ),
        (
            f"record query: There is a city, @placeholder entities: {ENTITIES} passage: {FOREST}",
            "Oslo",
            "Oslo",
        ),
    ],
    "wic": [
        (
            "wic sentence1: Come to my place. sentence2: No place for that. word: place",
            "False",
            "0",
        ),
        ("wic sentence1: I run. sentence2: You run. word: run", "True", "1"),
    ],
}

PAIRS = {
    "cola": Pair('He said "no.'),
    "sst2": Pair("hide the units"),
    "mrpc": Pair('He said " yes .', "Yes , he said ."),
    "qqp": Pair("How old is it?", "What is its age?"),
    "stsb": Pair("A plane takes off.", "A plane leaves."),
    "mnli": Pair("The cat sleeps.", "An animal rests."),
    "qnli": Pair("Who won?", "Ann won."),
    "rte": Pair("A dog barks.", "An animal barks."),
    "boolq": Pair("is ice cold", "Ice -- Cold."),
    "cb": Pair("P1.", "h1"),
    "multirc": Pair("What rose? The sun", SUN),
    "wic": Pair("place Come to my place.", "place No place for that."),
}

CANDIDATES = {
    "copa": Candidates(
        (
            Pair("My body cast a shadow. What was the cause of this?", "The sun was rising."),
            Pair("My body cast a shadow. What was the cause of this?", "The grass was cut."),
        ),
        (True, False),
    ),
    "record": Candidates(
        (
            Pair("Anna live in the north", FOREST),
            Pair("Oslo live in the north", FOREST),
            Pair("Ravens live in the north", FOREST),
        ),
        (True, False, True),
    ),
}


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    parent = tmp_path_factory.mktemp("official")
    for name in TASK_NAMES:
        write_official(name, parent)
    return {name: OfficialFiles(parent).load_rows(TASKS[name], "train") for name in TASK_NAMES}


@pytest.mark.parametrize("name", TASK_NAMES)
def test_text_to_text(name: str, training: dict[str, list[Row]]) -> None:
    task, rows = TASKS[name], training[name]
    words = examples(task, rows, train=True)
    digits = examples(task, rows, train=True, label_words="digits")
    assert [(e.source, e.target) for e in words] == [(s, w) for s, w, _ in TEXT_TO_TEXT[name]]
    assert [(e.source, e.target) for e in digits] == [(s, d) for s, _, d in TEXT_TO_TEXT[name]]


@pytest.mark.parametrize("name", TASK_NAMES)
@pytest.mark.parametrize("label_words", ["words", "digits"])
def test_targets_are_parsed_back(name: str, label_words, training: dict[str, list[Row]]) -> None:
    task = TASKS[name]
    for row in training[name]:
        back = [parse(task, f" {text}\n", label_words) for text in targets(task, row, label_words)]
        if task.kind == "entity":
            assert back == list(row.answers)
        elif task.kind == "number":
            assert back == [pytest.approx(row.label, abs=0.1 + 1e-9)]
        else:
            assert back == [row.label]


def test_record_is_one_example_per_answer_to_train_and_one_per_query_to_evaluate(
    training: dict[str, list[Row]],
) -> None:
    task, rows = TASKS["record"], training["record"]
    assert [e.row for e in examples(task, rows, train=True)] == [0, 0, 1]
    assert [e.row for e in examples(task, rows, train=False)] == [0, 1]


@pytest.mark.parametrize("name", TASK_NAMES)
def test_a_row_without_a_label_has_no_target(name: str, tmp_path) -> None:
    write_official(name, tmp_path)
    (row,) = OfficialFiles(tmp_path).load_rows(TASKS[name], "test")
    assert row.label is None
    assert row.answers == ()
    assert targets(TASKS[name], row) == ()
    for train in (True, False):
        found = examples(TASKS[name], [row], train=train)
        assert found == [Example(source(TASKS[name], row), None, 0)]


def test_stsb_rounds_to_the_nearest_fifth_and_halves_to_even() -> None:
    expected = {
        0.0: "0.0",
        0.1: "0.0",
        0.3: "0.4",
        0.5: "0.4",
        0.7: "0.8",
        0.9: "0.8",
        1.0: "1.0",
        1.1: "1.2",
        1.3: "1.2",
        1.5: "1.6",
        2.5: "2.4",
        3.5: "3.6",
        4.5: "4.4",
        1.667: "1.6",
        1.75: "1.8",
        3.8: "3.8",
        4.9: "4.8",
        4.901: "5.0",
        5.0: "5.0",
    }
    assert {value: number_text(value, 0.2) for value in expected} == expected


def test_stsb_has_26_targets_and_agrees_with_arithmetic_in_32_bits() -> None:
    """T5's paper counts 21 from 1.0 to 5.0; scores go from 0."""
    thousandths = [i / 1000 for i in range(5001)]
    found = [number_text(value, 0.2) for value in thousandths]
    assert sorted(set(found), key=float) == [f"{i / 5:.1f}" for i in range(26)]
    single = np.round(np.array(thousandths, np.float32) * np.float32(5)) / np.float32(5)
    assert found == [f"{value:.1f}" for value in single]
    # a score that was stored in 32 bits is rounded as the one that was meant
    assert found == [number_text(float(np.float32(value)), 0.2) for value in thousandths]


@pytest.mark.parametrize(
    ("value", "text"), [(3.0, "3"), (-1.25, "-1.25"), (1 / 3, "0.333333"), (0, "0")]
)
def test_numbers_without_a_step(value: float, text: str) -> None:
    assert number_text(value, None) == text


def test_a_small_negative_number_has_no_minus_sign() -> None:
    assert number_text(-0.01, 0.2) == "0.0"


@pytest.mark.parametrize(
    ("passage", "expected"),
    [
        ("One\n@highlight\nTwo", "One. Two"),
        ("One.\n@highlight\nTwo", "One. Two"),
        ("One?\n@highlight\nTwo", "One? Two"),
        ("One!\n@highlight\nTwo", "One! Two"),
        ('"One"\n@highlight\nTwo', '"One" Two'),
        ("'One'\n@highlight\nTwo", "'One' Two"),
        ("One,\n@highlight\nTwo", "One,. Two"),
        ("One\n@highlight\nTwo.\n@highlight\nThree", "One. Two. Three"),
        ("No @highlight here\nat all", "No @highlight here\nat all"),
    ],
)
def test_highlights(passage: str, expected: str) -> None:
    assert without_highlights(passage) == expected


@pytest.mark.parametrize(
    ("name", "text", "label_words", "answer"),
    [
        ("rte", "entailment", "words", 0),
        ("rte", " not_entailment \n", "words", 1),
        ("rte", "Entailment", "words", None),
        ("rte", "entail", "words", None),
        ("rte", "", "words", None),
        ("rte", "0", "words", None),
        ("rte", "0", "digits", 0),
        ("rte", "entailment", "digits", None),
        ("rte", "2", "digits", None),
        ("rte", "01", "digits", None),
        ("mnli", "2", "digits", 2),
        ("boolq", "True", "words", 1),
        ("boolq", "true", "words", None),
        ("stsb", "2.4", "words", 2.4),
        ("stsb", " 2 ", "digits", 2.0),
        ("stsb", "-.5", "words", -0.5),
        ("stsb", "nan", "words", None),
        ("stsb", "inf", "words", None),
        ("stsb", "1e999", "words", None),
        ("stsb", "1_0", "words", None),
        ("stsb", "2.4 points", "words", None),
        ("stsb", "٣", "words", None),
        ("record", " Oslo ", "words", "Oslo"),
        ("record", "", "words", ""),
    ],
)
def test_parse(name: str, text: str, label_words, answer) -> None:
    assert parse(TASKS[name], text, label_words) == answer


@given(text=st.text())
def test_parse_never_fails_and_only_knows_the_tasks_words(text: str) -> None:
    for task in TASKS.values():
        answer = parse(task, text)
        if task.kind in ("classes", "choice"):
            assert (answer is None) == (text.strip() not in task.labels)


def test_label_words_are_checked() -> None:
    row = Row({"sentence": "A."}, 1)
    for call in (
        lambda: targets(TASKS["cola"], row, "letters"),
        lambda: parse(TASKS["cola"], "1", ""),
    ):  # type: ignore[arg-type]
        with pytest.raises(TaskError, match="expected 'words' or 'digits'"):
            call()


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_for_encoders(name: str, training: dict[str, list[Row]]) -> None:
    assert pair(TASKS[name], training[name][0]) == PAIRS[name]
    with pytest.raises(TaskError, match=r"pair\(\)"):
        candidate_pairs(TASKS[name], training[name][0])


@pytest.mark.parametrize("name", CANDIDATES)
def test_candidates_for_encoders(name: str, training: dict[str, list[Row]]) -> None:
    assert candidate_pairs(TASKS[name], training[name][0]) == CANDIDATES[name]
    with pytest.raises(TaskError, match=r"candidate_pairs\(\)"):
        pair(TASKS[name], training[name][0])


def test_a_question_that_copa_does_not_ask(training: dict[str, list[Row]]) -> None:
    row = training["copa"][0]
    asked = replace(row, fields={**row.fields, "question": "reason"})
    with pytest.raises(TaskError, match="the question is 'reason'; expected 'cause' or 'effect'"):
        candidate_pairs(TASKS["copa"], asked)


def test_an_effect_is_asked_for_as_one(training: dict[str, list[Row]]) -> None:
    found = candidate_pairs(TASKS["copa"], training["copa"][1])
    assert found.pairs[1] == Pair("I dropped it. What was the effect of this?", "It broke.")
    assert found.right == (False, True)


def test_the_best_candidate_is_the_answer(training: dict[str, list[Row]]) -> None:
    assert chosen(TASKS["copa"], training["copa"][0], [-2.0, -1.0]) == 1
    assert chosen(TASKS["copa"], training["copa"][0], [0.0, 0.0]) == 0
    assert chosen(TASKS["record"], training["record"][0], [0.1, 0.9, 0.2]) == "Oslo"
    assert chosen(TASKS["record"], Row({"query": "q", "passage": "p"}), []) is None
    with pytest.raises(TaskError, match="1 scores for 2 candidates"):
        chosen(TASKS["copa"], training["copa"][0], [1.0])


def test_a_head_has_an_output_for_each_class_or_one_score() -> None:
    outputs = {name: task.num_labels for name, task in TASKS.items()}
    assert {name for name, count in outputs.items() if count == 3} == {"mnli", "cb"}
    assert {name for name, count in outputs.items() if count == 1} == {"stsb", "copa", "record"}

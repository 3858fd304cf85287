"""Scores against formulas that are written out here."""

from __future__ import annotations

import math
from statistics import mean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compacter.errors import TaskError
from compacter.tasks import TASKS, Row, mean_score, score
from compacter.tasks.metrics import normalised

CLASS_TASKS = [name for name, task in TASKS.items() if task.labels and name != "multirc"]


def labelled(labels: list) -> list[Row]:
    return [Row({}, label, group=(0, i // 2), index=i) for i, label in enumerate(labels)]


def f1_of(cls: int, gold: list[int], predicted: list[int]) -> float:
    hit = sum(g == p == cls for g, p in zip(gold, predicted, strict=True))
    total = gold.count(cls) + predicted.count(cls)
    return 100 * 2 * hit / total if total else 0.0


def matthews(gold: list[int], predicted: list[int]) -> float:
    pairs = list(zip(gold, predicted, strict=True))
    tp, tn = pairs.count((1, 1)), pairs.count((0, 0))
    fp, fn = pairs.count((0, 1)), pairs.count((1, 0))
    below = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return 100 * (tp * tn - fp * fn) / below if below else 0.0


def opposed(gold: list[int], predicted: list[int | None]) -> list[int]:
    return [1 - g if p is None else p for g, p in zip(gold, predicted, strict=True)]


def close(value: float):
    return pytest.approx(value, abs=1e-9)


two_classes = st.lists(
    st.tuples(st.integers(0, 1), st.none() | st.integers(0, 1)), min_size=1, max_size=40
)
three_classes = st.lists(
    st.tuples(st.integers(0, 2), st.none() | st.integers(0, 2)), min_size=1, max_size=40
)
quick = settings(deadline=None, max_examples=60)


@quick
@given(pairs=two_classes)
def test_two_classes(pairs) -> None:
    gold, predicted = (list(side) for side in zip(*pairs, strict=True))
    rows = labelled(gold)
    accuracy = 100 * mean(g == p for g, p in pairs)
    f1 = f1_of(1, gold, opposed(gold, predicted))
    for name in ("mrpc", "qqp"):
        assert score(TASKS[name], predicted, rows) == {"accuracy": close(accuracy), "f1": close(f1)}
    for name in ("sst2", "qnli", "rte", "boolq", "copa", "wic"):
        assert score(TASKS[name], predicted, rows) == {"accuracy": close(accuracy)}
    expected = matthews(gold, opposed(gold, predicted))
    assert score(TASKS["cola"], predicted, rows) == {"matthews": close(expected)}


@quick
@given(pairs=three_classes)
def test_three_classes(pairs) -> None:
    gold, predicted = (list(side) for side in zip(*pairs, strict=True))
    found = score(TASKS["cb"], predicted, labelled(gold))
    assert found["accuracy"] == close(100 * mean(g == p for g, p in pairs))
    assert found["f1"] == close(mean(f1_of(cls, gold, predicted) for cls in range(3)))


def test_an_invalid_answer_adds_no_class_to_cb() -> None:
    found = score(TASKS["cb"], [0, 1, 2, None], labelled([0, 1, 2, 2]))
    assert found["f1"] == close((100 + 100 + 100 * 2 / 3) / 3)
    assert score(TASKS["cb"], [0, 1, 2, -1], labelled([0, 1, 2, 2])) == found
    assert score(TASKS["cb"], [0, 1, 2, 7], labelled([0, 1, 2, 2])) == found


@quick
@given(
    pairs=st.lists(
        st.tuples(st.integers(0, 25), st.none() | st.integers(0, 25)), min_size=3, max_size=40
    )
)
def test_numbers(pairs) -> None:
    gold = [g / 5 for g, _ in pairs]
    predicted = [None if p is None else p / 5 for _, p in pairs]
    values = [-1.0 if p is None else p for p in predicted]
    found = score(TASKS["stsb"], predicted, labelled(gold))

    def correlation(x: list[float], y: list[float]) -> float:
        if len(set(x)) < 2 or len(set(y)) < 2:
            return 0.0
        return 100 * float(np.corrcoef(x, y)[0, 1])

    def ranks(x: list[float]) -> list[float]:
        return [sum(v < u for v in x) + (x.count(u) + 1) / 2 for u in x]

    assert found["pearson"] == pytest.approx(correlation(gold, values), abs=1e-6)
    assert found["spearman"] == pytest.approx(correlation(ranks(gold), ranks(values)), abs=1e-6)


@pytest.mark.parametrize(
    "predicted",
    [[3.0] * 4, [None] * 4, [math.nan] * 4, [math.inf, -math.inf, None, math.nan]],
)
def test_predictions_that_say_nothing_correlate_with_nothing(predicted) -> None:
    found = score(TASKS["stsb"], predicted, labelled([0.0, 1.0, 2.5, 5.0]))
    assert found == {"pearson": 0.0, "spearman": 0.0}


def test_one_row_and_constant_scores_have_no_correlation() -> None:
    assert score(TASKS["stsb"], [1.0], labelled([2.0])) == {"pearson": 0.0, "spearman": 0.0}
    assert score(TASKS["stsb"], [1.0, 2.0], labelled([2.0, 2.0]))["pearson"] == 0.0


def test_what_is_no_number_counts_as_minus_one() -> None:
    rows = labelled([0.0, 1.0, 2.0, 5.0])
    assert score(TASKS["stsb"], [None, 1.0, 2.0, 5.0], rows) == score(
        TASKS["stsb"], [-1.0, 1.0, 2.0, 5.0], rows
    )


@quick
@given(
    answers=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 1), st.none() | st.integers(0, 1)),
        min_size=1,
        max_size=40,
    )
)
def test_multirc(answers) -> None:
    rows = [Row({}, gold, group=(0, q), index=i) for i, (q, gold, _) in enumerate(answers)]
    gold, predicted = [a[1] for a in answers], [a[2] for a in answers]
    found = score(TASKS["multirc"], predicted, rows)
    questions = {q for q, _, _ in answers}
    right = sum(all(g == p for r, g, p in answers if r == q) for q in questions)
    assert found["em"] == close(100 * right / len(questions))
    assert found["f1a"] == close(f1_of(1, gold, opposed(gold, predicted)))


def test_questions_of_different_paragraphs_are_different() -> None:
    rows = [Row({}, 1, group=(0, 0)), Row({}, 1, group=(1, 0))]
    assert score(TASKS["multirc"], [1, 0], rows)["em"] == 50.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat!", "cat"),
        ("a man, an ant & the sea", "man ant sea"),
        ("U.S.", "us"),
        ("Theatre another", "theatre another"),
        ("Jürgen's", "jürgens"),
        ("the", ""),
    ],
)
def test_normalised_texts(text: str, expected: str) -> None:
    assert normalised(text) == expected


@pytest.mark.parametrize(
    ("prediction", "answers", "f1", "em"),
    [
        ("the Oslo", ("Oslo",), 100.0, 100.0),
        ("oslo.", ("Bergen", "Oslo"), 100.0, 100.0),
        ("Oslo city", ("Oslo",), 200 / 3, 0.0),
        ("New York", ("New York City", "York"), 80.0, 0.0),
        ("York York", ("York",), 200 / 3, 0.0),
        ("Bergen", ("Oslo",), 0.0, 0.0),
        ("", ("Oslo",), 0.0, 0.0),
        (None, ("Oslo",), 0.0, 0.0),
    ],
)
def test_record(prediction, answers: tuple[str, ...], f1: float, em: float) -> None:
    found = score(TASKS["record"], [prediction], [Row({}, answers=answers)])
    assert found == {"f1": close(f1), "em": em}


def perfect_rows(name: str) -> tuple[list, list[Row]]:
    task = TASKS[name]
    if task.kind == "entity":
        texts = ["Oslo", "Anna", "the Ravens"]
        return texts, [Row({}, answers=(text, "Else")) for text in texts]
    labels = [0.0, 2.4, 5.0] if task.kind == "number" else [*range(len(task.labels))] * 2
    return labels, labelled(labels)


@pytest.mark.parametrize("name", TASKS)
def test_perfect_answers_score_100(name: str) -> None:
    predictions, rows = perfect_rows(name)
    found = score(TASKS[name], predictions, rows)
    assert tuple(found) == TASKS[name].metrics
    assert found == {metric: close(100.0) for metric in TASKS[name].metrics}
    assert mean_score(found) == close(100.0)


@pytest.mark.parametrize("name", TASKS)
def test_invalid_answers_score_nothing(name: str) -> None:
    _, rows = perfect_rows(name)
    found = score(TASKS[name], [None] * len(rows), rows)
    expected = dict.fromkeys(TASKS[name].metrics, 0.0)
    if name == "cola":
        expected["matthews"] = -100.0  # the opposite class, every time
    assert found == {metric: close(value) for metric, value in expected.items()}


@quick
@given(data=st.data(), name=st.sampled_from(sorted(TASKS)))
def test_bounds_and_the_order_of_rows(data, name: str) -> None:
    task = TASKS[name]
    count = data.draw(st.integers(1, 20))

    def draw(options) -> list:
        return data.draw(st.lists(options, min_size=count, max_size=count))

    if task.kind == "entity":
        names = st.sampled_from(["Oslo", "New York", "York", "the sea"])
        rows = [Row({}, answers=(answer,), index=i) for i, answer in enumerate(draw(names))]
        predictions = draw(st.none() | names)
    elif task.kind == "number":
        numbers = st.integers(0, 25).map(lambda i: i / 5)
        rows, predictions = labelled(draw(numbers)), draw(st.none() | numbers)
    else:
        classes = st.integers(0, len(task.labels) - 1)
        rows, predictions = labelled(draw(classes)), draw(st.none() | classes)
    found = score(task, predictions, rows)
    for metric, value in found.items():
        lowest = -100 if metric in ("matthews", "pearson", "spearman") else 0
        assert lowest - 1e-9 <= value <= 100 + 1e-9
    turned = data.draw(st.permutations(range(count)))
    again = score(task, [predictions[i] for i in turned], [rows[i] for i in turned])
    assert again == {metric: pytest.approx(value, abs=1e-6) for metric, value in found.items()}


@pytest.mark.parametrize("name", CLASS_TASKS)
@pytest.mark.parametrize("constant", [0, 1])
def test_one_class_only_is_a_number(name: str, constant: int) -> None:
    rows = labelled([0, 1, 1, 0])
    found = score(TASKS[name], [constant] * 4, rows)
    assert all(math.isfinite(value) for value in found.values())
    if name == "cola":
        assert found == {"matthews": 0.0}


def test_numbers_of_numpy_are_numbers() -> None:
    rows = labelled([0, 1])
    assert score(TASKS["rte"], list(np.array([0, 1])), rows) == {"accuracy": 100.0}
    found = score(TASKS["stsb"], list(np.array([0, 1], np.float32)), labelled([0.0, 1.0]))
    assert found["pearson"] == close(100.0)


def test_the_mean_is_over_the_tasks_metrics() -> None:
    assert mean_score({"accuracy": 90.0, "f1": 80.0}) == 85.0
    with pytest.raises(TaskError, match="no metrics"):
        mean_score({})


@pytest.mark.parametrize(
    ("name", "predictions", "rows", "message"),
    [
        ("rte", [0], [], "1 predictions for 0 rows"),
        ("rte", [], [], "no rows to score"),
        ("rte", [0], [Row({}, None, index=4)], "row 4 has no label"),
        ("record", ["x"], [Row({})], "row 0 has no label"),
        ("rte", ["entailment"], [Row({}, 0)], "the index of a class or None"),
        ("rte", [0.5], [Row({}, 0)], "found the prediction 0.5"),
        ("stsb", ["2.4"], [Row({}, 2.4)], "expected a number or None"),
        ("record", [1], [Row({}, answers=("x",))], "expected a text or None"),
    ],
)
def test_what_cannot_be_scored(name: str, predictions, rows, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        score(TASKS[name], predictions, rows)

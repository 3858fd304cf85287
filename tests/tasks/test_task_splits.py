"""The paper's splits, computed again in another way."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compacter.errors import TaskError
from compacter.tasks import TASKS, Row, Splits, fingerprint, paper_split, paper_splits, take
from compacter.tasks.splits import carve, halve, permutation


def make_rows(count: int, start: int = 0) -> list[Row]:
    return [Row({"sentence": f"row {i}"}, i % 2, index=i) for i in range(start, start + count)]


def order(count: int, seed: int = 42) -> list[int]:
    generator = torch.Generator()
    generator.manual_seed(seed)
    return [int(i) for i in torch.randperm(count, generator=generator)]


def indices(rows: list[Row]) -> list[int]:
    return [row.index for row in rows]


@pytest.mark.parametrize("name", ["rte", "mrpc", "stsb", "cola", "copa", "wic", "cb", "boolq"])
@pytest.mark.parametrize("count", [2, 7, 56, 277])
def test_small_tasks_halve_the_validation_set(name: str, count: int) -> None:
    published = {"train": make_rows(5), "validation": make_rows(count)}
    splits = paper_splits(TASKS[name], published.__getitem__)
    expected = order(count)
    assert splits.train == published["train"]
    assert indices(splits.validation) == expected[: count // 2]
    assert indices(splits.test) == expected[count // 2 :]


@pytest.mark.parametrize("name", ["sst2", "qqp", "qnli", "mnli", "record"])
@pytest.mark.parametrize(("count", "carved"), [(10_500, 1_000), (10_000, 1_000), (50, 5), (2, 1)])
def test_large_tasks_carve_the_training_set(name: str, count: int, carved: int) -> None:
    published = {"train": make_rows(count), "validation": make_rows(9)}
    splits = paper_splits(TASKS[name], published.__getitem__)
    expected = order(count)
    assert indices(splits.validation) == expected[:carved]
    assert indices(splits.train) == expected[carved:]
    assert splits.test == published["validation"]


def test_the_permutation_is_torchs() -> None:
    """Written out, so that a change of torch's generator does not pass unseen."""
    assert permutation(10) == order(10) == [2, 6, 1, 8, 4, 5, 0, 9, 3, 7]


@settings(deadline=None, max_examples=50)
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=30))
def test_multirc_never_splits_a_question(sizes: list[int]) -> None:
    rows = []
    for question, size in enumerate(sizes):
        for answer in range(size):
            fields = {"question": "q", "answer": str(answer), "paragraph": "p"}
            rows.append(Row(fields, 0, group=(question // 3, question), index=len(rows)))
    validation, test = halve(rows, together=True)
    expected = order(len(sizes))
    half = len(sizes) // 2
    for found, questions in ((validation, expected[:half]), (test, expected[half:])):
        wanted = [i for q in questions for i, row in enumerate(rows) if row.group == (q // 3, q)]
        assert indices(found) == wanted
    splits = paper_splits(TASKS["multirc"], {"train": rows, "validation": rows}.__getitem__)
    assert (splits.validation, splits.test) == (validation, test)


def test_one_split_loads_only_what_it_needs() -> None:
    asked: list[str] = []

    def published(split: str) -> list[Row]:
        asked.append(split)
        return make_rows(20)

    needs = {
        ("rte", "train"): "train",
        ("rte", "validation"): "validation",
        ("rte", "test"): "validation",
        ("sst2", "train"): "train",
        ("sst2", "validation"): "train",
        ("sst2", "test"): "validation",
    }
    for name, split in needs:
        paper_split(TASKS[name], split, published)  # type: ignore[arg-type]
    assert asked == list(needs.values())
    asked.clear()
    paper_splits(TASKS["sst2"], published)
    assert asked == ["train", "validation"]


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(TaskError, match="no split 'dev'; choose one of train, validation, test"):
        paper_split(TASKS["rte"], "dev", lambda split: [])  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, -1, 3, 4])
def test_carving_leaves_rows_on_both_sides(size: int) -> None:
    with pytest.raises(TaskError, match="which has 3; expected at least one row on either side"):
        carve(make_rows(3), size)


@settings(deadline=None, max_examples=50)
@given(total=st.integers(1, 60), data=st.data(), seed=st.integers(0, 2**31))
def test_smaller_training_sets_are_parts_of_larger_ones(total, data, seed) -> None:
    rows = make_rows(total)
    small = data.draw(st.integers(1, total))
    large = data.draw(st.integers(small, total + 3))
    first, second = take(rows, small, seed), take(rows, large, seed)
    assert len(first) == small
    assert len(second) == min(large, total)
    assert set(indices(first)) <= set(indices(second))
    assert indices(first) == (order(total, seed)[:small] if small < total else indices(rows))


def test_taking_all_or_none() -> None:
    rows = make_rows(4)
    assert take(rows, None) == take(rows, 4) == take(rows, 100) == rows
    for count in (0, -3):
        with pytest.raises(TaskError, match=f"is {count}; expected at least 1"):
            take(rows, count)
    assert indices(take(make_rows(100), 5, 1)) != indices(take(make_rows(100), 5, 2))


def test_the_fingerprint_knows_every_part_of_every_row() -> None:
    full = Row({"a": "x", "b": "y"}, 1, ("r",), ("r", "s"), (0, 1), 3)
    same = Row({"b": "y", "a": "x"}, 1, ("r",), ("r", "s"), (0, 1), 3)
    base = fingerprint(Splits([full], [full], []))
    assert len(base) == 64
    assert fingerprint(Splits([same], [full], [])) == base
    others = [
        Row({"a": "x", "b": "z"}, 1, ("r",), ("r", "s"), (0, 1), 3),
        Row({"a": "x", "c": "y"}, 1, ("r",), ("r", "s"), (0, 1), 3),
        Row({"a": "x", "b": "y"}, 0, ("r",), ("r", "s"), (0, 1), 3),
        Row({"a": "x", "b": "y"}, None, ("r",), ("r", "s"), (0, 1), 3),
        Row({"a": "x", "b": "y"}, 1, (), ("r", "s"), (0, 1), 3),
        Row({"a": "x", "b": "y"}, 1, ("r",), ("r",), (0, 1), 3),
        Row({"a": "x", "b": "y"}, 1, ("r",), ("r", "s"), None, 3),
        Row({"a": "x", "b": "y"}, 1, ("r",), ("r", "s"), (0, 1), 4),
    ]
    changed = [fingerprint(Splits([other], [full], [])) for other in others]
    moved = [fingerprint(Splits([full], [], [full])), fingerprint(Splits([], [full, full], []))]
    assert len({base, *changed, *moved}) == len(others) + 3


def test_the_fingerprint_depends_on_the_order() -> None:
    one, two = make_rows(2)
    assert fingerprint(Splits([one, two], [], [])) != fingerprint(Splits([two, one], [], []))

"""The tasks that the package makes itself: always the same rows, and no way to guess them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from compacter.errors import TaskError
from compacter.tasks import (
    BUILTIN_TASKS,
    SPLITS,
    TASKS,
    Builtin,
    Row,
    Splits,
    find_task,
    fingerprint,
    load,
    load_split,
    pair,
)

NAMES = tuple(BUILTIN_TASKS)
DIGESTS = {
    "builtin/roles": "bf6af6e437ae5df9867a5281fcf4730a61fdd81acba7304d1fa29b4122cc4205",
    "builtin/tone": "f59c0ed741cf59bd436e1bf854fde71ac4c1bc9f69fdf31b580d35e854dceaac",
    "builtin/grammar": "41ac0968b43a24c292a606c7aa2f6e232e989f67743fec325fbbf2767082b7b1",
}
FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        """the a this that these those and but although not no all some did had has could may was
        were is by on near behind under often never always sometimes usually hardly far from
        anything seems looked became seemed""",
    )
)


@cache
def splits_of(name: str) -> Splits:
    return load(name)[1]


def texts(rows: list[Row]) -> list[tuple[str, ...]]:
    return [tuple(row.fields.values()) for row in rows]


def words(rows: list[Row]) -> set[str]:
    return set(re.findall(r"[a-z]+", " ".join(" ".join(text) for text in texts(rows)).lower()))


def labels(rows: list[Row]) -> list[int]:
    return [int(row.label) for row in rows if row.label is not None]


def stem(word: str) -> str:
    """Crude: without -s, -es, -ed, -d, -ing."""
    return re.sub(r"(ing|es|ed|s|d|e)$", "", word) if len(word) > 4 else word


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_always_the_same(name: str) -> None:
    assert fingerprint(splits_of(name)) == DIGESTS[name]


def test_rows_do_not_depend_on_the_order_of_hashes() -> None:
    code = "from compacter.tasks import load, fingerprint; print(fingerprint(load({!r})[1]))"
    for name in NAMES:
        result = subprocess.run(
            [sys.executable, "-c", code.format(name)],
            env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout.strip() == DIGESTS[name]


@pytest.mark.parametrize("name", NAMES)
def test_sizes(name: str) -> None:
    splits = splits_of(name)
    assert (len(splits.train), len(splits.validation)) == BUILTIN_TASKS[name].sizes
    assert len(splits.test) == 1_000


@pytest.mark.parametrize("name", NAMES)
def test_labels_are_balanced(name: str) -> None:
    for split in SPLITS:
        counts = Counter(labels(splits_of(name)[split]))
        assert len(counts) == 2
        assert counts[0] == counts[1]


@pytest.mark.parametrize("name", NAMES)
def test_no_row_appears_twice(name: str) -> None:
    every = [text for split in SPLITS for text in texts(splits_of(name)[split])]
    assert len(set(every)) == len(every)


@pytest.mark.parametrize("name", NAMES)
def test_content_words_of_splits_have_nothing_in_common(name: str) -> None:
    found = [words(splits_of(name)[split]) for split in SPLITS]
    for one, other in combinations(found, 2):
        assert one & other <= FUNCTION_WORDS
        stems = [{stem(word) for word in side - FUNCTION_WORDS} for side in (one, other)]
        assert not stems[0] & stems[1]


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_short_sentences(name: str) -> None:
    for split in SPLITS:
        for text in texts(splits_of(name)[split]):
            for sentence in text:
                assert re.fullmatch(r"[A-Z][a-z]*(,? [a-z]+)+\.", sentence)
                assert len(sentence.split()) <= 14


@pytest.mark.parametrize("name", NAMES)
def test_one_split_at_a_time(name: str) -> None:
    for split in SPLITS:
        task, rows = load_split(name, None, split)
        assert task is BUILTIN_TASKS[name]
        assert rows == splits_of(name)[split]
        assert rows == Builtin().load_rows(task, split)
        assert [row.index for row in rows] == list(range(len(rows)))


def test_fewer_training_rows() -> None:
    _, splits = load("builtin/tone", max_train_samples=100)
    assert len(splits.train) == 100
    assert splits.test == splits_of("builtin/tone").test


def test_a_task_that_the_package_does_not_make() -> None:
    with pytest.raises(TaskError, match="does not make the task 'rte'; it makes builtin/roles"):
        Builtin().load_rows(TASKS["rte"], "train")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("builtin/role", "did you mean 'builtin/roles'?"),
        ("builtin/Tone", "did you mean 'builtin/tone'?"),
        ("builtin", "choose one of builtin/roles, builtin/tone, builtin/grammar"),
        ("builtin/xyz", "choose one of builtin/roles"),
    ],
)
def test_an_unknown_builtin_task(name: str, hint: str) -> None:
    with pytest.raises(TaskError, match=re.escape(f"there is no task {name!r}; {hint}")):
        find_task(name)


def test_the_examples_of_the_documentation_are_rows() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text(encoding="utf-8")
    section = page.split("## Tasks that the package makes itself")[1].split("\n## ")[0]
    known = {
        (*text, BUILTIN_TASKS[name].labels[label])
        for name in NAMES
        for text, label in zip(
            texts(splits_of(name).test), labels(splits_of(name).test), strict=True
        )
    }
    shown = re.findall(r"^\| (?:\d*%? ?\| )?(.+\.) \| (\w+) \|$", section, re.MULTILINE)
    assert len(shown) > 20
    for text, label in shown:
        assert (*text.split(" | "), label) in known


# Surface clues


@pytest.mark.parametrize("name", NAMES)
def test_words_and_bigrams_do_not_tell_the_label(name: str) -> None:
    splits = splits_of(name)
    classifier = make_pipeline(
        CountVectorizer(ngram_range=(1, 2)), LogisticRegression(max_iter=2_000)
    )
    classifier.fit([" ".join(text) for text in texts(splits.train)], labels(splits.train))
    accuracy = classifier.score([" ".join(t) for t in texts(splits.test)], labels(splits.test))
    assert accuracy <= 0.60


@pytest.fixture(scope="module")
def embed() -> Any:
    """The mean of MiniLM's last hidden states, of length 1, as the model is meant to be used."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    from compacter.models import builtin_folder

    folder = builtin_folder("builtin/minilm")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder).eval()

    @torch.no_grad()
    def embed(sentences: list[str]) -> np.ndarray:
        different = sorted(set(sentences), key=lambda text: (len(text), text))
        found: dict[str, np.ndarray] = {}
        for start in range(0, len(different), 128):
            chunk = different[start : start + 128]
            batch = tokenizer(chunk, padding=True, return_tensors="pt")
            mask = batch["attention_mask"][..., None]
            mean = (model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
            unit = torch.nn.functional.normalize(mean, dim=-1).numpy()
            found.update(zip(chunk, unit, strict=True))
        return np.stack([found[sentence] for sentence in sentences])

    return embed


@pytest.mark.parametrize("name", NAMES)
def test_frozen_sentence_embeddings_do_not_tell_the_label(name: str, embed: Any) -> None:
    task, splits = BUILTIN_TASKS[name], splits_of(name)

    def features(rows: list[Row]) -> np.ndarray:
        pairs = [pair(task, row) for row in rows]
        a = embed([p.text_a for p in pairs])
        if pairs[0].text_b is None:
            return a
        b = embed([p.text_b for p in pairs])
        return np.concatenate([a, b, abs(a - b), a * b], axis=1)

    train, test = features(splits.train), features(splits.test)
    for strength in (1, 10):
        probe = LogisticRegression(C=strength, max_iter=2_000).fit(train, labels(splits.train))
        assert probe.score(train, labels(splits.train)) > 0.60  # it does learn something
        assert probe.score(test, labels(splits.test)) <= 0.65

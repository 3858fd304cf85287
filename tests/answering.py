"""Small runs to ask, and the files that they are asked with."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import compacter
from compacter.training.result import RESULT_NAME
from tiny_tasks import COLOURS, recipe_values

Rows = Sequence[Mapping[str, Any]]

PAIR = ("question", "answer")
"""The text columns of the run on pairs."""


def write_rows(path: Path, rows: Rows) -> Path:
    """The same rows in any format."""
    extension = path.suffix.lower()
    if extension == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    elif extension == ".jsonl":
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            delimiter = "\t" if extension == ".tsv" else ","
            writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    """What is in a file, read with other libraries' own means."""
    extension = path.suffix.lower()
    if extension == ".parquet":
        return pq.read_table(path).to_pylist()
    if extension == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if extension == ".tsv" else ","))


def make_run(kind: str, folder: Path) -> Path:
    """Does the text hold a cat (yes) or a dog (no)?"""
    values = recipe_values(kind, folder, method="compacter", bottleneck=16)
    compacter.train(output=folder / "run", **values)
    return folder / "run"


def make_run_on_pairs(folder: Path) -> Path:
    values = recipe_values("bert", folder, method="compacter", epochs=1)
    draw = random.Random(0)
    rows = [
        {
            "question": f"{draw.choice(COLOURS)} {animal}",
            "answer": draw.choice(COLOURS),
            "label": f"is, {animal}",
        }
        for animal in ("cat", "dog") * 20
    ]
    file = str(write_rows(folder / "pairs.csv", rows))
    files = {"train_file": file, "validation_file": None, "test_file": None}
    compacter.train(output=folder / "run", **{**values, **files, "text_columns": PAIR})
    return folder / "run"


def make_run_on_numbers(folder: Path) -> Path:
    values = recipe_values("bert", folder, method="compacter", epochs=1)
    rows = [{"text": word, "label": i + 0.5} for i, word in enumerate(COLOURS * 5)]
    file = str(write_rows(folder / "numbers.csv", rows))
    files = {"train_file": file, "validation_file": None, "test_file": None}
    compacter.train(output=folder / "run", **{**values, **files})
    return folder / "run"


def without_model(run: Path, folder: Path) -> Path:
    """A run whose model cannot be loaded, so that what is told of it is told before."""
    result = json.loads((run / RESULT_NAME).read_text())
    result["recipe"]["model"] = str(folder / "nowhere")
    folder.mkdir()
    (folder / RESULT_NAME).write_text(json.dumps(result))
    return folder

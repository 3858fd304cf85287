"""What a run leaves behind, as plain data. docs/training.md describes every field. Importing this
imports no torch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from compacter.errors import TrainingError

if TYPE_CHECKING:
    from compacter.tasks import Row
    from compacter.training.pipelines import Prediction

CHECKPOINTS = "checkpoints"
RESULT_NAME = "result.json"
PREDICTIONS_NAME = "predictions.jsonl"
ADAPTER_NAME = "adapter"
MODEL_NAME = "model"

Status = Literal["finished", "diverged"]


@dataclass(frozen=True)
class Result:
    """Everything that a run learned."""

    method: str
    task: str
    model: str
    seed: int
    recipe: dict[str, Any]
    trainable: int
    head_trainable: int
    percent: float
    validation: dict[str, float]
    test: dict[str, float]
    score: float | None
    """The mean of the test metrics; of the validation metrics where there is no test set."""
    status: Status
    warnings: list[str]
    best_checkpoint: int | None
    """The step of the checkpoint that was tested."""
    seconds: float
    samples_per_second: float
    peak_memory_bytes: int
    versions: dict[str, str]
    data_fingerprint: str
    settings: dict[str, Any] = field(default_factory=dict)
    """The method's own settings as they were used, whether or not the recipe gave them."""
    curve: list[dict[str, float]] = field(default_factory=list)
    """Loss, learning rate and validation scores by step."""

    def write(self, folder: Path) -> None:
        write_atomically(
            folder / RESULT_NAME, json.dumps(asdict(self), indent=1, allow_nan=False) + "\n"
        )


def read_result(folder: Path) -> Result:
    path = folder / RESULT_NAME
    try:
        return Result(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise TrainingError(f"{str(folder)!r} holds no {RESULT_NAME}; expected a run") from None
    except (OSError, ValueError, TypeError) as error:
        raise TrainingError(f"{str(path)!r} is not the result of a run: {error}") from None


def read_summary(folder: Path) -> dict[str, Any]:
    """A result without its curve, which is most of the file and stands last in it; empty if there
    is none. Many results are listed so in the time that a few take to be read whole."""
    try:
        text = (folder / RESULT_NAME).read_text(encoding="utf-8")
        head, curve, _ = text.partition(',\n "curve": [')
        found = json.loads(f"{head}\n}}" if curve and text.endswith("}\n") else text)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_predictions(
    folder: Path, rows: Sequence[Row], predictions: Sequence[Prediction], split: str
) -> None:
    lines = (
        json.dumps(
            {
                "split": split,
                "index": row.index,
                "prediction": prediction.text,
                "answer": _number_or_none(prediction.answer),
                "score": _number_or_none(round(prediction.score, 6)),
                "label": row.label if row.label is not None else list(row.answers),
            }
            | ({} if row.group is None else {"group": list(row.group)}),
            allow_nan=False,
        )
        for row, prediction in zip(rows, predictions, strict=True)
    )
    write_atomically(folder / PREDICTIONS_NAME, "".join(f"{line}\n" for line in lines))


def _number_or_none(value: Any) -> Any:
    """JSON has no word for a number that is none."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_atomically(path: Path, content: str | bytes) -> None:
    """The file is whole or as it was, whenever the process, or the machine, ends."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def versions() -> dict[str, str]:
    found = {}
    for package in ("compacter-peft", "torch", "transformers", "peft", "datasets"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found

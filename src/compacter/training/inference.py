"""What one does with a finished run: evaluate it on a split, predict new texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from torch import nn

from compacter.errors import TrainingError
from compacter.methods import Method, find_method
from compacter.models.pretrained import kind_of, load_config, load_model, load_tokenizer
from compacter.tasks import Row, Split, Task, load_split, score
from compacter.training.answers import AnswerFile
from compacter.training.folder import NEW_NAME, RECIPE_NAME
from compacter.training.inputs import Source, as_row
from compacter.training.memory import memory_advice
from compacter.training.pipelines import Pairs, Pipeline, Prediction, make_pipeline
from compacter.training.prepare import HEAD_ONLY, prepare_model
from compacter.training.recipe import DATA_KEYS, Recipe
from compacter.training.result import ADAPTER_NAME, MODEL_NAME, RESULT_NAME, read_result
from compacter.training.weights import check_finite, load_adapter


@dataclass(frozen=True)
class TrainedRun:
    """A model as a run left it, ready to answer."""

    recipe: Recipe
    task: Task
    model: nn.Module
    pipeline: Pipeline

    def predict(self, rows: Sequence[Row]) -> list[Prediction]:
        """One prediction for each row; one that is no number is an error."""
        assert self.recipe.batch_size is not None
        found = self.pipeline.predict(self.model, rows, self.recipe.batch_size, probabilities=True)
        for number, prediction in enumerate(found, start=1):
            if not prediction.is_finite:
                raise TrainingError(
                    f"the model computes NaN or infinite numbers for text {number} of {len(rows)}, "
                    "so there is no answer; expected weights that give finite numbers"
                )
        return found

    def for_task(self, task: Task) -> Self:
        """The same for another task with the same answers."""
        return replace(self, task=task, pipeline=self.pipeline.for_task(task))


def load_run(folder: str | Path) -> TrainedRun:
    """The run in a folder, which is that of the run, or of the adapter or model in it, wherever it
    was copied to."""
    weights, recipe, settings = _find(Path(folder))
    task = task_of(recipe)
    method = _adapter_method(recipe)
    name = str(weights) if method is None else recipe.model
    kind = kind_of(load_config(name))
    tokenizer = load_tokenizer(name)
    assert recipe.max_length is not None
    pipeline = make_pipeline(task, tokenizer, kind, recipe.max_length, recipe.label_words)
    head = pipeline.head if isinstance(pipeline, Pairs) else {}
    loaded = load_model(name, kind, quantize=recipe.quantize, whole=method is None, **head)
    model = loaded.model
    prepare_model(model, kind, tokenizer, pipeline)
    if method is None:
        check_finite(dict(model.named_parameters()), weights)
    else:
        model = load_adapter(model, weights, method, settings, loaded.new_heads)
    return TrainedRun(recipe, task, model.eval(), pipeline)


def _adapter_method(recipe: Recipe) -> Method | None:
    """The method whose adapter a run leaves; None if it leaves a whole model."""
    method = None if recipe.method == HEAD_ONLY else find_method(recipe.method)
    return None if method is None or method.family == "full" else method


def _find(folder: Path) -> tuple[Path, Recipe, dict[str, Any]]:
    """The folder with the weights, the run's recipe and its method's settings: those of its result,
    or, where the weights were copied away from it, of the recipe beside them, which does not know
    where the data is."""
    weights = _weights(folder)
    run = weights.absolute().parent
    is_there = (run / RESULT_NAME).exists() and _weights(run) == weights.absolute()
    if not is_there and (weights / RECIPE_NAME).exists():
        recipe = Recipe.read(weights / RECIPE_NAME)
        return weights, recipe, recipe.method_settings()
    result = read_result(run if is_there else folder)
    recipe = Recipe.make(result.recipe)
    return weights, recipe, recipe.method_settings() | result.settings


def _weights(folder: Path) -> Path:
    """Those of a run, else the folder itself. A model beside an adapter is the adapter's base."""
    new = folder / NEW_NAME  # counts where the process that was to put it in its place was killed
    places = (folder, new) if (new / RESULT_NAME).exists() else (folder,)
    paths = [place / name for place in places for name in (ADAPTER_NAME, MODEL_NAME)]
    return next((path for path in paths if path.is_dir()), folder)


def task_of(recipe: Recipe) -> Task:
    """The task of a recipe, without its data where the labels are known."""
    from compacter.tasks import UserData, find_task

    source = recipe.source()
    if isinstance(source, UserData):
        return source.task()
    assert recipe.task is not None
    return find_task(recipe.task)


@memory_advice()
def evaluate(folder: str | Path, split: Split = "test", **data: Any) -> dict[str, float]:
    """The scores of a run on a split of its data, or of other data: `data` are the keys of a recipe
    that say where it is."""
    run = load_run(folder)
    recipe = run.recipe
    if data:
        recipe = Recipe.make(recipe.model_dump() | _other_data(recipe, data))
    task, rows = load_split(recipe.task, recipe.source(), split)
    if not rows:
        raise TrainingError(f"{task.name} has no {split} rows")
    if (task.kind, task.labels) != (run.task.kind, run.task.labels):
        raise TrainingError(
            f"the run answers {_answers(run.task)}, and {task.name} asks for {_answers(task)}; "
            "expected the same"
        )
    found = run.for_task(task).predict(rows)
    return score(task, [prediction.answer for prediction in found], rows)


def _other_data(recipe: Recipe, data: dict[str, Any]) -> dict[str, Any]:
    """A benchmark's task replaces a run's own files, and the other way round; the labels stay. Of
    own files, those that are not named stay."""
    names_files = any(data.get(name) for name in ("train_file", "validation_file", "test_file"))
    if recipe.train_file is None and names_files:
        task = task_of(recipe)
        answers = {"labels": task.labels or None, "regression": task.kind == "number"}
        # What the labels are is known, so a training file is not read.
        return {"task": None, "data_dir": None, "train_file": "", **answers, **data}
    if recipe.train_file is not None and not names_files and data.keys() & {"task", "data_dir"}:
        return dict.fromkeys(DATA_KEYS) | {"text_columns": (), "label_column": "label"} | data
    return data


def _answers(task: Task) -> str:
    return {"number": "numbers", "entity": "entities"}.get(task.kind, ", ".join(task.labels))


def predict(
    folder: str | Path,
    texts: Sequence[Any] | None = None,
    *,
    file: str | Path | None = None,
    output: str | Path | None = None,
) -> list[Prediction]:
    """Answers to new texts, or to those of a file. A text is a string, or a mapping of the task's
    fields. A file is a table (CSV, TSV, JSONL, Parquet) with the columns that the run was trained
    on, or has a text on each line. `output`, a table as well, gets the answers beside the texts."""
    if texts is not None and file is not None:
        raise TrainingError("texts and file: found both; expected one of them")
    if texts is not None:
        source = Source.from_list(texts)
    elif file is not None:
        source = Source.from_file(Path(file))
    else:
        raise TrainingError("texts and file: found none; expected one of them")
    return [found for _, found in answer(folder, source, output)]


@memory_advice()
def answer(
    folder: str | Path, source: Source, output: str | Path | None = None
) -> list[tuple[Any, Prediction]]:
    """What a source gives, each with its answer. All of it is checked before the model is
    loaded."""
    task = task_of(_find(Path(folder))[1])
    given = source.read(task)
    rows = [as_row(task, value, index, where) for index, (where, value) in enumerate(given)]
    file = None if output is None else AnswerFile(Path(output), task, given, source.file)
    predictions = load_run(folder).predict(rows)
    if file is not None:
        file.write(predictions)
    return [(value, found) for (_, value), found in zip(given, predictions, strict=True)]

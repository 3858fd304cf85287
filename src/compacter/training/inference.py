"""What one does with a finished run: evaluate it on a split, predict new texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from torch import nn

from compacter.errors import TrainingError
from compacter.methods import Method, find_method
from compacter.models.pretrained import kind_of, load_config, load_model, load_tokenizer
from compacter.tasks import Row, Split, Task, load_split, score
from compacter.training.folder import NEW_NAME, RECIPE_NAME
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
        found = self.pipeline.predict(self.model, rows, self.recipe.batch_size)
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
    new = folder / NEW_NAME  # counts where the process that was to put it in its place was killed
    places = (folder, new) if (new / RESULT_NAME).exists() else (folder,)
    paths = [place / name for place in places for name in (MODEL_NAME, ADAPTER_NAME)]
    inside = [path for path in paths if path.is_dir()]
    weights = inside[0] if inside else folder
    run = weights.absolute().parent
    is_there = (run / RESULT_NAME).exists()
    if not is_there and (weights / RECIPE_NAME).exists():
        recipe = Recipe.read(weights / RECIPE_NAME)
        return weights, recipe, recipe.method_settings()
    result = read_result(run if is_there else folder)
    recipe = Recipe.make(result.recipe)
    return weights, recipe, recipe.method_settings() | result.settings


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


@memory_advice()
def predict(folder: str | Path, texts: Sequence[Any]) -> list[Prediction]:
    """Answers to new texts. A text is a string, or a mapping of the task's fields."""
    run = load_run(folder)
    return run.predict([as_row(run.task, text, index) for index, text in enumerate(texts)])


def as_row(task: Task, text: Any, index: int = 0) -> Row:
    """A row of the task from a string (where it has one text) or a mapping of its fields."""
    if isinstance(text, str):
        if len(task.fields) > 1:
            raise TrainingError(
                f"{task.name} reads {len(task.fields)} texts ({', '.join(task.fields)}) and one "
                "was given; give an object with these keys"
            )
        text = {task.fields[0]: text}
    missing = [name for name in task.fields if name not in text and name != "entities"]
    if missing:
        raise TrainingError(
            f"{task.name} reads {', '.join(task.fields)}; found {', '.join(map(str, text))}, "
            f"missing {missing[0]!r}"
        )
    candidates = _candidates(task, text)
    if task.kind == "choice" and not candidates:
        candidates = tuple(str(text[name]) for name in ("choice1", "choice2") if name in text)
    fields = {name: str(text[name]) for name in task.fields if name != "entities"}
    return Row(fields=fields, candidates=candidates, index=index)


def _candidates(task: Task, text: Mapping[str, Any]) -> tuple[str, ...]:
    """The answers to choose from, where a task's rows bring them."""
    name = "candidates" if "candidates" in text else "entities"
    given = text.get(name, [])
    if not isinstance(given, list | tuple) or not all(isinstance(part, str) for part in given):
        raise TrainingError(f"{task.name}: {name} is {given!r}; expected a list of texts")
    if task.kind == "entity" and not given:
        raise TrainingError(f"{task.name} chooses between entities; expected a list of 'entities'")
    return tuple(given)

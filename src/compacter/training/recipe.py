"""A recipe: everything that decides the result of a run, as flat keys that mirror the flags.

What is left out is filled in from the paper when the run starts; the filled-in recipe is written
beside the result."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from compacter.errors import TrainingError
from compacter.tasks import LabelWords, OfficialFiles, Source, UserData
from compacter.training.result import write_atomically

DEFAULT_TASK = "builtin/roles"

METHOD_SETTINGS = (
    "n",
    "bottleneck",
    "rank",
    "drop_layers",
    "intrinsic_dim",
    "num_tokens",
    "tune_output_layer",
    "train_layer_norms",
    "use_bias",
    "activation",
    "A_std",
)

DATA_KEYS = (
    "task",
    "data_dir",
    "train_file",
    "validation_file",
    "test_file",
    "text_columns",
    "label_column",
    "labels",
    "regression",
)

DATA_PLACES = ("data_dir", "train_file", "validation_file", "test_file")
"""Keys that say where the data is, not what it is."""


def _field(default: Any, description: str, **limits: Any) -> Any:
    return Field(default=default, description=description, **limits)


class Recipe(BaseModel):
    """The settings of a run; None is the paper's choice, or the method's own."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    # What to train
    model: str = _field("builtin/minilm", "a name on the hub, a folder, a .gguf file")
    method: str = _field("compacter++", "a method of 'compacter methods', or head-only")
    n: int | None = _field(None, "number of Kronecker products", ge=1)
    bottleneck: int | None = _field(None, "width of the bottleneck", ge=1)
    rank: int | None = _field(None, "rank of the low-rank factors", ge=1)
    drop_layers: int | None = _field(None, "lowest layers without an adapter", ge=0)
    intrinsic_dim: int | None = _field(None, "numbers that Intrinsic-SAID trains", ge=2)
    num_tokens: int | None = _field(None, "length of a tuned prompt", ge=1)
    tune_output_layer: bool | None = _field(None, "train the output layer too (Appendix C)")
    train_layer_norms: bool | None = _field(None, "train the layer norms too")
    use_bias: bool | None = _field(None, "biases in the adapters")
    activation: str | None = _field(None, "activation of the adapters")
    A_std: float | None = _field(None, "initial standard deviation of A", gt=0)

    # On what
    task: str | None = _field(None, "a task of 'compacter tasks', or a name for your own files")
    data_dir: str | None = _field(
        None, "the official GLUE or SuperGLUE files: the task's folder or one above it"
    )
    train_file: str | None = _field(None, "your own data: .csv, .tsv, .jsonl or .parquet")
    validation_file: str | None = _field(None, "without it, a tenth of the training rows")
    test_file: str | None = _field(None, "without it there is no test score")
    text_columns: tuple[str, ...] = _field((), "the texts' columns, one or two", strict=False)
    label_column: str = _field("label", "the label's column")
    labels: tuple[str, ...] | None = _field(
        None, "your labels in order (default: as found)", strict=False
    )
    regression: bool | None = _field(
        None, "what your labels are (default: numbers if they have fractions)"
    )
    label_words: LabelWords = _field("words", "targets as T5's words, or as the authors' digits")
    max_train_samples: int | None = _field(None, "train on so many rows", ge=1)

    # How
    learning_rate: float | None = _field(None, "highest learning rate", gt=0)
    A_learning_rate: float | None = _field(None, "that of A, if A is to have its own", gt=0)
    epochs: int | None = _field(None, "passes over the training rows", ge=1)
    batch_size: int | None = _field(
        None, "rows of a batch on one device (default: the paper's, divided by the devices)", ge=1
    )
    max_length: int | None = _field(None, "tokens after which a text is cut", ge=8)
    warmup_steps: int | None = _field(None, "steps until the highest learning rate", ge=0)
    weight_decay: float = _field(0.0, "weight decay", ge=0)
    dropout: float | None = _field(None, "dropout of the base model", ge=0, lt=1)
    group_by_length: bool = _field(False, "batches of like lengths: less padding, less chance")
    gradient_accumulation: int = _field(1, "batches of one step", ge=1)
    save_steps: int | None = _field(None, "steps between checkpoints (default: an epoch)", ge=1)
    early_stopping: int | None = _field(None, "stop after so many checkpoints without gain", ge=1)
    seed: int = _field(42, "seed of everything random", ge=0, lt=2**32)
    bf16: bool = _field(False, "compute in bfloat16")
    quantize: Literal["4bit", "8bit"] | None = _field(None, "load the base model quantised")

    @classmethod
    def make(cls, values: dict[str, Any]) -> Self:
        """A recipe from plain values; what does not fit is told in one line."""
        for name in values:
            if name not in cls.model_fields:
                near = difflib.get_close_matches(str(name), cls.model_fields, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise TrainingError(f"there is no setting {name!r} in a recipe{hint}")
        try:
            return cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise TrainingError(
                f"{where}={first['input']!r} does not fit: {first['msg'].lower()}"
            ) from None

    @classmethod
    def read(cls, recipe: str | Path | None, given: dict[str, Any] | None = None) -> Self:
        """A recipe from a YAML file, or from one that the package brings; what is given wins."""
        values = {} if recipe is None else read_recipe(find_recipe(recipe))
        return cls.make(values | (given or {}))

    def write(self, path: Path) -> None:
        write_atomically(path, yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False))

    def task_name(self) -> str | None:
        """The task, or a name for own files; the package's own task where nothing is said."""
        nothing_said = self.task is None and self.data_dir is None and self.train_file is None
        return DEFAULT_TASK if nothing_said else self.task

    def method_settings(self) -> dict[str, Any]:
        """The settings of the method that were given."""
        given = {name: getattr(self, name) for name in METHOD_SETTINGS}
        return {name: value for name, value in given.items() if value is not None}

    def source(self) -> Source | None:
        """Where the rows come from: own files, official files, or None: the task's own place."""
        own = ("validation_file", "test_file", "text_columns", "labels", "regression")
        if self.train_file is None:
            stray = [name for name in own if getattr(self, name) not in (None, ())]
            if stray:
                raise TrainingError(
                    f"{stray[0]} is for your own files and there is no train_file; expected both "
                    "or neither"
                )
            return None if self.data_dir is None else OfficialFiles(self.data_dir)
        if self.data_dir is not None:
            raise TrainingError("data_dir and train_file are both given; expected one of them")
        if not self.text_columns:
            raise TrainingError("train_file needs text_columns, one or two names; found none")
        return UserData(
            train=self.train_file,
            validation=self.validation_file,
            test=self.test_file,
            text_columns=self.text_columns,
            label_column=self.label_column,
            labels=self.labels,
            regression=self.regression,
            name=self.task or "custom",
        )


class _Loader(yaml.SafeLoader):
    """YAML's own loader takes 3e-4 for text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read_recipe(path: Path, what: str = "recipe") -> dict[str, Any]:
    """The keys and values of a YAML file."""
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # a safe loader
    except (OSError, UnicodeDecodeError) as error:
        raise TrainingError(f"the {what} {str(path)!r} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise TrainingError(f"the {what} {str(path)!r} is not YAML: {reason}") from None
    if values is not None and not isinstance(values, dict):
        raise TrainingError(
            f"the {what} {str(path)!r} holds a {type(values).__name__}; expected lines of "
            "'key: value'"
        )
    return values or {}


def find_recipe(name: str | Path) -> Path:
    """The file of that name, or the ready recipe."""
    return find_file(name, ready_recipes(), "recipe")


def find_file(name: str | Path, ready: dict[str, Path], what: str) -> Path:
    """The file of that name, or the one that the package brings."""
    path = Path(name)
    if path.exists() or str(name) not in ready:
        if not path.exists() and path.name == str(name) and not path.suffix:
            near = difflib.get_close_matches(str(name), ready, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"ready ones: {', '.join(ready)}"
            raise TrainingError(
                f"there is no {what} {str(name)!r}, nor a file of that name; {hint}"
            )
        return path
    return ready[str(name)]


def ready_recipes() -> dict[str, Path]:
    """The recipes that the package brings, by name."""
    return ready_files("recipes")


def ready_files(kind: str) -> dict[str, Path]:
    folder = Path(__file__).parents[1] / kind
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}

"""A recipe: everything that decides the result of a run, as flat keys that mirror the flags.

What is left out is filled in from the paper when the run starts; the filled-in recipe is written
beside the result."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from compacter.errors import TrainingError
from compacter.tasks import Hub, LabelWords, OfficialFiles, Source, UserData

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


class Recipe(BaseModel):
    """The settings of a run; None is the paper's choice, or the method's own."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    # What to train
    model: str = "builtin/minilm"
    method: str = "compacter++"
    n: int | None = Field(default=None, ge=1)
    bottleneck: int | None = Field(default=None, ge=1)
    rank: int | None = Field(default=None, ge=1)
    drop_layers: int | None = Field(default=None, ge=0)
    intrinsic_dim: int | None = Field(default=None, ge=2)
    num_tokens: int | None = Field(default=None, ge=1)
    tune_output_layer: bool | None = None
    train_layer_norms: bool | None = None
    use_bias: bool | None = None
    activation: str | None = None
    A_std: float | None = Field(default=None, gt=0)

    # On what
    task: str | None = None
    data_dir: str | None = None
    train_file: str | None = None
    validation_file: str | None = None
    test_file: str | None = None
    text_columns: tuple[str, ...] = Field(default=(), max_length=2, strict=False)
    label_column: str = "label"
    labels: tuple[str, ...] | None = Field(default=None, strict=False)
    regression: bool | None = None
    label_words: LabelWords = "words"
    max_train_samples: int | None = Field(default=None, ge=1)

    # How
    learning_rate: float | None = Field(default=None, gt=0)
    epochs: int | None = Field(default=None, ge=1)
    batch_size: int | None = Field(default=None, ge=1)
    max_length: int | None = Field(default=None, ge=8)
    warmup_steps: int | None = Field(default=None, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    gradient_accumulation: int = Field(default=1, ge=1)
    save_steps: int | None = Field(default=None, ge=1)
    early_stopping: int | None = Field(default=None, ge=1)
    seed: int = Field(default=42, ge=0)
    bf16: bool = False
    quantize: Literal["4bit", "8bit"] | None = None

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
    def read(cls, path: str | Path, overrides: dict[str, Any] | None = None) -> Self:
        """A recipe from a YAML file, with some values given otherwise."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TrainingError(f"the recipe {str(path)!r} cannot be read: {error}") from None
        try:
            values = yaml.safe_load(text) or {}
        except yaml.YAMLError as error:
            reason = " ".join(str(error).split())
            raise TrainingError(f"the recipe {str(path)!r} is not YAML: {reason}") from None
        if not isinstance(values, dict):
            raise TrainingError(
                f"the recipe {str(path)!r} holds a {type(values).__name__}; expected lines of "
                "'key: value'"
            )
        return cls.make({**values, **(overrides or {})})

    def write(self, path: Path) -> None:
        content = self.model_dump(mode="json")
        path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")

    def method_settings(self) -> dict[str, Any]:
        """The settings of the method that were given."""
        given = {name: getattr(self, name) for name in METHOD_SETTINGS}
        return {name: value for name, value in given.items() if value is not None}

    def source(self) -> Source:
        """Where the rows come from: own files, official files, or the hub."""
        own = ("validation_file", "test_file", "text_columns", "labels", "regression")
        if self.train_file is None:
            stray = [name for name in own if getattr(self, name) not in (None, ())]
            if stray:
                raise TrainingError(
                    f"{stray[0]} is for your own files and there is no train_file; expected both "
                    "or neither"
                )
            return Hub() if self.data_dir is None else OfficialFiles(self.data_dir)
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

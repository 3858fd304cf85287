"""`compacter inspect`: what it prints, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

import compacter
from adapting import attach_tiny, save
from commands import Command, check_refused
from made_runs import make_run
from tiny_models import TINY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(save(attach_tiny("bert", "compacter"), tmp_path / "mine"))


def test_the_text_is_that_of_the_function(command: Command, folder: Path) -> None:
    answer = command("inspect", str(folder))
    assert (answer.code, answer.err) == (0, "")
    assert answer.out == f"{compacter.inspect(folder)}\n"
    for part in ("compacter", "n=4", "bert.encoder.layer.{0-1}.output.dense", "5 norms"):
        assert part in answer.out


def test_json_is_for_programs(command: Command, folder: Path) -> None:
    found = compacter.inspect(folder)
    told = command("inspect", str(folder), "--json").json
    assert told == json.loads(json.dumps(asdict(found)))
    assert told["method"] == "compacter"
    assert told["heads"] == {"classifier": 2}
    assert [place["count"] for place in told["places"]] == [4, 5]


def test_torch_is_not_imported(folder: Path) -> None:
    code = f"""
import sys
from compacter_cli import main
sys.argv = ["compacter", "inspect", {str(folder)!r}]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
heavy = {{"torch", "peft", "transformers", "datasets"}} & set(sys.modules)
assert not heavy, heavy
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "4 adapters after" in result.stdout


# Bad input


def test_a_folder_that_does_not_exist(command: Command, tmp_path: Path) -> None:
    check_refused(command("inspect", str(tmp_path / "none")), "none' does not exist", "expected")


def test_a_file(command: Command, folder: Path) -> None:
    path = folder / "adapter_config.json"
    check_refused(command("inspect", str(path)), "is a file; expected the folder")


def test_no_folder_at_all(command: Command) -> None:
    check_refused(command("inspect"), "folder")


@pytest.mark.parametrize("make", [Path.mkdir, make_run], ids=["empty", "a run without weights"])
def test_no_adapter_in_it(command: Command, tmp_path: Path, make: Callable[[Path], Any]) -> None:
    make(tmp_path / "run")
    check_refused(
        command("inspect", str(tmp_path / "run")),
        "holds no adapter; expected adapter_config.json and adapter_model.safetensors",
        "finished run",
    )


def test_a_model_without_a_result(command: Command, tmp_path: Path) -> None:
    TINY["bert"]().save_pretrained(tmp_path / "run" / "model")
    check_refused(command("inspect", str(tmp_path / "run")), "holds no adapter")


def test_a_damaged_result(command: Command, folder: Path, tmp_path: Path) -> None:
    folder.rename(tmp_path / "adapter")
    (tmp_path / "result.json").write_text("{")
    check_refused(command("inspect", str(tmp_path)), "is not the result of a run")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        "null",
        "{}",
        '{"peft_type": "COMPACTER", "format_version": "x"}',
        '"\udcff"',
    ],
)
def test_a_damaged_configuration(command: Command, folder: Path, text: str) -> None:
    path = folder / "adapter_config.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    check_refused(command("inspect", str(folder)), str(path), "is damaged")


def change(folder: Path, **values: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize(
    "values",
    [
        {"places": [3]},
        {"places": [{"tensors": ["down_s"]}]},
        {"places": [{"tensors": [], "paths": []}]},
        {"places": [{"tensors": ["down_s"], "paths": ["one"]}]},
        {"places": [{"tensors": ["of_another"], "paths": ["one"]}]},
        {"places": [{"tensors": ["A"], "paths": ["1", "2", "3", "4"]}]},
        {"modules_to_save": 3},
        {"projection": ["lphm"]},
        {"positions": ["attention", 3]},
    ],
)
def test_a_configuration_that_does_not_belong(
    command: Command, folder: Path, values: dict[str, Any]
) -> None:
    change(folder, **values)
    answer = command("inspect", str(folder))
    check_refused(answer, "is damaged or belongs to another adapter_model.safetensors")


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9, 0.999])
def test_truncated_weights(command: Command, folder: Path, keep: float) -> None:
    path = folder / "adapter_model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    check_refused(command("inspect", str(folder)), str(path), "is damaged or not complete")


def test_a_damaged_header(command: Command, folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    content = bytearray(path.read_bytes())
    content[8:40] = b"?" * 32
    path.write_bytes(content)
    check_refused(command("inspect", str(folder)), str(path), "is damaged")


def test_no_weights(command: Command, folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    check_refused(
        command("inspect", str(folder)),
        "holds adapter_config.json but no adapter_model.safetensors",
    )


def test_a_pickle(command: Command, folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()
    torch.save({}, folder / "adapter_model.bin")
    check_refused(command("inspect", str(folder)), "a pickle", "expected adapter_model.safetensors")


def test_an_adapter_of_another_type(command: Command, tmp_path: Path) -> None:
    lora = get_peft_model(TINY["t5"](), LoraConfig(target_modules=["q", "v"]))
    check_refused(
        command("inspect", save(lora, tmp_path / "lora")),
        "is not an adapter of this package: it is of type LORA",
        "COMPACTER",
    )


def test_an_adapter_of_a_development_version(command: Command, folder: Path) -> None:
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    del config["places"]
    path.write_text(json.dumps(config))
    check_refused(
        command("inspect", str(folder)), "saved by a development version", "train it again"
    )


def test_an_adapter_of_a_later_version(command: Command, folder: Path) -> None:
    change(folder, format_version=2, places=None)
    check_refused(command("inspect", str(folder)), "format version 2", "pip install -U")

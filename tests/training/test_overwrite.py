"""A run that replaces another one: the old one stays until the new one is complete."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from transformers import TrainerCallback

import compacter
from compacter.errors import TrainingError
from compacter.experiments.compare import compare
from compacter.training import Recipe, predict, read_result, train
from compacter.training.folder import finish_overwrite
from tiny_tasks import recipe_values

TEXTS = ["red cat one two blue", "dog red red one one", "blue dog two"]


class Interrupt(TrainerCallback):
    """Ends a run as Ctrl-C would, after some steps."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 9:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    settings = {"method": "compacter", "bottleneck": 16, "epochs": 2, "save_steps": 4}
    return recipe_values("t5", tmp_path_factory.mktemp("values"), **settings)


@pytest.fixture(scope="module")
def trained(values, tmp_path_factory):
    """An old run with an adapter, and a new one with a model."""
    folder = tmp_path_factory.mktemp("trained")
    train(Recipe.make(values), folder / "old")
    full = {**values, "method": "full", "bottleneck": None, "learning_rate": 1e-3}
    train(Recipe.make(full), folder / "new")
    return folder


@pytest.fixture
def old(trained, tmp_path):
    return Path(shutil.copytree(trained / "old", tmp_path / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    """Of all files that can be seen."""
    files = {p.relative_to(folder): p for p in folder.rglob("*") if p.is_file()}
    shown = {n: p for n, p in files.items() if not any(part[0] == "." for part in n.parts)}
    return {name.as_posix(): path.read_bytes() for name, path in shown.items()}


def answers(folder: Path) -> list[tuple[str, float]]:
    return [(found.text, round(found.score, 5)) for found in predict(folder, TEXTS)]


def interrupted(values, folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(Recipe.make(values), folder, overwrite=True, callbacks=[Interrupt()])


def start(command: str, *flags: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "compacter_cli", command, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_the_old_run_survives_kill_9(values, old, tmp_path):
    """And the new one goes on to the result that it would have had."""
    before, expected = contents(old), answers(old)
    recipe = tmp_path / "recipe.yaml"
    new = {**values, "epochs": 20, "seed": 7}
    recipe.write_text(yaml.safe_dump({**new, "text_columns": ["text"]}))
    process = start("train", str(recipe), "--output", str(old), "--overwrite")
    deadline = time.monotonic() + 120
    while not list(tmp_path.rglob("checkpoint-*")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert process.poll() is None, "the run ended before it could be killed"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert contents(old) == before
    assert answers(old) == expected
    told, errors = start("predict", "--adapter", str(old), *TEXTS).communicate()
    assert len(told.splitlines()) == len(TEXTS), errors.decode()

    with pytest.raises(TrainingError, match=r"to replace it and was interrupted; say resume to go"):
        compacter.train(output=old, recipe=recipe)
    resumed = compacter.train(output=old, resume=True)
    straight = train(Recipe.make(new), tmp_path / "straight")
    assert resumed.curve == straight.curve
    assert read_result(old) == resumed
    assert {path.name for path in old.iterdir()} == {
        path.name for path in (tmp_path / "straight").iterdir()
    }


KILL = """
import os, signal, sys
from pathlib import Path
from compacter.training.folder import finish_overwrite

left = int(sys.argv[2])

def kill(event, arguments):
    global left
    if event in ("shutil.move", "shutil.rmtree"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(kill)
finish_overwrite(Path(sys.argv[1]))
"""


@pytest.mark.parametrize(("first", "second"), [("old", "new"), ("new", "old")])
def test_kill_9_while_the_new_run_is_put_in_its_place(first, second, trained, tmp_path):
    """At every point: either of the two answers, and afterwards the new one is put there."""
    expected = {name: answers(trained / name) for name in (first, second)}
    assert expected[first] != expected[second]
    seen, moves = [], 0
    while True:
        folder = Path(shutil.copytree(trained / first, tmp_path / str(moves)))
        shutil.copytree(trained / second, folder / ".compacter-new")
        (folder / "notes.txt").write_text("mine")
        child = subprocess.run([sys.executable, "-c", KILL, str(folder), str(moves)], check=False)
        seen.append(answers(folder))
        finish_overwrite(folder)
        assert contents(folder) == {**contents(trained / second), "notes.txt": b"mine"}
        if child.returncode == 0:
            break
        assert child.returncode == -signal.SIGKILL
        moves += 1
    assert moves > 9
    turn = seen.index(expected[second])
    assert seen == [expected[first]] * turn + [expected[second]] * (len(seen) - turn)


@pytest.mark.parametrize("method", ["full", "compacter"])
def test_a_run_starts_from_the_model_that_it_replaces(method, values, trained, tmp_path):
    folder = Path(shutil.copytree(trained / "new", tmp_path / "run"))
    model = str(folder / "model")
    size = {"bottleneck": 16 if method == "compacter" else None}
    settings = {**values, **size, "method": method, "model": model, "learning_rate": 1e-3}
    with pytest.raises(TrainingError, match="holds a finished run"):
        compacter.train(output=folder, **settings)
    result = compacter.train(output=folder, overwrite=True, **settings)
    assert read_result(folder) == result
    elsewhere = compacter.train(
        output=tmp_path / "elsewhere", **{**settings, "model": str(trained / "new" / "model")}
    )
    assert result.curve == elsewhere.curve
    assert answers(folder) == answers(tmp_path / "elsewhere")
    if method == "compacter":
        assert answers(folder / "model") == answers(trained / "new")


def test_a_base_model_goes_with_the_adapter_that_needed_it(values, trained, tmp_path):
    folder = Path(shutil.copytree(trained / "new", tmp_path / "run"))
    compacter.train(output=folder, overwrite=True, **{**values, "model": str(folder / "model")})
    assert (folder / "model").is_dir()
    compacter.train(output=folder, overwrite=True, **values)
    assert not (folder / "model").exists()


def test_an_overwrite_that_fails_leaves_the_old_run(values, old, monkeypatch):
    before = contents(old)

    def fail(*args, **kwargs):
        raise RuntimeError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("compacter.training.run.write_predictions", fail)
        with pytest.raises(RuntimeError, match="the disk is full"):
            train(Recipe.make({**values, "seed": 1}), old, overwrite=True)
    assert contents(old) == before
    with pytest.raises(TrainingError, match="text_columns"):
        compacter.train(output=old, overwrite=True, **{**values, "text_columns": ()})
    assert contents(old) == before


def test_what_an_interrupted_overwrite_has_left_is_started_anew(values, old, tmp_path):
    interrupted({**values, "seed": 1}, old)
    result = train(Recipe.make({**values, "seed": 2}), old, overwrite=True)
    assert result.curve == train(Recipe.make({**values, "seed": 2}), tmp_path / "other").curve
    assert {path.name for path in old.iterdir()} == {
        path.name for path in (tmp_path / "other").iterdir()
    }


def test_overwriting_the_current_folder_and_one_behind_a_link(values, old, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(old)
    assert compacter.train(output=tmp_path / "link", overwrite=True, **{**values, "seed": 1})
    assert read_result(old).seed == 1
    monkeypatch.chdir(old)
    compacter.train(output=".", overwrite=True, **{**values, "seed": 2})
    assert read_result(Path()).seed == 2


def test_a_comparison_goes_on_with_what_was_to_replace_runs(values, tmp_path):
    settings = {**values, "epochs": 1, "bottleneck": None}
    both = ("bitfit", "compacter")
    compare(methods=both, output=tmp_path / "both", **settings)
    before = contents(tmp_path / "both")
    interrupted({**values, "method": "bitfit", "bottleneck": None}, tmp_path / "both" / "bitfit")
    assert contents(tmp_path / "both") == before
    found = compare(methods=both[:1], output=tmp_path / "both", resume=True, **values)
    assert found[0].recipe["epochs"] == 2
    assert read_result(tmp_path / "both" / "bitfit") == found[0]

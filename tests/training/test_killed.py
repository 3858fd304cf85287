"""Runs in processes of their own: killed at random moments, and shared by two processes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tiny_tasks import recipe_values

COMMAND = [sys.executable, "-m", "compacter_cli", "train"]


def start(recipe: Path, output: Path, *flags: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, str(recipe), "--output", str(output), *flags],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def finish(recipe: Path, output: Path, *flags: str) -> dict[str, object]:
    process = start(recipe, output, *flags)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors.decode()
    result: dict[str, object] = json.loads((output / "result.json").read_text())
    return result


@pytest.fixture
def recipe(tmp_path):
    values = recipe_values(
        "t5", tmp_path, method="compacter", bottleneck=16, epochs=30, save_steps=10
    )
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({**values, "text_columns": ["text"]}))
    return path


def steps_done(output: Path) -> int:
    """The step of the newest folder of a checkpoint, whether or not it is whole."""
    folders = (output / "checkpoints").glob("checkpoint-*")
    return max((int(path.name.partition("-")[2]) for path in folders), default=0)


def test_kill_9_at_random_moments_loses_nothing(recipe, tmp_path):
    """Each time some checkpoint later, up to half a second after its folder appears: while it is
    written, while the next steps run, while the next one is evaluated."""
    expected = finish(recipe, tmp_path / "undisturbed")
    draw = random.Random(1)
    output = tmp_path / "killed"
    for kill in range(6):
        before = steps_done(output)
        process = start(recipe, output, *(["--resume"] if kill else []))
        deadline = time.monotonic() + 90
        while steps_done(output) <= before and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(draw.random() * 0.5)
        assert process.poll() is None, "the run ended before it could be killed"
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    found = finish(recipe, output, "--resume")
    for key in ("test", "validation", "best_checkpoint", "score", "data_fingerprint"):
        assert found[key] == expected[key], key
    name = "adapter/adapter_model.safetensors"
    assert (output / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()


def test_two_processes_do_what_one_does(recipe, tmp_path):
    """The same global batch: the same loss and gradients, to 1e-5, also with unequal targets."""
    shared = ["--epochs", "2", "--warmup-steps", "1"]
    alone = finish(recipe, tmp_path / "alone", *shared, "--batch-size", "32")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    flags = [*shared, "--batch-size", "16", "--output", str(tmp_path / "both")]
    process = subprocess.Popen(
        [*torchrun, "--nproc-per-node", "2", "-m", "compacter_cli", "train", str(recipe), *flags],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        _, errors = process.communicate(timeout=240)
    finally:
        if process.poll() is None:  # its workers would live on without it
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors.decode()
    both = json.loads((tmp_path / "both" / "result.json").read_text())

    def curve(result, key):
        return [entry[key] for entry in result["curve"] if key in entry]

    assert curve(both, "loss") == pytest.approx(curve(alone, "loss"), abs=1e-5)
    assert curve(both, "grad_norm") == pytest.approx(curve(alone, "grad_norm"), abs=1e-5)
    assert both["test"] == alone["test"]

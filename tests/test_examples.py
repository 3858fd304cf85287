"""The examples run. The demo takes minutes; what it does is tested by its parts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def output_of(name, folder):
    """What the example prints; it leaves nothing behind."""
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        cwd=folder,
        check=True,
    )
    assert not list(folder.iterdir())
    return result.stdout


def test_a_loop_of_ones_own(tmp_path):
    output = output_of("own_loop.py", tmp_path)
    assert "Loaded into a fresh copy of the base model: all logits are equal" in output


def test_a_quantised_base_model(tmp_path):
    pytest.importorskip("bitsandbytes", reason="pip install 'compacter-peft[quantised]'")
    output = output_of("quantised.py", tmp_path)
    (percent,) = re.findall(r"Accuracy after training: ([\d.]+)%", output)
    assert float(percent) > 90
    assert "Loaded into a freshly quantised base model: all logits are equal" in output

"""The examples run. The demo takes minutes; what it does is tested by its parts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_a_loop_of_ones_own(tmp_path):
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / "own_loop.py")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    assert "Loaded into a fresh copy of the base model: all logits are equal" in result.stdout
    assert not list(tmp_path.iterdir())

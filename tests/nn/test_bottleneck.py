"""The bottleneck adapter against its formula."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from compacter.errors import SettingError
from compacter.nn import Bottleneck, Dense, make_projection, slow_weights


@pytest.mark.parametrize("kind", ["dense", "low-rank", "phm", "lphm"])
def test_adapter_is_y_plus_up_of_gelu_of_down(kind):
    down = make_projection(kind, 12, 8, n=4)
    up = make_projection(kind, 8, 12, n=4)
    A = slow_weights(4, std=1.0) if kind in ("phm", "lphm") else None
    y = torch.randn(2, 5, 12)
    z = y @ down.matrix(A) + down.bias
    gelu = 0.5 * z * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (z + 0.044715 * z**3)))
    expected = y + gelu @ up.matrix(A) + up.bias
    torch.testing.assert_close(Bottleneck(down, up)(y, A), expected, rtol=1e-5, atol=1e-5)


def test_another_activation():
    down, up = Dense(6, 3), Dense(3, 6)
    y = torch.randn(4, 6)
    expected = y + torch.relu(y @ down.W) @ up.W
    torch.testing.assert_close(Bottleneck(down, up, torch.nn.ReLU())(y), expected)


def test_up_must_lead_back():
    with pytest.raises(SettingError, match="down projects 6 -> 3 and up 3 -> 5; up must lead back"):
        Bottleneck(Dense(6, 3), Dense(3, 5))


def test_the_mathematics_import_no_transformers():
    code = (
        "import sys, compacter.nn; sys.exit('transformers' in sys.modules or 'peft' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

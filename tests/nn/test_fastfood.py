"""Fastfood against its formula, written out with numpy, and against finite differences."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
from statistics import NormalDist

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from compacter.errors import SettingError
from compacter.nn import Fastfood
from compacter.nn.fastfood import FastfoodRows, hadamard

SEVERAL_CHUNKS = (900, 700_001)
"""A dim and a size for which the blocks are computed in several chunks; the last is cut off."""


def by_formula(dim: int, size: int, seed: int, name: str, theta: np.ndarray) -> np.ndarray:
    """P times a vector or a matrix, by steps 2 to 5 of docs/file-format.md."""
    L = 2 ** math.ceil(math.log2(dim))
    blocks = math.ceil(size / L)
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    stream = np.random.Philox(key=np.frombuffer(digest[:16], dtype="<u8"))

    def draw_bytes(count: int) -> np.ndarray:
        return stream.random_raw(math.ceil(count / 8)).astype("<u8").view(np.uint8)[:count]

    signs = np.where(draw_bytes(L) % 2 == 1, 1.0, -1.0)
    permutation = np.argsort(stream.random_raw(L), kind="stable")
    quantiles = np.array([NormalDist().inv_cdf((byte + 0.5) / 256) for byte in range(256)])
    gaussians = (quantiles / np.sqrt(np.mean(quantiles**2)))[draw_bytes(blocks * L)]
    H = scipy.linalg.hadamard(L).astype(float)
    mixed = (H[:, :dim] * signs[:dim] @ theta)[permutation]
    made = [H @ (g * mixed.T).T for g in gaussians.reshape(blocks, L)]
    return np.concatenate(made)[:size] / math.sqrt(L * size)


def dense_matrix(fastfood: Fastfood) -> torch.Tensor:
    """P in R^{size x dim}."""
    f = fastfood
    return torch.from_numpy(by_formula(f.dim, f.size, f.seed, f.name, np.eye(f.dim)))


@pytest.mark.parametrize("bits", range(13))
def test_hadamard_is_that_of_scipy(bits):
    x = torch.randn(3, 1 << bits, dtype=torch.float64)
    expected = x.numpy() @ scipy.linalg.hadamard(1 << bits).astype(float)
    np.testing.assert_allclose(hadamard(x).numpy(), expected, atol=1e-11)


def test_hadamard_twice_is_the_length():
    x = torch.randn(2, 2**15, dtype=torch.float64)
    torch.testing.assert_close(hadamard(hadamard(x)), x * 2**15)


@settings(max_examples=60, deadline=None)
@given(dim=st.integers(1, 70), size=st.integers(1, 300), seed=st.integers(0, 5))
def test_projection_and_transpose_are_those_of_the_formula(dim, size, seed):
    fastfood = Fastfood(dim, size, seed, "w")
    P = dense_matrix(fastfood)
    theta, y = torch.randn(dim, dtype=torch.float64), torch.randn(size, dtype=torch.float64)
    torch.testing.assert_close(fastfood.project(theta), P @ theta)
    torch.testing.assert_close(fastfood.transpose(y), P.T @ y)


def test_projection_and_transpose_in_several_chunks():
    dim, size = SEVERAL_CHUNKS
    fastfood = Fastfood(dim, size, 2, "a.b")
    theta, y = torch.randn(dim, dtype=torch.float64), torch.randn(size, dtype=torch.float64)
    found = fastfood.project(theta)
    expected = by_formula(dim, size, 2, "a.b", theta.numpy())
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    torch.testing.assert_close(fastfood.transpose(y) @ theta, y @ found)


@pytest.mark.parametrize("blocks", [range(1), range(3, 650), range(680, 684)])
def test_some_blocks_are_those_of_the_whole(blocks):
    """The last range ends with the block that is cut off."""
    dim, size = SEVERAL_CHUNKS
    fastfood = Fastfood(dim, size, 0, "w")
    part = slice(blocks.start * fastfood.block, blocks.stop * fastfood.block)
    theta, y = torch.randn(dim, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    found = fastfood.project(theta, blocks=blocks)
    assert torch.equal(found, fastfood.project(theta)[part])
    y[part] = torch.randn_like(found)
    torch.testing.assert_close(fastfood.transpose(y[part], blocks), fastfood.transpose(y))


def test_gradients_agree_with_finite_differences():
    fastfood = Fastfood(11, 70, 0, "w")
    theta = torch.randn(11, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(fastfood, (theta,))
    assert torch.autograd.gradcheck(FastfoodRows(fastfood, torch.tensor([1, 4]), 14), (theta,))


@pytest.mark.parametrize("size", [100, 1_000, 300_000])
def test_length_is_kept(size):
    """||P theta|| is about ||theta|| whatever the size of the tensor."""
    torch.manual_seed(0)
    theta = torch.randn(900)
    ratios = [Fastfood(900, size, s, "w")(theta).norm() / theta.norm() for s in range(10)]
    assert torch.stack(ratios).mean().item() == pytest.approx(1.0, abs=0.05)


def test_directions_are_kept():
    """P^T P is about the identity for a tensor of many blocks."""
    fastfood = Fastfood(8, 8 * 4_000, 0, "w")
    columns = torch.stack([fastfood.project(unit) for unit in torch.eye(8)], 1)
    assert (columns.T @ columns - torch.eye(8)).abs().max() < 0.1


def test_outputs_look_gaussian():
    theta = torch.ones(1000) / math.sqrt(1000)
    z = Fastfood(1000, 200_000, 0, "w")(theta) * math.sqrt(200_000)
    assert z.std().item() == pytest.approx(1.0, abs=0.02)
    assert (z**4).mean().item() == pytest.approx(3.0, abs=0.15)


def test_projections_depend_on_seed_and_name_only():
    theta = torch.randn(20)
    first = Fastfood(20, 100, 1, "a")(theta)
    assert torch.equal(first, Fastfood(20, 100, 1, "a")(theta))
    assert not torch.equal(first, Fastfood(20, 100, 2, "a")(theta))
    assert not torch.equal(first, Fastfood(20, 100, 1, "b")(theta))


def test_projection_of_format_version_1():
    """Golden numbers: stored adapters are d' numbers, so the projection may never change."""
    theta = torch.arange(1.0, 6.0, dtype=torch.float64)
    found = Fastfood(5, 20, 7, "encoder.weight")(theta)
    code = (
        "import torch; from compacter.nn import Fastfood; torch.manual_seed(99);"
        "print(Fastfood(5, 20, 7, 'encoder.weight')(torch.arange(1., 6., dtype=torch.float64))"
        ".tolist())"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert eval(output) == found.tolist()
    assert found.tolist() == pytest.approx(
        [
            0.34755287072375,
            -1.54732046776223,
            -0.28569542132904,
            -2.12210307289609,
            1.16323381100801,
            -1.021442503083,
            1.0098283524576,
            0.24966902913491,
            0.37583788061786,
            2.19390561453254,
            0.14897616977619,
            1.01584664120446,
            -1.68623611709708,
            -1.25946527374687,
            -1.31743322154657,
            0.78074088716626,
            -1.35781513839373,
            -2.41440361946432,
            -1.62928778842196,
            -0.51239034072321,
        ],
        abs=1e-12,
    )


def test_memory_is_for_a_few_blocks_not_for_the_matrix():
    """2^15 x 3 million entries would be 400 GB."""
    assert Fastfood(20_000, 3_000_000, 0, "w")(torch.randn(20_000)).shape == (3_000_000,)


def check_rows(fastfood: Fastfood, rows: torch.Tensor, width: int) -> None:
    """Against the whole: the projection, and the transpose of what is zero in all other rows."""
    some = FastfoodRows(fastfood, rows, width)
    theta = torch.randn(fastfood.dim, dtype=torch.float64)
    torch.testing.assert_close(some.project(theta), fastfood.project(theta).view(-1, width)[rows])
    values = torch.randn(len(rows), width, dtype=torch.float64)
    y = torch.zeros(fastfood.size // width, width, dtype=torch.float64)
    y[rows] = values
    torch.testing.assert_close(some.transpose(values), fastfood.transpose(y.view(-1)))


@settings(max_examples=60, deadline=None)
@given(dim=st.integers(1, 70), count=st.integers(1, 90), width=st.integers(1, 90), data=st.data())
def test_some_rows_are_those_of_the_whole(dim, count, width, data):
    drawn = data.draw(st.sets(st.integers(0, count - 1), max_size=9))
    rows = torch.tensor(sorted(drawn), dtype=torch.int64)
    check_rows(Fastfood(dim, count * width, 0, "w"), rows, width)


@pytest.mark.parametrize("width", [64, 96, 97, 3000])
def test_some_rows_in_several_chunks(width):
    count = 900_000 // width
    rows = torch.arange(0, count, 2) + torch.arange(len(range(0, count, 2))) % 2
    check_rows(Fastfood(900, count * width, 0, "w"), rows[rows < count], width)


def test_some_rows_need_no_others():
    """The work is that for the blocks in which the rows lie, and for what all blocks share."""
    fastfood, theta = Fastfood(64, 64 * 1000, 0, "w"), torch.randn(64)
    with FlopCounterMode(display=False) as whole:
        fastfood.project(theta)
    rows = torch.tensor([4, 5, 700, 1000, 1004, 1999])  # of 32 numbers: in five blocks
    with FlopCounterMode(display=False) as some:
        FastfoodRows(fastfood, rows, 32).project(theta)
    assert whole.get_total_flops() / (1 + 1000) == some.get_total_flops() / (1 + 5)


def test_half_precision_is_computed_in_single():
    fastfood = Fastfood(50, 5_000, 0, "w")
    theta, y = torch.randn(50).bfloat16(), torch.randn(5_000).bfloat16()
    expected = fastfood.project(theta.float())
    assert torch.equal(fastfood.project(theta), expected.bfloat16())
    assert torch.equal(fastfood.project(theta.float(), torch.bfloat16), expected.bfloat16())
    assert torch.equal(fastfood.transpose(y), fastfood.transpose(y.float()))


def test_autocast_leaves_projections_alone():
    fastfood, theta = Fastfood(50, 5_000, 0, "w"), torch.randn(50)
    expected = fastfood(theta)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(fastfood(theta), expected)
        transposed = fastfood.transpose(expected)
    assert torch.equal(transposed, fastfood.transpose(expected))


def test_what_is_kept_is_compact():
    """Signs and Gaussians in a byte each, the permutation in two, or four if it is longer."""
    block, large = 2**15, 2**17
    assert Fastfood(20_000, 3 * block, 0, "w").random.nbytes == (1 + 2 + 3) * block
    assert Fastfood(70_000, 5, 0, "w").random.nbytes == (1 + 4 + 1) * large


def test_training_after_inference_mode():
    """The random numbers are drawn in the first call, and are then those of training too."""
    fastfood, parameter = Fastfood(30, 100, 0, "w"), torch.ones(30, requires_grad=True)
    with torch.inference_mode():
        fastfood(torch.ones(30))
    fastfood(parameter).sum().backward()
    torch.testing.assert_close(parameter.grad, fastfood.transpose(torch.ones(100)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fastfood(0, 5, 0, "w"), "dim=0 is too small"),
        (lambda: Fastfood(5, 0, 0, "w"), "size=0 is too small"),
        (lambda: hadamard(torch.ones(6)), "needs a power of two, got 6"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(SettingError, match=message):
        make()

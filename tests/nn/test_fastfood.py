"""Fastfood against its own dense matrix, its definition, and finite differences."""

from __future__ import annotations

import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compacter.errors import SettingError
from compacter.nn import Fastfood
from compacter.nn.fastfood import Walk, _Draw, hadamard, stable_order


def dense_matrix(fastfood: Fastfood) -> torch.Tensor:
    """P in R^{size x dim}, column by column."""
    return torch.stack(
        [fastfood.project(unit) for unit in torch.eye(fastfood.dim, dtype=torch.float64)], dim=1
    )


def sylvester(bits: int) -> torch.Tensor:
    index = range(1 << bits)
    return torch.tensor([[(-1.0) ** (i & j).bit_count() for j in index] for i in index])


@pytest.mark.parametrize("bits", [0, 1, 3, 5, 6, 7])
def test_hadamard_is_sylvesters_matrix(bits):
    x = torch.randn(3, 1 << bits)
    torch.testing.assert_close(hadamard(x), x @ sylvester(bits), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("bits", range(12))
def test_hadamard_is_that_of_scipy(bits):
    """Products with small matrices give the product with the whole one, for every way in which
    the length is split into them."""
    x = torch.randn(3, 1 << bits, dtype=torch.float64)
    expected = x.numpy() @ scipy.linalg.hadamard(1 << bits).astype(float)
    np.testing.assert_allclose(hadamard(x).numpy(), expected, atol=1e-11)


def test_hadamard_twice_is_the_length():
    x = torch.randn(2, 2**15, dtype=torch.float64)
    torch.testing.assert_close(hadamard(hadamard(x)), x * 2**15)


@settings(max_examples=40, deadline=None)
@given(dim=st.integers(1, 20), size=st.integers(1, 90), seed=st.integers(0, 5))
def test_projection_and_transpose_belong_together(dim, size, seed):
    fastfood = Fastfood(dim, size, seed, "w")
    P = dense_matrix(fastfood)
    theta, y = torch.randn(dim, dtype=torch.float64), torch.randn(size, dtype=torch.float64)
    torch.testing.assert_close(fastfood(theta), P @ theta)
    torch.testing.assert_close(fastfood.transpose(y), P.T @ y)


def test_each_block_is_a_fastfood_block():
    """V_k = H G_k P H S / sqrt(L D): H V_k (P H S)^-1 must be diagonal, with unit-variance G."""
    dim = block = 8
    fastfood = Fastfood(dim, 5 * block, 3, "w")
    P = dense_matrix(fastfood) * math.sqrt(block * fastfood.size)
    H = sylvester(3).double()
    draw = _Draw(fastfood, P)
    mixer = (H * draw.signs)[draw.permutation]
    for k in range(5):
        G = H @ P[k * block : (k + 1) * block] / block @ torch.linalg.inv(mixer)
        assert (G - torch.diag(G.diagonal())).abs().max() < 1e-9
        assert G.diagonal().abs().min() > 0


def test_gradients_agree_with_finite_differences():
    fastfood = Fastfood(11, 70, 0, "w")
    theta = torch.randn(11, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(fastfood, (theta,))
    assert torch.autograd.gradgradcheck(lambda t: fastfood(t) ** 2, (theta,))


@pytest.mark.parametrize("size", [100, 1_000, 300_000])
def test_length_is_kept(size):
    """||P theta|| is about ||theta|| whatever the size of the tensor."""
    torch.manual_seed(0)
    theta = torch.randn(900)
    ratios = [Fastfood(900, size, s, "w")(theta).norm() / theta.norm() for s in range(10)]
    assert torch.stack(ratios).mean().item() == pytest.approx(1.0, abs=0.05)


def test_directions_are_kept():
    """P^T P is about the identity for a tensor of many blocks."""
    P = dense_matrix(Fastfood(8, 8 * 4_000, 0, "w"))
    assert (P.T @ P - torch.eye(8)).abs().max() < 0.1


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


@settings(max_examples=60, deadline=None)
@given(dim=st.integers(1, 70), count=st.integers(1, 90), width=st.integers(1, 90), data=st.data())
def test_some_rows_are_those_of_the_whole(dim, count, width, data):
    fastfood = Fastfood(dim, count * width, 0, "w")
    drawn = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=9))
    rows = torch.tensor(sorted(drawn))
    theta = torch.randn(dim, dtype=torch.float64)
    found = fastfood.project_rows(theta, rows, width)
    torch.testing.assert_close(found, fastfood.project(theta).view(count, width)[rows])
    values = torch.randn(len(rows), width, dtype=torch.float64)
    y = torch.zeros(count, width, dtype=torch.float64)
    y[rows] = values
    torch.testing.assert_close(
        fastfood.transpose_rows(values, rows), fastfood.transpose(y.view(-1))
    )


def test_some_rows_need_no_others(monkeypatch):
    """An embedding pays for the blocks whose rows are looked up. The chunks of blocks that are made
    together are kept small here, to have several."""
    monkeypatch.setattr("compacter.nn.fastfood._CHUNK", 128)
    gaussians, made = _Draw._gaussians, []

    def counted(self, levels):
        made.append(levels.numel())
        return gaussians(self, levels)

    monkeypatch.setattr(_Draw, "_gaussians", counted)
    long = Fastfood(64, 64 * 10**5, 0, "w")
    rows = torch.tensor([4, 5, 700, 10**4, 10**4 + 4, 10**5, 2 * 10**5 - 1])
    theta = torch.randn(64)
    found = long.project_rows(theta, rows, 32)
    assert made == [128, 128, 128]  # six blocks of 64 numbers, in each two rows
    torch.testing.assert_close(found, long.project(theta).view(-1, 32)[rows])


@pytest.mark.parametrize(
    ("rows", "width", "dim"), [(50, 6, 13), (9, 64, 5), (3, 40, 30), (1, 1, 1)]
)
def test_a_walk_over_rows(rows, width, dim, monkeypatch):
    """In parts of about 64 numbers, the sum and the transpose are those of the whole."""
    monkeypatch.setattr("compacter.nn.fastfood._CHUNK", 64)
    fastfood = Fastfood(dim, rows * width, 0, "w")
    theta = torch.randn(dim, dtype=torch.float64)
    weight, y = torch.randn(2, rows, width, dtype=torch.float64)
    assert Walk.is_possible(fastfood, weight)
    walk, parts = Walk(fastfood, weight, fastfood.mix(theta)), []
    for part, made in walk:
        assert made.shape == weight[part].shape
        walk.collect(y[part])
        parts.append(made)
    expected, transposed = fastfood.add_and_transpose(weight, fastfood.mix(theta), y)
    torch.testing.assert_close(torch.cat(parts), expected)
    torch.testing.assert_close(walk.transposed(), transposed)


def test_no_walk_where_rows_and_blocks_seldom_begin_together():
    assert Walk.is_possible(Fastfood(20_000, 768 * 9, 0, "w"), torch.empty(9, 768))
    assert not Walk.is_possible(Fastfood(20_000, 769 * 9, 0, "w"), torch.empty(9, 769))


@settings(max_examples=30, deadline=None)
@given(dim=st.integers(1, 40), size=st.integers(1, 300), seed=st.integers(0, 5))
def test_adding_and_transposing_at_once(dim, size, seed):
    fastfood = Fastfood(dim, size, seed, "w")
    theta, y = torch.randn(dim, dtype=torch.float64), torch.randn(size, dtype=torch.float64)
    weight = torch.randn(size, dtype=torch.float64)
    moved, gathered = fastfood.add_and_transpose(weight, fastfood.mix(theta), y)
    torch.testing.assert_close(moved, weight + fastfood.project(theta))
    assert torch.equal(moved, fastfood.add(weight, fastfood.mix(theta)))
    torch.testing.assert_close(gathered, fastfood.transpose(y))


def test_half_precision_is_computed_in_single():
    fastfood = Fastfood(50, 5_000, 0, "w")
    theta = torch.randn(50).bfloat16()
    weight = torch.randn(50, 100)
    expected = fastfood.project(theta.float())
    assert torch.equal(fastfood.project(theta), expected.bfloat16())
    found = fastfood.add(weight.bfloat16(), fastfood.mix(theta.float()))
    assert torch.equal(found, weight.bfloat16() + expected.view(50, 100).bfloat16())


def test_autocast_leaves_projections_alone():
    fastfood, theta = Fastfood(50, 5_000, 0, "w"), torch.randn(50)
    expected = fastfood(theta)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(fastfood(theta), expected)
        assert torch.equal(fastfood.add(torch.zeros(5_000), fastfood.mix(theta)), expected)


def test_order_of_keys_with_equal_high_bits():
    """The fast way cannot tell these apart by their high bits; the order must be argsort's."""
    for keys in ([7, 3, 3, 0, 9, 8, 2, 1], [1 << 40, 5, (1 << 40) + 1, 0], [4], [2, 2]):
        found = stable_order(np.array(keys, dtype=np.uint64))
        assert found.tolist() == np.argsort(keys, kind="stable").tolist()
    keys = np.random.Philox(key=3).random_raw(2**15)
    assert np.array_equal(stable_order(keys), np.argsort(keys, kind="stable"))


def test_what_is_kept_is_compact():
    """Signs and Gaussians in a byte each, the permutation in two, or four if it is longer."""
    block, large = 2**15, 2**17
    assert Fastfood(20_000, 3 * block, 0, "w").random.nbytes == (1 + 2 + 3) * block
    assert Fastfood(70_000, 5, 0, "w").random.nbytes == (1 + 4 + 1) * large


def test_two_threads_project_at_the_same_time():
    """Each works in memory of its own."""
    fastfoods = [Fastfood(500, 300_000, seed, "w") for seed in range(4)]
    theta = torch.randn(500)
    alone = [fastfood(theta) for fastfood in fastfoods]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            together = list(pool.map(lambda fastfood: fastfood(theta), fastfoods))
            assert all(map(torch.equal, together, alone))


def test_inference_mode_leaves_memory_that_training_can_use():
    """In a new thread, which has no memory to work in yet."""
    fastfood, parameter = Fastfood(30, 100, 0, "w"), torch.ones(30, requires_grad=True)

    def infer() -> None:
        with torch.inference_mode():
            fastfood(torch.ones(30))

    with ThreadPoolExecutor(1) as thread:
        thread.submit(infer).result()
        projected = thread.submit(fastfood, parameter).result()
    projected.sum().backward()
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

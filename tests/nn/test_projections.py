"""Projections against an explicit sum of torch.kron, finite differences and the paper's counts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compacter.errors import SettingError
from compacter.nn import Projection, project, require_divisible, slow_weights

KINDS = ("dense", "low-rank", "phm", "lphm")
HYPERCOMPLEX = ("phm", "lphm")

sizes = st.integers(1, 5)
few = st.integers(1, 3)
dtypes = st.sampled_from([torch.float32, torch.float64])


def drawn(projection: Projection, count: int, dtype=torch.float64):
    """Parameters of some projections, and the slow weights that they share, all about 1."""
    factors = {name: torch.randn(count, *s, dtype=dtype) for name, s in projection.shapes.items()}
    shares = projection.kind in HYPERCOMPLEX and projection.shared_A
    n = projection.n
    return factors, torch.randn(n, n, n, dtype=dtype) if shares else None


def explicit(kind, factors, A):
    """W of one projection."""
    if kind == "dense":
        return factors["W"]
    if kind == "low-rank":
        return factors["s"] @ factors["t"]
    B = factors["B"] if kind == "phm" else factors["s"] @ factors["t"]
    slow = factors["A"] if A is None else A
    return sum(torch.kron(a, b) for a, b in zip(slow, B, strict=True))


def one(factors, index):
    return {name: tensor[index] for name, tensor in factors.items()}


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    count=few,
    n=sizes,
    rank=few,
    p=sizes,
    q=sizes,
    dtype=dtypes,
    shared=st.booleans(),
)
def test_every_matrix_is_the_sum_of_kronecker_products(kind, count, n, rank, p, q, dtype, shared):
    projection = Projection(kind, n * p, n * q, n=n, rank=rank, shared_A=shared)
    factors, A = drawn(projection, count, dtype)
    found = projection.matrices(factors, A)
    assert found.shape == (count, n * p, n * q)
    tolerance = 1e-4 if dtype == torch.float32 else 1e-12
    for index, W in enumerate(found):
        expected = explicit(kind, one(factors, index), A)
        torch.testing.assert_close(W, expected, rtol=0, atol=tolerance)


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    shared=st.booleans(),
    n=sizes,
    rank=sizes,
    p=sizes,
    q=sizes,
    bias=st.booleans(),
)
def test_examples_that_each_have_a_projection_of_their_own(kind, shared, n, rank, p, q, bias):
    """y = x W + b with another W for each of m parts of x, whose slow weights differ too."""
    m, length = 3, 2
    projection = Projection(kind, n * p, n * q, n=n, rank=rank, shared_A=shared, bias=bias)
    factors, A = drawn(projection, m)
    if A is not None:
        A = torch.randn(m, *A.shape, dtype=A.dtype)
    x = torch.randn(m, length, n * p, dtype=torch.float64)
    found = project(x, projection.prepare(factors, A), factors.get("bias"))
    for i in range(m):
        W = explicit(kind, one(factors, i), None if A is None else A[i])
        expected = x[i] @ W + (factors["bias"][i] if bias else 0)
        torch.testing.assert_close(found[i], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared_A", [True, False])
@pytest.mark.parametrize("widths", [(6, 4), (4, 6)])
def test_gradients_agree_with_finite_differences(kind, shared_A, widths):
    projection = Projection(kind, *widths, n=2, rank=2, shared_A=shared_A, bias=False)
    factors, A = drawn(projection, 2)
    names = list(factors)
    values = [tensor.requires_grad_() for tensor in factors.values()]
    if A is not None:
        values.append(A.requires_grad_())

    def run(*values):
        shared = values[len(names)] if len(values) > len(names) else None
        return projection.matrices(dict(zip(names, values, strict=False)), shared)

    assert torch.autograd.gradcheck(run, values)
    assert torch.autograd.gradgradcheck(run, values)


def test_numbers_of_parameters_are_those_of_section_4():
    k, d, n, r = 24, 12, 4, 3

    def count(kind, **settings):
        projection = Projection(kind, k, d, n=n, rank=r, **{"bias": False, **settings})
        found = [math.prod(shape) for shape in projection.shapes.values()]
        made = [tensor.numel() for tensor in projection.initial(5).values()]
        assert made == [5 * numbers for numbers in found]
        return sum(found)

    assert count("dense") == k * d
    assert count("low-rank") == r * (k + d)
    assert count("phm", shared_A=False) == k * d // n + n**3
    assert count("phm") == k * d // n
    assert count("lphm") == r * (k + d)
    assert count("lphm", shared_A=False) == r * (k + d) + n**3
    assert count("dense", bias=True) == k * d + d


def uniform_bound(rows: int, columns: int) -> float:
    return math.sqrt(2) * math.sqrt(6 / (rows + columns))


@pytest.mark.parametrize(
    ("projection", "factor", "bound"),
    [
        (Projection("low-rank", 768, 24), "s", uniform_bound(768, 1)),
        (Projection("low-rank", 768, 24, rank=4), "t", uniform_bound(4, 24)),
        (Projection("phm", 768, 96, n=4), "B", uniform_bound(192, 24)),
        (Projection("lphm", 768, 96, n=4), "s", uniform_bound(192, 1)),
        (Projection("lphm", 768, 960, n=4, rank=2), "t", uniform_bound(2, 240)),
    ],
)
def test_factors_start_glorot_uniform_with_gain_sqrt_2(projection, factor, bound):
    """By the two widths of the factor of one projection, whatever the number of projections."""
    torch.manual_seed(0)
    values = projection.initial(8)[factor].flatten()
    assert values.abs().max() <= bound
    assert values.abs().max() > 0.98 * bound
    assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.06)


def test_dense_and_slow_weights_start_normal():
    torch.manual_seed(0)

    def std(kind, factor, **settings):
        return Projection(kind, 768, 96, **settings).initial(1)[factor].std().item()

    assert std("dense", "W") == pytest.approx(0.01, rel=0.03)
    assert slow_weights(24).std().item() == pytest.approx(1e-4, rel=0.03)
    assert std("phm", "A", n=24, shared_A=False) == pytest.approx(0.01, rel=0.03)
    assert std("lphm", "A", n=24, shared_A=False, A_std=0.5) == pytest.approx(0.5, rel=0.03)
    assert not Projection("dense", 4, 4).initial(3)["bias"].any()


def without_A():
    projection = Projection("lphm", 8, 8, n=2)
    projection.matrices(drawn(projection, 1)[0])


def with_two_As():
    projection = Projection("phm", 8, 8, n=2, shared_A=False)
    projection.matrices(drawn(projection, 1)[0], torch.ones(2, 2, 2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Projection("phm", 10, 8, n=4), "n=4 does not divide inputs=10; n could be 1, 2$"),
        (lambda: Projection("lphm", 8, 6, n=4), "n=4 does not divide outputs=6"),
        (lambda: Projection("lphm", 8, 8, n=0), "n=0 is too small"),
        (
            lambda: Projection("lphm", 8, 8, n=2, rank=0),
            "rank=0 is too small; it must be at least 1",
        ),
        (lambda: Projection("low-rank", 8, 8, rank=-1), "rank=-1 is too small"),
        (lambda: Projection("dense", 0, 8), "inputs=0 is too small"),
        (lambda: Projection("dense", 8, 0), "outputs=0 is too small"),
        (without_A, "these projections use shared slow weights A"),
        (with_two_As, "these projections use their own slow weights A"),
        (lambda: require_divisible(12, width=512, bottleneck=16), "n could be 1, 2, 4, 8, 16$"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(SettingError, match=message):
        make()

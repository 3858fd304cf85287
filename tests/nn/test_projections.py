"""Projections against an explicit sum of torch.kron, finite differences and the paper's counts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compacter.errors import SettingError
from compacter.nn import LPHM, PHM, Dense, LowRank, make_projection, slow_weights
from compacter.nn.projections import kronecker_sum, require_divisible

sizes = st.integers(1, 5)
dtypes = st.sampled_from([torch.float32, torch.float64])


def explicit_sum(A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    return sum(torch.kron(a, b) for a, b in zip(A, B, strict=True))


def tolerance(dtype: torch.dtype) -> float:
    return 1e-5 if dtype == torch.float32 else 1e-12


@settings(max_examples=60, deadline=None)
@given(n=sizes, p=sizes, q=sizes, dtype=dtypes, bias=st.booleans(), shared=st.booleans())
def test_phm_is_the_sum_of_kronecker_products(n, p, q, dtype, bias, shared):
    phm = PHM(n * p, n * q, n=n, shared_A=shared, bias=bias).to(dtype)
    A = slow_weights(n, std=1.0).to(dtype) if shared else None
    if bias:
        torch.nn.init.normal_(phm.bias)
    x = torch.randn(3, n * p, dtype=dtype)
    W = explicit_sum(A if shared else phm.A, phm.B)
    expected = x @ W + (phm.bias if bias else 0)
    torch.testing.assert_close(phm(x, A), expected, rtol=0, atol=tolerance(dtype))


@settings(max_examples=60, deadline=None)
@given(n=sizes, r=st.integers(1, 3), p=sizes, q=sizes, dtype=dtypes, shared=st.booleans())
def test_lphm_is_the_sum_of_kronecker_products_of_rank_r(n, r, p, q, dtype, shared):
    lphm = LPHM(n * p, n * q, n=n, rank=r, shared_A=shared).to(dtype)
    A = slow_weights(n, std=1.0).to(dtype) if shared else None
    B = torch.stack(
        [
            sum(torch.outer(s, t) for s, t in zip(lphm.s[i].T, lphm.t[i], strict=True))
            for i in range(n)
        ]
    )
    x = torch.randn(2, 3, n * p, dtype=dtype)
    W = explicit_sum(A if shared else lphm.A, B)
    torch.testing.assert_close(lphm(x, A), x @ W, rtol=0, atol=10 * tolerance(dtype))


def test_kronecker_sum_of_rectangles():
    A, B = torch.randn(3, 2, 5), torch.randn(3, 4, 7)
    torch.testing.assert_close(kronecker_sum(A, B), explicit_sum(A, B))


@pytest.mark.parametrize("kind", ["dense", "low-rank", "phm", "lphm"])
@pytest.mark.parametrize("shared_A", [True, False])
def test_gradients_agree_with_finite_differences(kind, shared_A):
    projection = make_projection(kind, 6, 4, n=2, rank=2, shared_A=shared_A).double()
    names = [name for name, _ in projection.named_parameters()]
    values = [torch.randn_like(p, requires_grad=True) for p in projection.parameters()]
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    needs_A = kind in ("phm", "lphm") and shared_A
    A = torch.randn(2, 2, 2, dtype=torch.float64, requires_grad=True) if needs_A else None

    def run(x, A, *values):
        state = dict(zip(names, values, strict=True))
        return torch.func.functional_call(projection, state, (x, A))

    assert torch.autograd.gradcheck(run, (x, A, *values))


def test_numbers_of_parameters_are_those_of_section_4():
    k, d, n, r = 24, 12, 4, 3

    def count(module):
        return sum(p.numel() for p in module.parameters())

    assert count(Dense(k, d, bias=False)) == k * d
    assert count(LowRank(k, d, rank=r, bias=False)) == r * (k + d)
    assert count(PHM(k, d, n=n, bias=False)) == k * d // n + n**3
    assert count(LPHM(k, d, n=n, rank=r, bias=False)) == r * (k + d)
    assert count(LPHM(k, d, n=n, rank=r, shared_A=False, bias=False)) == r * (k + d) + n**3
    assert count(Dense(k, d)) == k * d + d


def uniform_bound(rows: int, columns: int) -> float:
    return math.sqrt(2) * math.sqrt(6 / (rows + columns))


@pytest.mark.parametrize(
    ("tensor", "bound"),
    [
        (lambda: LowRank(768, 24).s, uniform_bound(768, 1)),
        (lambda: LowRank(768, 24, rank=4).t, uniform_bound(4, 24)),
        (lambda: PHM(768, 96, n=4).B, uniform_bound(192, 24)),
        (lambda: LPHM(768, 96, n=4).s, uniform_bound(192, 1)),
        (lambda: LPHM(768, 960, n=4, rank=2).t, uniform_bound(2, 240)),
    ],
)
def test_factors_start_glorot_uniform_with_gain_sqrt_2(tensor, bound):
    torch.manual_seed(0)
    values = torch.cat([tensor().detach().flatten() for _ in range(8)])
    assert values.abs().max() <= bound
    assert values.abs().max() > 0.98 * bound
    assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.06)


def test_dense_and_slow_weights_start_normal():
    torch.manual_seed(0)
    assert Dense(768, 96).W.std().item() == pytest.approx(0.01, rel=0.03)
    assert slow_weights(24).std().item() == pytest.approx(1e-4, rel=0.03)
    assert PHM(768, 96, n=24).A.std().item() == pytest.approx(0.01, rel=0.03)
    assert LPHM(768, 96, n=24, shared_A=False, A_std=0.5).A.std().item() == pytest.approx(
        0.5, rel=0.03
    )
    assert not Dense(4, 4).bias.any()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PHM(10, 8, n=4), "n=4 does not divide in_features=10; n could be 1, 2$"),
        (lambda: LPHM(8, 6, n=4), "n=4 does not divide out_features=6"),
        (lambda: LPHM(8, 8, n=0), "n=0 is too small"),
        (lambda: LPHM(8, 8, n=2, rank=0), "rank=0 is too small; it must be at least 1"),
        (lambda: LowRank(8, 8, rank=-1), "rank=-1 is too small"),
        (lambda: Dense(0, 8), "in_features=0 is too small"),
        (lambda: Dense(8, 0), "out_features=0 is too small"),
        (lambda: make_projection("sparse", 8, 8), "projection='sparse' is unknown; choose one of "),
        (lambda: LPHM(8, 8, n=2)(torch.ones(8)), "uses shared slow weights A, but none were given"),
        (lambda: PHM(8, 8, n=2)(torch.ones(8), torch.ones(2, 2, 2)), "uses its own slow weights"),
        (lambda: require_divisible(12, width=512, bottleneck=16), "n could be 1, 2, 4, 8, 16$"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(SettingError, match=message):
        make()

"""Matrices built together against the formula of each projection alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd.graph import saved_tensors_hooks

from compacter.nn import LPHM, Backward, Dense, build, make_projection, slow_weights

KINDS = ("low-rank", "phm", "lphm")
sizes = st.integers(1, 4)


def projections(kind, count, shared_A, n=2, rank=2, widths=(12, 8)):
    """Down- and up-projections in turn, in float64, and the slow weights they share."""
    torch.manual_seed(3)
    k, d = widths
    made = [
        make_projection(
            kind, *((k, d) if i % 2 == 0 else (d, k)), n=n, rank=rank, shared_A=shared_A
        )
        for i in range(2 * count)
    ]
    needs_A = shared_A and kind in ("phm", "lphm")
    A = torch.nn.Parameter(slow_weights(n, std=1.0).double()) if needs_A else None
    return [projection.double() for projection in made], A


def parameters_of(made, A):
    own = [p for projection in made for name, p in projection.named_parameters() if name != "bias"]
    return own if A is None else [*own, A]


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    shared_A=st.booleans(),
    count=st.integers(1, 3),
    n=sizes,
    rank=sizes,
    p=sizes,
    q=sizes,
)
def test_together_as_alone(kind, shared_A, count, n, rank, p, q):
    made, A = projections(kind, count, shared_A, n, rank, (n * p, n * q))
    alone = [projection.matrix(A) for projection in made]
    together = build(made, A)
    for found, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    gradients = [torch.randn_like(W) for W in alone]
    parameters = parameters_of(made, A)
    for found, expected in zip(
        torch.autograd.grad(together, parameters, gradients),
        torch.autograd.grad(alone, parameters, gradients),
        strict=True,
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(("dense", *KINDS)),
    shared_A=st.booleans(),
    n=sizes,
    rank=sizes,
    p=sizes,
    q=sizes,
    bias=st.booleans(),
)
def test_rows_of_different_projections_at_once(kind, shared_A, n, rank, p, q, bias):
    """y = x W + b with another W for each of m parts of x."""
    m, rows = 3, 2
    for widths in ((n * p, n * q), (n * q, n * p)):
        made = [
            make_projection(kind, *widths, n=n, rank=rank, shared_A=shared_A, bias=bias).double()
            for _ in range(m)
        ]
        slow = [slow_weights(n, std=1.0).double() for _ in made]
        needs_A = shared_A and kind in ("phm", "lphm")
        x = torch.randn(m, rows, widths[0], dtype=torch.float64)
        expected = torch.stack([made[i](x[i], slow[i] if needs_A else None) for i in range(m)])

        def stack(name, made=made):
            return torch.stack([getattr(projection, name) for projection in made])

        A = torch.stack(slow) if needs_A else None
        if kind in ("phm", "lphm") and not shared_A:
            A = stack("A")
        cls = type(made[0])
        prepared = cls.prepare({name: stack(name) for name in cls.FACTORS}, A)
        found = cls.project(x, prepared, stack("bias") if bias else None)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


def test_one_operation_for_projections_down_and_up(monkeypatch):
    """Twenty projections, half of them up, are built by one call of the formula."""
    calls = []
    formula = LPHM.matrices.__func__

    def counted(cls, factors, A=None):
        calls.append(len(factors["s"]))
        return formula(cls, factors, A)

    monkeypatch.setattr(LPHM, "matrices", classmethod(counted))
    build(*projections("lphm", 10, True))
    assert calls == [20]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("frozen", [True, False])
def test_gradients_of_gradients(kind, frozen):
    made, A = projections(kind, 2, True)
    if frozen and A is not None:
        A.requires_grad_(False)
    parameters = [p for p in parameters_of(made, A) if p.requires_grad]

    def second(matrices):
        first = torch.autograd.grad([(W**2).sum() for W in matrices], parameters, create_graph=True)
        return torch.autograd.grad(sum((g**2).sum() for g in first), parameters)

    expected = second([projection.matrix(A) for projection in made])
    for found, value in zip(second(build(made, A)), expected, strict=True):
        torch.testing.assert_close(found, value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared_A", [True, False])
@pytest.mark.parametrize("used", [(0, 3), (2,), (5, 1, 4)])
def test_what_took_no_part_has_no_gradient(kind, shared_A, used):
    """Nor gradients of gradients."""
    made, A = projections(kind, 3, shared_A)
    parameters = parameters_of(made, A)

    def found(matrices):
        first = torch.autograd.grad(
            [(matrices[i] ** 2).sum() for i in used],
            parameters,
            create_graph=True,
            allow_unused=True,
        )
        known = [gradient for gradient in first if gradient is not None]
        second = torch.autograd.grad(
            sum((gradient**2).sum() for gradient in known), parameters, allow_unused=True
        )
        return [*first, *second]

    for together, alone in zip(
        found(build(made, A)), found([projection.matrix(A) for projection in made]), strict=True
    ):
        assert (together is None) == (alone is None)
        if alone is not None:
            torch.testing.assert_close(together, alone)


def test_no_gradient_at_all():
    made, A = projections("lphm", 2, True)

    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, W):
            return W.sum()

        @staticmethod
        def backward(ctx, gradient):
            return None

    Nothing.apply(build(made, A)[0]).backward()
    assert all(parameter.grad is None for parameter in parameters_of(made, A))


def test_nothing_is_kept_for_the_backward_pass():
    """Alone, each LPHM keeps its B_i = s_i t_i and more."""

    def kept(function):
        saved = []
        with saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
            held = function()
        return held, saved

    made, A = projections("lphm", 3, True)
    assert kept(lambda: [projection.matrix(A) for projection in made])[1]
    assert not kept(lambda: build(made, A))[1]


def test_what_was_built_can_take_part_in_several_graphs():
    made, A = projections("lphm", 2, True)
    watch = Backward()
    matrices = build(made, A, watch)
    assert not watch.reached
    for _ in range(2):
        for parameter in parameters_of(made, A):
            parameter.grad = None
        sum((W**2).sum() for W in matrices).backward()
        found = [parameter.grad for parameter in parameters_of(made, A)]
    assert watch.reached
    expected = torch.autograd.grad(
        sum((projection.matrix(A) ** 2).sum() for projection in made), parameters_of(made, A)
    )
    for gradient, value in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, value)


def test_parameters_changed_before_the_backward_pass_are_an_error():
    made, A = projections("lphm", 1, True)
    matrices = build(made, A)
    with torch.no_grad():
        made[0].s.mul_(2)
    with pytest.raises(RuntimeError, match="changed between a forward pass and its backward pass"):
        matrices[0].sum().backward()


def test_frozen_parameters_stay_without_gradients():
    made, A = projections("lphm", 2, True)
    A.requires_grad_(False)
    made[0].s.requires_grad_(False)
    sum((W**2).sum() for W in build(made, A)).backward()
    assert A.grad is None
    assert made[0].s.grad is None
    assert made[0].t.grad.any()


def test_different_kinds_at_once():
    made = [Dense(6, 4), make_projection("low-rank", 6, 4), make_projection("phm", 6, 4, n=2)]
    made[2] = make_projection("phm", 6, 4, n=2, shared_A=False)
    for found, projection in zip(build(made), made, strict=True):
        torch.testing.assert_close(found, projection.matrix())

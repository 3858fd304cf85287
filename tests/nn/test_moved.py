"""Layers whose weights move along theta: equal to the explicit sum, and nothing of it is kept."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from compacter.nn import Fastfood, moved, moved_embedding, moved_linear

Case = tuple[Tensor, Tensor, Tensor, Fastfood]


def case(rows: int, columns: int, dim: int) -> Case:
    """A weight, theta, lambda and their projection, in double precision."""
    torch.manual_seed(0)
    theta = torch.randn(dim, dtype=torch.float64, requires_grad=True)
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(rows, columns, dtype=torch.float64)
    return weight, theta, scale, Fastfood(dim, weight.numel(), 0, "w")


def explicit(weight: Tensor, theta: Tensor, scale: Tensor, fastfood: Fastfood) -> Tensor:
    return weight + scale * fastfood(theta).view(weight.shape)


def check_alike(found: Tensor, expected: Tensor, *inputs: Tensor) -> None:
    """The same values and the same gradients."""
    torch.testing.assert_close(found, expected)
    direction = torch.randn_like(expected)
    for mine, theirs in zip(
        torch.autograd.grad(found, inputs, direction),
        torch.autograd.grad(expected, inputs, direction),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_a_moved_weight_and_its_gradients():
    weight, theta, scale, fastfood = case(5, 7, 6)
    check_alike(
        moved(weight, theta, scale, fastfood),
        explicit(weight, theta, scale, fastfood),
        theta,
        scale,
    )


@pytest.mark.parametrize("shape", [(4, 3, 7), (3, 7), (7,), (0, 7)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_moved_linear_and_its_gradients(shape: tuple[int, ...], has_bias: bool):
    weight, theta, scale, fastfood = case(9, 7, 6)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(9, dtype=torch.float64, requires_grad=True) if has_bias else None
    inputs = (x, theta, scale, bias) if bias is not None else (x, theta, scale)
    check_alike(
        moved_linear(x, weight, bias, theta, scale, fastfood),
        linear(x, explicit(weight, theta, scale, fastfood), bias),
        *inputs,
    )


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("width", [7, 16])
def test_a_moved_linear_with_few_rows(width: int, has_bias: bool, monkeypatch: pytest.MonkeyPatch):
    """It is made in parts, here of about 64 numbers; and never as a whole."""
    monkeypatch.setattr("compacter.nn.fastfood._CHUNK", 64)
    weight, theta, scale, fastfood = case(90, width, 6)
    x = torch.randn(2, 3, width, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(90, dtype=torch.float64, requires_grad=True) if has_bias else None
    inputs = (x, theta, scale, bias) if bias is not None else (x, theta, scale)
    expected = linear(x, explicit(weight, theta, scale, fastfood), bias)
    monkeypatch.setattr(Fastfood, "_add", lambda *a: pytest.fail("made as a whole"))
    check_alike(moved_linear(x, weight, bias, theta, scale, fastfood), expected, *inputs)


@pytest.mark.parametrize("frozen", ["x", "theta"])
def test_only_the_gradients_that_are_needed(frozen: str, monkeypatch: pytest.MonkeyPatch):
    """A frozen adapter is not transposed for, and an input without gradient not projected for."""
    weight, theta, scale, fastfood = case(9, 7, 6)
    x = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    expected = linear(x, explicit(weight, theta, scale, fastfood)).sum()
    wanted = torch.autograd.grad(expected, [theta, scale] if frozen == "x" else [x])
    frozen_inputs = [x] if frozen == "x" else [theta, scale]
    for tensor in frozen_inputs:
        tensor.requires_grad_(False)
    found = moved_linear(x, weight, None, theta, scale, fastfood).sum()
    calls: list[str] = []
    for name in ("add", "transpose", "add_and_transpose"):
        original = getattr(Fastfood, name)
        monkeypatch.setattr(
            Fastfood, name, lambda *a, _o=original, _n=name, **k: (calls.append(_n), _o(*a, **k))[1]
        )
    found.backward()
    assert calls == (["transpose"] if frozen == "x" else ["add"])
    trained = [theta, scale] if frozen == "x" else [x]
    for tensor, gradient in zip(trained, wanted, strict=True):
        torch.testing.assert_close(tensor.grad, gradient)
    assert all(tensor.grad is None for tensor in frozen_inputs)


@pytest.mark.parametrize("padding_idx", [None, 2])
@pytest.mark.parametrize(
    ("width", "dim"),
    [
        pytest.param(16, 40, id="rows divide a block"),
        pytest.param(24, 40, id="rows lie across blocks"),
        pytest.param(150, 40, id="rows are longer than blocks"),
        pytest.param(6, 5, id="blocks too short to jump"),
    ],
)
def test_a_moved_embedding_and_its_gradients(width: int, dim: int, padding_idx: int | None):
    weight, theta, scale, fastfood = case(60, width, dim)
    tokens = torch.tensor([[3, 59, 3], [2, 0, 31]])
    check_alike(
        moved_embedding(tokens, weight, theta, scale, fastfood, padding_idx),
        embedding(tokens, explicit(weight, theta, scale, fastfood), padding_idx),
        theta,
        scale,
    )


def saved_tensors(compute: Callable[[], Tensor]) -> list[Tensor]:
    found: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: (found.append(tensor), tensor)[1], lambda tensor: tensor
    ):
        compute()
    return found


def test_a_moved_linear_saves_its_input_and_a_vector():
    """And not W + lambda P theta."""
    weight, theta, scale, fastfood = case(9, 7, 6)
    x = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    known = {t.untyped_storage().data_ptr() for t in (x, weight, theta, scale)}
    saved = saved_tensors(lambda: moved_linear(x, weight, None, theta, scale, fastfood))
    new = [t for t in saved if t.untyped_storage().data_ptr() not in known]
    assert [t.shape for t in new] == [(fastfood.block,)]
    plain = saved_tensors(lambda: linear(x, explicit(weight, theta, scale, fastfood)))
    new = [t for t in plain if t.untyped_storage().data_ptr() not in known]
    assert (9, 7) in [t.shape for t in new]  # autograd would keep it


def test_one_projection_is_alive_at_a_time(monkeypatch: pytest.MonkeyPatch):
    """Over three layers, forward and backward."""
    alive: list[weakref.ref[Tensor]] = []
    original = Fastfood._add

    def add(*arguments: object) -> tuple[Tensor, Tensor | None]:
        gc.collect()
        assert not [made for made in alive if made() is not None]
        result: tuple[Tensor, Tensor | None] = original(*arguments)
        alive.append(weakref.ref(result[0]))
        return result

    monkeypatch.setattr(Fastfood, "_add", add)
    weight, theta, scale, fastfood = case(7, 7, 6)
    x = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    for _ in range(3):
        x = moved_linear(x, weight, None, theta, scale, fastfood)
    x.sum().backward()
    assert len(alive) == 6


@pytest.mark.parametrize("rows", [9, 90])
def test_autocast_gives_half_precision_outputs_and_full_gradients(rows: int):
    theta = torch.randn(6, requires_grad=True)
    scale = torch.tensor(0.7, requires_grad=True)
    weight, x = torch.randn(rows, 7), torch.randn(4, 7, requires_grad=True)
    fastfood = Fastfood(6, 7 * rows, 0, "w")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = moved_linear(x, weight, None, theta, scale, fastfood)
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    expected = linear(x, explicit(weight, theta, scale, fastfood)).sum()
    for tensor, gradient in zip(
        (x, theta, scale), torch.autograd.grad(expected, (x, theta, scale)), strict=True
    ):
        assert tensor.grad.dtype == torch.float32
        torch.testing.assert_close(tensor.grad, gradient, rtol=0.05, atol=0.3)

"""Layers whose weights move along theta: equal to the explicit sum, and nothing of it is kept."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import embedding, linear
from torch.utils._python_dispatch import TorchDispatchMode

from compacter.nn import Fastfood, moved, moved_embedding, moved_linear

Case = tuple[Tensor, Tensor, Tensor, Fastfood]


def case(rows: int, columns: int, dim: int, projection: type[Fastfood] = Fastfood) -> Case:
    """A weight, theta, lambda and their projection, in double precision."""
    torch.manual_seed(0)
    theta = torch.randn(dim, dtype=torch.float64, requires_grad=True)
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(rows, columns, dtype=torch.float64)
    return weight, theta, scale, projection(dim, weight.numel(), 0, "w")


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
        moved(weight, scale * theta, fastfood),
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
        moved_linear(x, weight, bias, scale * theta, fastfood),
        linear(x, explicit(weight, theta, scale, fastfood), bias),
        *inputs,
    )


def test_gradients_agree_with_finite_differences():
    weight, theta, scale, fastfood = case(9, 7, 6)
    tokens = torch.tensor([3, 8, 3])
    x = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(9, dtype=torch.float64, requires_grad=True)

    def compute_linear(x: Tensor, bias: Tensor, theta: Tensor, scale: Tensor) -> Tensor:
        return moved_linear(x, weight, bias, scale * theta, fastfood)

    def compute_embedding(theta: Tensor, scale: Tensor) -> Tensor:
        return moved_embedding(tokens, weight, scale * theta, fastfood)

    assert torch.autograd.gradcheck(compute_linear, (x, bias, theta, scale))
    assert torch.autograd.gradcheck(compute_embedding, (theta, scale))


class CountCopies(TorchDispatchMode):
    """Counts the tensors as large as a weight, besides itself, that exist at the same time."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight, self.most = weight, 0
        self._seen: list[weakref.ref[Tensor]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.nbytes >= self.weight.nbytes:
            self._seen.append(weakref.ref(result))
        alive = [tensor for reference in self._seen if (tensor := reference()) is not None]
        storages = {tensor.untyped_storage().data_ptr() for tensor in alive}
        self.most = max(self.most, len(storages - {self.weight.untyped_storage().data_ptr()}))
        return result


@pytest.mark.parametrize("width", [64, 96, 97])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_large_weight_for_few_inputs_is_never_whole(width: int, has_bias: bool):
    """As in an output layer. Neither it nor its gradient."""
    weight, theta, scale, fastfood = case(5_000_000 // width, width, 500)
    x = torch.randn(2, 3, width, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(len(weight), dtype=torch.float64, requires_grad=True) if has_bias else None
    inputs = (x, theta, scale, bias) if bias is not None else (x, theta, scale)
    with CountCopies(weight) as copies:
        found = moved_linear(x, weight, bias, scale * theta, fastfood)
        torch.autograd.grad(found.sum(), inputs, retain_graph=True)
    assert copies.most == 0
    check_alike(found, linear(x, explicit(weight, theta, scale, fastfood), bias), *inputs)


def test_one_weight_is_alive_at_a_time():
    """Over three layers, in the forward and in the backward pass: a moved one or a gradient."""
    weight, theta, scale, fastfood = case(800, 800, 50)
    x = torch.randn(4, 800, dtype=torch.float64, requires_grad=True)
    with CountCopies(weight) as copies:
        y = x
        for _ in range(3):
            y = moved_linear(y, weight, None, scale * theta, fastfood)
        y.sum().backward()
    assert copies.most == 1


class Counted(Fastfood):
    """Notes what it is asked for."""

    def project(self, *args: Any) -> Tensor:
        calls.append("project")
        return super().project(*args)

    def transpose(self, *args: Any) -> Tensor:
        calls.append("transpose")
        return super().transpose(*args)


calls: list[str] = []


@pytest.mark.parametrize("frozen", ["x", "theta"])
def test_only_the_gradients_that_are_needed(frozen: str):
    """A frozen adapter is not transposed for, and an input without gradient not projected for."""
    weight, theta, scale, fastfood = case(9, 7, 6, Counted)
    x = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    expected = linear(x, explicit(weight, theta, scale, fastfood)).sum()
    trained, fixed = ([theta, scale], [x]) if frozen == "x" else ([x], [theta, scale])
    wanted = torch.autograd.grad(expected, trained)
    for tensor in fixed:
        tensor.requires_grad_(False)
    found = moved_linear(x, weight, None, scale * theta, fastfood).sum()
    calls.clear()
    found.backward()
    assert calls == (["transpose"] if frozen == "x" else ["project"])
    for tensor, gradient in zip(trained, wanted, strict=True):
        torch.testing.assert_close(tensor.grad, gradient)
    assert all(tensor.grad is None for tensor in fixed)


@pytest.mark.parametrize("padding_idx", [None, 2, 5])
@pytest.mark.parametrize(
    ("width", "dim"),
    [
        pytest.param(16, 40, id="rows divide a block"),
        pytest.param(24, 40, id="rows lie across blocks"),
        pytest.param(150, 40, id="rows are longer than blocks"),
        pytest.param(6, 5, id="short blocks"),
    ],
)
def test_a_moved_embedding_and_its_gradients(width: int, dim: int, padding_idx: int | None):
    weight, theta, scale, fastfood = case(60, width, dim)
    tokens = torch.tensor([[3, 59, 3], [2, 0, 31]])
    check_alike(
        moved_embedding(tokens, weight, scale * theta, fastfood, padding_idx),
        embedding(tokens, explicit(weight, theta, scale, fastfood), padding_idx),
        theta,
        scale,
    )


def test_an_embedding_of_no_tokens():
    weight, theta, scale, fastfood = case(60, 16, 40)
    tokens = torch.zeros(2, 0, dtype=torch.int64)
    found = moved_embedding(tokens, weight, scale * theta, fastfood)
    assert found.shape == (2, 0, 16)
    found.sum().backward()
    assert not theta.grad.any()


def saved_tensors(compute: Callable[[], Tensor]) -> list[Tensor]:
    found: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: (found.append(tensor), tensor)[1], lambda tensor: tensor
    ):
        compute()
    return found


def test_a_moved_linear_saves_its_input_and_a_vector():
    """And not W + P (lambda theta)."""
    weight, theta, scale, fastfood = case(9, 7, 6)
    x = torch.randn(4, 7, dtype=torch.float64, requires_grad=True)
    known = {t.untyped_storage().data_ptr() for t in (x, weight, theta, scale)}
    saved = saved_tensors(lambda: moved_linear(x, weight, None, scale * theta, fastfood))
    new = [t for t in saved if t.untyped_storage().data_ptr() not in known]
    assert [t.shape for t in new] == [theta.shape]
    plain = saved_tensors(lambda: linear(x, explicit(weight, theta, scale, fastfood)))
    new = [t for t in plain if t.untyped_storage().data_ptr() not in known]
    assert (9, 7) in [t.shape for t in new]  # autograd would keep it


def test_a_weight_in_half_precision_moves_in_that_precision():
    """In the same way wherever it is used, as the weights of a tied embedding are used twice."""
    weight, theta, scale, fastfood = case(9, 7, 6)
    weight, scaled_theta = weight.bfloat16(), (scale * theta).float()
    expected = weight + fastfood(scaled_theta).view(9, 7).bfloat16()
    x = torch.randn(4, 7).bfloat16()
    assert torch.equal(moved(weight, scaled_theta, fastfood), expected)
    assert torch.equal(moved_linear(x, weight, None, scaled_theta, fastfood), x @ expected.T)
    tokens = torch.tensor([8, 0, 8])
    assert torch.equal(moved_embedding(tokens, weight, scaled_theta, fastfood), expected[tokens])


@pytest.mark.parametrize("rows", [9, 90])
def test_autocast_gives_half_precision_outputs_and_full_gradients(rows: int):
    theta = torch.randn(6, requires_grad=True)
    scale = torch.tensor(0.7, requires_grad=True)
    weight, x = torch.randn(rows, 7), torch.randn(4, 7, requires_grad=True)
    fastfood = Fastfood(6, 7 * rows, 0, "w")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = moved_linear(x, weight, None, scale * theta, fastfood)
    assert output.dtype == torch.bfloat16
    output.float().sum().backward()
    expected = linear(x, explicit(weight, theta, scale, fastfood)).sum()
    for tensor, gradient in zip(
        (x, theta, scale), torch.autograd.grad(expected, (x, theta, scale)), strict=True
    ):
        assert tensor.grad.dtype == torch.float32
        torch.testing.assert_close(tensor.grad, gradient, rtol=0.05, atol=0.3)

"""The bottleneck adapter against its formula."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.autograd import forward_ad

from compacter.bench import SavedTensors
from compacter.errors import SettingError
from compacter.nn import Bottleneck, Dense, bottleneck_of, make_projection, short, slow_weights


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


@pytest.fixture(params=["short", "long"])
def size(request, monkeypatch):
    """Of short and of long texts, between which the way of computing differs."""
    if request.param == "long":
        monkeypatch.setattr(short, "FEW", 0)


def given_matrices(biased=True, rows=(3, 2)):
    """y, W, b, V, c."""
    shapes = [(*rows, 8), (8, 4), (4,), (4, 8), (8,)]
    given = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    return [t if biased or t.dim() > 1 else None for t in given]


def adapted(y, W, b, V, c):
    return bottleneck_of(y, W, b, torch.tanh, V, c)


def test_the_output_may_be_changed_in_place(size):
    """As Falcon adds its attention to it."""
    given = given_matrices()
    found, expected = adapted(*given), adapted(*given)
    found += given[0]
    torch.testing.assert_close(found, expected + given[0])
    torch.testing.assert_close(
        torch.autograd.grad(found.cos().sum(), given),
        torch.autograd.grad((expected + given[0]).cos().sum(), given),
    )


@pytest.mark.parametrize("biased", [True, False])
def test_with_given_matrices(size, biased):
    """The same values and gradients, of rows that do not lie side by side too."""
    given = given_matrices(biased)
    y, W, b, V, c = given
    y = y.transpose(0, 1)
    found = adapted(y, W, b, V, c)
    z = torch.tanh(y @ W + (b if biased else 0))
    expected = y + z @ V + (c if biased else 0)
    torch.testing.assert_close(found, expected)
    trained = [tensor for tensor in given if tensor is not None]
    weights = torch.randn_like(found)
    for gradient, right in zip(
        torch.autograd.grad(found, trained, weights),
        torch.autograd.grad(expected, trained, weights),
        strict=True,
    ):
        torch.testing.assert_close(gradient, right)


@pytest.mark.parametrize("frozen", [(), (0,), (1, 3), (2, 4)])
def test_gradients_of_gradients_of_what_is_trained(size, frozen):
    given = [t.requires_grad_(place not in frozen) for place, t in enumerate(given_matrices())]
    assert torch.autograd.gradcheck(adapted, given)
    assert torch.autograd.gradgradcheck(adapted, given)


def test_under_transforms(size):
    y, W, b, V, c = given_matrices()
    biases = torch.stack([c, 2 * c])
    found = torch.func.vmap(lambda c: adapted(y, W, b, V, c))(biases)
    torch.testing.assert_close(found[1], adapted(y, W, b, V, 2 * c))


def test_in_forward_mode_and_with_many_gradients_at_once(size):
    y, W, b, V, c = given_matrices()
    given, tangent = y.detach(), torch.randn_like(y)
    expected = torch.func.jvp(lambda y: adapted(y, W, b, V, c), (given,), (tangent,))[1]
    with forward_ad.dual_level():
        found = adapted(forward_ad.make_dual(given, tangent), W, b, V, c)
        torch.testing.assert_close(forward_ad.unpack_dual(found).tangent, expected)
    y.requires_grad_()
    output = adapted(y, W, b, V, c)
    arriving = torch.randn(3, *output.shape, dtype=output.dtype)
    (many,) = torch.autograd.grad(output, y, arriving, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(output, y, one, retain_graph=True)[0] for one in arriving]
    torch.testing.assert_close(many, torch.stack(each))


@pytest.mark.parametrize("rows", [(3, 2), (3, 3)])
@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_gelu_goes_back_by_its_own_operation(size, approximate, rows):
    given = given_matrices(rows=rows)

    def adapted(y, W, b, V, c):
        return bottleneck_of(y, W, b, torch.nn.GELU(approximate), V, c)

    y, W, b, V, c = given
    expected = y + torch.nn.functional.gelu(y @ W + b, approximate=approximate) @ V + c
    torch.testing.assert_close(adapted(*given), expected)
    assert torch.autograd.gradcheck(adapted, given)
    assert torch.autograd.gradgradcheck(adapted, given)


def test_of_long_texts_what_the_activation_makes_is_not_saved(monkeypatch):
    y, *matrices = given_matrices()

    def saved():
        with SavedTensors(torch.nn.ParameterList(matrices)) as found:
            W, b, V, c = matrices
            output = bottleneck_of(y * 1, W, b, torch.nn.GELU(), V, c)
        bytes_saved = found.bytes()
        del output  # up to here, with all that is saved for it
        return bytes_saved

    of_y, of_bottleneck = 8 * 6 * 8, 8 * 6 * 4
    assert saved() == of_y + 2 * of_bottleneck
    monkeypatch.setattr(short, "FEW", 0)
    assert saved() == of_y + of_bottleneck


@pytest.mark.parametrize("length", [16, 512])
def test_what_is_saved_grows_evenly_with_the_batch(length):
    """Whether texts are short or not."""
    W, V = (torch.randn(s, requires_grad=True) for s in ((64, 8), (8, 64)))
    found = []
    for batch in (1, 8, 256):
        y = torch.randn(batch, length, 64, requires_grad=True)
        with SavedTensors(torch.nn.ParameterList([W, V])) as saved:
            output = bottleneck_of(y * 1, W, None, torch.nn.GELU(), V, None)
        found.append(saved.bytes() / batch)
        del output  # up to here, with all that is saved for it
    assert found[0] > 0
    assert len(set(found)) == 1


def test_autocast_leaves_y_as_it_is():
    y, W, V = torch.randn(5, 8), torch.randn(8, 4), torch.zeros(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(bottleneck_of(y, W, None, torch.tanh, V, None), y)


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

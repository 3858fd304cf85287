"""The bottleneck adapter against its formula."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import gelu

from compacter.nn import bottleneck


def given_tensors(biased=True, leading=(3, 2)):
    """y, W, b, V, c."""
    shapes = [(*leading, 8), (8, 4), (4,), (4, 8), (8,)]
    given = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    return given if biased else [*given[:2], None, given[3], None]


def adapted(y, W, b, V, c):
    return bottleneck(y, W, b, torch.tanh, V, c)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("leading", [(3, 2), (1, 1), (5,), (), (0, 4), (2, 3, 4)])
def test_values_and_gradients(biased, leading):
    given = given_tensors(biased, leading)
    y, W, b, V, c = given
    found = adapted(*given)
    z = torch.tanh(y @ W + (b if biased else 0))
    expected = y + z @ V + (c if biased else 0)
    torch.testing.assert_close(found, expected)
    trained = [tensor for tensor in given if tensor is not None]
    arriving = torch.randn_like(found)
    torch.testing.assert_close(
        torch.autograd.grad(found, trained, arriving),
        torch.autograd.grad(expected, trained, arriving),
    )


def test_y_that_does_not_lie_in_one_piece():
    y, *matrices = given_tensors()
    torch.testing.assert_close(
        adapted(y.transpose(0, 1), *matrices), adapted(y, *matrices).transpose(0, 1)
    )


def test_the_output_may_be_changed_in_place():
    """As Falcon adds its attention to it."""
    given = given_tensors()
    found, expected = adapted(*given), adapted(*given)
    found += given[0]
    torch.testing.assert_close(found, expected + given[0])
    torch.testing.assert_close(
        torch.autograd.grad(found.cos().sum(), given),
        torch.autograd.grad((expected + given[0]).cos().sum(), given),
    )


@pytest.mark.parametrize("frozen", [(), (0,), (1, 3), (2, 4)])
def test_gradients_of_gradients_of_what_is_trained(frozen):
    given = [t.requires_grad_(place not in frozen) for place, t in enumerate(given_tensors())]
    assert torch.autograd.gradcheck(adapted, given)
    assert torch.autograd.gradgradcheck(adapted, given)


def test_under_transforms():
    y, W, b, V, c = given_tensors()
    biases = torch.stack([c, 2 * c])
    found = torch.func.vmap(lambda c: adapted(y, W, b, V, c))(biases)
    torch.testing.assert_close(found[1], adapted(y, W, b, V, 2 * c))


def test_in_forward_mode_and_with_many_gradients_at_once():
    y, W, b, V, c = given_tensors()
    given, tangent = y.detach(), torch.randn_like(y)
    expected = torch.func.jvp(lambda y: adapted(y, W, b, V, c), (given,), (tangent,))[1]
    with forward_ad.dual_level():
        found = adapted(forward_ad.make_dual(given, tangent), W, b, V, c)
        torch.testing.assert_close(forward_ad.unpack_dual(found).tangent, expected)
    output = adapted(y, W, b, V, c)
    arriving = torch.randn(3, *output.shape, dtype=output.dtype)
    (many,) = torch.autograd.grad(output, y, arriving, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(output, y, one, retain_graph=True)[0] for one in arriving]
    torch.testing.assert_close(many, torch.stack(each))


@pytest.mark.parametrize("approximate", ["tanh", "none"])
def test_gelu(approximate):
    y, W, b, V, c = given = given_tensors()
    found = bottleneck(y, W, b, torch.nn.GELU(approximate), V, c)
    expected = y + gelu(y @ W + b, approximate=approximate) @ V + c
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found.square().sum(), given),
        torch.autograd.grad(expected.square().sum(), given),
    )


@pytest.mark.parametrize("length", [16, 512])
def test_what_is_saved_grows_evenly_with_the_batch(length):
    """And is y and two tensors of the bottleneck's width."""
    W, V = (torch.randn(s, requires_grad=True) for s in ((64, 8), (8, 64)))
    own = {t.untyped_storage().data_ptr() for t in (W, V)}
    for batch in (1, 8, 256):
        held = {}

        def pack(tensor, held=held):
            if tensor.untyped_storage().data_ptr() not in own:
                held[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        y = torch.randn(batch, length, 64, requires_grad=True)
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            output = bottleneck(y * 1, W, None, torch.nn.GELU(), V, None)
        assert sum(t.untyped_storage().nbytes() for t in held.values()) == (
            4 * batch * length * (64 + 2 * 8)
        )
        del output  # up to here, with all that is saved for it


def test_autocast_leaves_y_as_it_is():
    y, W, V = torch.randn(5, 8), torch.randn(8, 4), torch.zeros(4, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(bottleneck(y, W, None, torch.tanh, V, None), y)


def test_the_mathematics_import_no_transformers():
    """`import compacter` imports both, but for its command line."""
    code = "import sys, compacter_cli, compacter.nn; sys.exit('peft' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

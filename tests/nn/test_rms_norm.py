"""RMS norm by one operation against its formula, and the modules that are found to compute it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

from compacter.bench import SavedTensors
from compacter.nn import rms_epsilon, rms_norm

EPS = 1e-2


def formula(x, weight):
    return weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPS)


def numbers(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("shape", [(3, 5, 8), (1, 8), (8,), (0, 4, 8)])
def test_values_and_gradients(shape):
    x, weight, arriving = numbers(*shape), numbers(8), torch.randn(shape, dtype=torch.float64)
    found, expected = rms_norm(x, weight, EPS), formula(x, weight)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, [x, weight], arriving),
        torch.autograd.grad(expected, [x, weight], arriving),
    )


@pytest.mark.parametrize("trained", [(True, False), (False, True), (True, True)])
def test_gradients_of_gradients(trained):
    both = numbers(2, 2, 6), numbers(6)
    given = [t.requires_grad_(flag) for t, flag in zip(both, trained, strict=True)]
    assert torch.autograd.gradcheck(lambda x, w: rms_norm(x, w, EPS), given)
    assert torch.autograd.gradgradcheck(lambda x, w: rms_norm(x, w, EPS), given)


def test_rows_that_do_not_lie_side_by_side():
    x, weight = numbers(8, 5, 3), numbers(8)
    turned, arriving = (
        x.permute(2, 1, 0),
        torch.randn(8, 5, 3, dtype=torch.float64).permute(2, 1, 0),
    )
    found, expected = rms_norm(turned, weight, EPS), formula(turned, weight)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, [x, weight], arriving),
        torch.autograd.grad(expected, [x, weight], arriving),
    )


def test_without_gradients_and_under_transforms():
    x, weight = numbers(2, 4, 8), numbers(8)
    expected = formula(x, weight)
    with torch.no_grad():
        torch.testing.assert_close(rms_norm(x, weight, EPS), expected.detach())
    torch.testing.assert_close(torch.func.vmap(lambda row: rms_norm(row, weight, EPS))(x), expected)
    torch.testing.assert_close(
        torch.func.grad(lambda w: rms_norm(x, w, EPS).sum())(weight),
        torch.autograd.grad(expected.sum(), weight)[0],
    )


def test_in_forward_mode_and_with_many_gradients_at_once():
    x, weight = numbers(2, 4, 8), numbers(8)
    tangent = torch.randn_like(x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), tangent)
        found, expected = rms_norm(dual, weight, EPS), formula(dual, weight)
        torch.testing.assert_close(
            forward_ad.unpack_dual(found).tangent, forward_ad.unpack_dual(expected).tangent
        )
    arriving = torch.randn(3, 2, 4, 8, dtype=torch.float64)
    torch.testing.assert_close(
        torch.autograd.grad(rms_norm(x, weight, EPS), [x, weight], arriving, is_grads_batched=True),
        torch.autograd.grad(formula(x, weight), [x, weight], arriving, is_grads_batched=True),
    )


def test_a_backward_pass_under_autocast_is_not_rounded():
    x, weight = numbers(4, 16, 32, dtype=torch.float32), numbers(32, dtype=torch.float32)
    arriving = torch.randn(4, 16, 32)
    expected = torch.autograd.grad(formula(x, weight), [x, weight], arriving)
    with torch.autocast("cpu", torch.bfloat16):
        found = rms_norm(x, weight, EPS)
        gradients = torch.autograd.grad(found, [x, weight], arriving)
    assert found.dtype is torch.float32
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-4)


def test_the_output_may_be_changed_in_place():
    """As the jitter of mixtures of experts does."""
    x, weight = numbers(3, 5, 8), numbers(8)
    found = rms_norm(x, weight, EPS)
    found *= 2
    torch.testing.assert_close(found, 2 * formula(x, weight))
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), [x, weight]),
        torch.autograd.grad(2 * formula(x, weight).sum(), [x, weight]),
    )


def save_some(context, operation, *args, **kwargs):
    aten = torch.ops.aten
    is_some = operation in (aten.mul.Tensor, aten.linalg_vector_norm.default)
    return CheckpointPolicy.MUST_SAVE if is_some else CheckpointPolicy.PREFER_RECOMPUTE


def test_selective_checkpointing_may_save_what_the_norm_is_made_of():
    x, weight = numbers(2, 4, 8), numbers(8)
    found = checkpoint(
        lambda x: rms_norm(x, weight, EPS),
        x,
        use_reentrant=False,
        context_fn=lambda: create_selective_checkpoint_contexts(save_some),
    )
    torch.testing.assert_close(
        torch.autograd.grad(found.sum(), [x, weight]),
        torch.autograd.grad(formula(x, weight).sum(), [x, weight]),
    )


@pytest.mark.parametrize("length", [4, 512])
def test_the_input_and_a_number_per_token_are_kept(length):
    """So what is kept grows evenly with the batch."""
    for batch in (1, 16, 64):
        norm = nn.Module()
        norm.weight = nn.Parameter(torch.ones(8))
        x = torch.randn(batch, length, 8, requires_grad=True)
        with SavedTensors(norm) as saved:
            output = rms_norm(x * 1, norm.weight, EPS)
        assert saved.bytes() == 4 * batch * length * (8 + 1)
        assert output.requires_grad


@pytest.mark.parametrize(
    "norm", [T5LayerNorm(16, EPS), LlamaRMSNorm(16, EPS), nn.RMSNorm(16, EPS)], ids=type
)
def test_it_is_recognised(norm):
    assert rms_epsilon(norm) == EPS
    assert rms_epsilon(norm.half()) == EPS
    assert rms_epsilon(norm.to("meta")) == EPS


class Shifted(T5LayerNorm):
    def forward(self, hidden_states):
        return super().forward(hidden_states - hidden_states.mean(-1, keepdim=True))


class OtherEpsilon(T5LayerNorm):
    def forward(self, hidden_states):
        return formula(hidden_states, self.weight)


class Twice(T5LayerNorm):
    def forward(self, hidden_states, more):
        return super().forward(hidden_states)


@pytest.mark.parametrize(
    "other",
    [
        GemmaRMSNorm(16),
        nn.LayerNorm(16),
        nn.LayerNorm(16, bias=False),
        nn.RMSNorm((4, 4), EPS),
        nn.RMSNorm(16),
        nn.RMSNorm(16, EPS, elementwise_affine=False),
        nn.Linear(16, 16, bias=False),
        nn.Sequential(T5LayerNorm(16)),
        Shifted(16),
        OtherEpsilon(16),
        Twice(16),
    ],
    ids=lambda module: type(module).__name__,
)
def test_others_are_not(other):
    assert rms_epsilon(other) is None


def test_trying_it_leaves_the_module_and_the_random_numbers_alone():
    norm, state = T5LayerNorm(16), torch.get_rng_state()
    assert rms_epsilon(norm) is not None
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(norm.weight, torch.ones(16))

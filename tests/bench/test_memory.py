"""Counted memory: by hand for a small network, and as a straight line over batch sizes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from adapting import SMALL_ENOUGH
from compacter import attach
from compacter.bench import Memory, MemoryLine, SavedTensors, count_step, parse_size
from compacter.errors import BenchError
from compacter.methods import METHODS
from tiny_models import TINY, tiny_inputs

FLOAT = 4
SETTINGS = {**SMALL_ENOUGH, "intrinsic-said": {"intrinsic_dim": 120}}


class Network(nn.Module):
    """3 -> 5 -> 2 with a ReLU between; the loss is a sum, which saves nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 2, bias=False)

    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(loss=self.second(self.first(x).relu()).sum())


def optimizer_for(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])


def test_a_network_by_hand():
    model = Network()
    found = count_step(model, {"x": torch.randn(4, 3)}, optimizer_for(model))
    weights = FLOAT * (3 * 5 + 5 + 5 * 2)
    assert found == Memory(
        weights=weights,
        gradients=weights,
        optimizer=2 * weights + 3 * FLOAT,  # two moments, and a step for each of three tensors
        activations=FLOAT * 4 * (3 + 5),  # the input, and the ReLU's output, which two have saved
    )
    assert found.total == sum((weights, weights, 2 * weights + 12, 128))
    assert found.least == sum((weights, 2 * weights + 12, 128))  # activations are more


def test_the_least_is_with_the_larger_of_gradients_and_activations():
    assert Memory(weights=1, gradients=20, optimizer=300, activations=4_000).least == 4_301
    assert Memory(weights=1, gradients=4_000, optimizer=300, activations=20).least == 4_301


def test_a_frozen_network_by_hand():
    """Only the second layer is trained: of the first, nothing is needed."""
    model = Network()
    model.first.requires_grad_(False)
    found = count_step(model, {"x": torch.randn(4, 3)}, optimizer_for(model))
    trained = FLOAT * 5 * 2
    assert (found.gradients, found.optimizer) == (trained, 2 * trained + FLOAT)
    assert found.activations == FLOAT * 4 * 5


def test_a_storage_is_counted_whole_and_once():
    model, x = Network(), torch.randn(10, 3, requires_grad=True)
    with SavedTensors(model) as saved:
        kept = x[:2].exp() * x[5:7]  # exp saves its result, the product both of its factors
    assert saved.bytes() == FLOAT * (10 * 3 + 2 * 3)
    assert kept.requires_grad


def test_what_is_dropped_before_the_backward_pass_is_not_counted():
    model, x = Network(), torch.randn(10, 3, requires_grad=True)
    with SavedTensors(model) as saved:
        x.exp()
        kept = (2 * x).tanh()
    assert saved.bytes() == FLOAT * 10 * 3
    del kept
    assert saved.bytes() == 0


def test_a_checkpointed_part_saves_its_input_alone():
    model, x = Network(), torch.randn(4, 3, requires_grad=True)
    with SavedTensors(model) as saved:
        kept = checkpoint(lambda y: y.exp().tanh().exp(), x, use_reentrant=False)
    assert saved.bytes() == FLOAT * 4 * 3
    kept.sum().backward()
    assert x.grad is not None


def test_counting_changes_no_gradient():
    gradients = []
    for count in (True, False):
        torch.manual_seed(0)
        model, x = Network(), torch.randn(4, 3)
        if count:
            with SavedTensors(model):
                loss = model(x).loss
        else:
            loss = model(x).loss
        loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def memory_of(method: str, batch: int, family: str = "t5") -> Memory:
    base = TINY[family]()
    inputs = tiny_inputs(base, batch=batch)
    model = attach(base, method, **SETTINGS.get(method, {})).train()
    return count_step(model, inputs, optimizer_for(model))


@pytest.mark.parametrize("family", ["t5", "bert", "gpt2"])
@pytest.mark.parametrize("method", METHODS)
def test_memory_is_a_line_over_batch_sizes(method: str, family: str):
    """Two batch sizes tell a third one, to the byte; so a largest batch can be predicted."""
    known = {batch: memory_of(method, batch, family) for batch in (2, 4, 7)}
    line = MemoryLine.through({batch: known[batch].total for batch in (2, 4)})
    assert line.at(7) == known[7].total
    for name in ("weights", "gradients", "optimizer"):
        assert len({getattr(memory, name) for memory in known.values()}) == 1
    budget = line.at(7)
    assert line.largest_batch(budget) == 7
    assert line.largest_batch(budget - 1) == 6
    assert line.largest_batch(10) == 0


def test_intrinsic_said_takes_less_memory_than_full_fine_tuning():
    """Even here, where random numbers and moved vectors weigh as much as they ever will: it saves
    what full fine-tuning saves, the moved weights of the norms, and a vector for each matrix."""
    full, ours = memory_of("full", 4), memory_of("intrinsic-said", 4)
    base = TINY["t5"]()
    vectors = sum(p.numel() for p in base.parameters() if p.dim() == 1)
    tensors = len(list(base.parameters()))
    dim = SETTINGS["intrinsic-said"]["intrinsic_dim"]
    blocks = sum(-(-p.numel() // 128) for p in base.parameters())
    random = 3 * 128 * tensors + 128 * blocks  # signs, permutation; Gaussians, with L = 128
    assert ours.weights == full.weights + FLOAT * dim + random
    assert ours.gradients == FLOAT * dim
    assert ours.optimizer == 2 * FLOAT * dim + 2 * FLOAT  # theta and lambda, each with its step
    mixed = 128 * sum(isinstance(module, nn.Linear) for module in base.modules())
    assert ours.activations <= full.activations + FLOAT * (vectors + mixed)
    assert ours.total < full.total


def test_frozen_weights_hold_no_gradients():
    for method in METHODS:
        if method != "full":
            base = TINY["t5"]()
            inputs = tiny_inputs(base)
            model = attach(base, method, **SETTINGS.get(method, {})).train()
            found = count_step(model, inputs, optimizer_for(model))
            trained = [p for p in model.parameters() if p.requires_grad]
            assert found.gradients == FLOAT * sum(p.numel() for p in trained), method
            assert found.optimizer == 2 * found.gradients + FLOAT * len(trained), method
            assert all(p.grad is None for p in model.parameters() if not p.requires_grad)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("24GB", 24 * 10**9),
        ("24 GiB", 24 * 2**30),
        ("0.5MB", 500_000),
        ("100KiB", 102_400),
        (" 7KB ", 7_000),
    ],
)
def test_sizes(text: str, size: int):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "24", "GB", "-1GB", "0GB", "0.0001KB", "24gb", "24TB", "1e3MB", "24 GB of RAM"]
)
def test_what_is_no_size_is_refused(text: str):
    with pytest.raises(
        BenchError, match=r"memory budget .* does not fit; expected .* such as 24GB"
    ):
        parse_size(text)

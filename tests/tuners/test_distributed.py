"""Two processes train as one does: DDP, FSDP2 and FSDP1, with the losses and steps of one."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.multiprocessing as mp
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel
from transformers.models.t5.modeling_t5 import T5Block

from adapting import attach_tiny, inputs_of, scramble

STEPS = 2


def make(method: str, **settings) -> nn.Module:
    torch.manual_seed(0)
    model = attach_tiny("t5", method, **settings).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    scramble(model, 0.1)
    return model


def part(index: int) -> dict[str, torch.Tensor]:
    """A half of the batch."""
    return {
        name: value[2 * index : 2 * index + 2] for name, value in inputs_of("t5", batch=4).items()
    }


def train(model: nn.Module, parts: list[dict[str, torch.Tensor]]) -> tuple[list[float], list]:
    """Losses of some steps, and the trained parameters afterwards."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    losses = []
    for _ in range(STEPS):
        for inputs in parts:
            loss = model(**inputs).loss / len(parts)
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, parameters


def wrap(kind: str, model: nn.Module) -> nn.Module:
    if kind == "ddp":
        return DistributedDataParallel(model)
    if kind == "fsdp2":
        for module in model.modules():
            if isinstance(module, T5Block):
                fully_shard(module)
        return fully_shard(model)
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({T5Block}),
        use_orig_params=True,
        device_id=torch.device("cpu"),
    )


def work(rank: int, kind: str, method: str, settings: dict, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    model = make(method, **settings)
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    wrapped = wrap(kind, model)
    losses, parameters = train(wrapped, [part(rank)])
    if kind == "fsdp2":
        found = {n: p.full_tensor() for n, p in zip(names, parameters, strict=True)}
    elif kind == "fsdp1":
        with FullyShardedDataParallel.summon_full_params(wrapped):
            found = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
            found = {n.replace("_fsdp_wrapped_module.", ""): p for n, p in found.items()}
    else:
        found = dict(zip(names, parameters, strict=True))
    found = {name: value.detach().clone() for name, value in found.items()}
    torch.save((losses, found), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


CASES = [
    ("ddp", "compacter", {}),
    ("fsdp2", "compacter", {}),
    ("fsdp2", "phm-adapter", {"n": 4}),
    ("fsdp2", "bitfit", {}),
    ("fsdp1", "compacter", {}),
    ("fsdp1", "compacter++", {"tune_output_layer": True}),
    ("fsdp1", "intrinsic-said", {}),
]


@pytest.mark.parametrize(("kind", "method", "settings"), CASES)
def test_as_one_process(kind, method, settings, tmp_path):
    expected, parameters = train(model := make(method, **settings), [part(0), part(1)])
    names = [n for n, p in model.named_parameters() if p.requires_grad]
    wanted = dict(zip(names, parameters, strict=True))
    mp.spawn(functools.partial(work), (kind, method, settings, str(tmp_path)), nprocs=2)
    results = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for step in range(STEPS):
        together = sum(losses[step] for losses, _ in results) / 2
        assert together == pytest.approx(sum(expected[2 * step : 2 * step + 2]), abs=1e-5)
    for _, found in results:
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            torch.testing.assert_close(found[name], value.detach(), rtol=0, atol=1e-5)

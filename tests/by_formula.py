"""Adapters computed from the tensors of a saved file, by the paper's formulas, on a bare model.

Nothing of the package takes part: what is written in docs/file-format.md is enough. The tensors of
the file are leaves, so autograd gives their gradients too."""

from __future__ import annotations

import hashlib
import json
import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor, nn

from adapting import attach_tiny, logits, scramble

Tensors = dict[str, Tensor]

PREFIX = "base_model.model."
OWN = re.compile(r"adapters\.(compacter|bitfit|intrinsic_said)_weights\.(.+)")


class Run(NamedTuple):
    """What a call of a model gave: the gradients are by the names that tensors have in the file."""

    logits: Tensor
    loss: Tensor
    gradients: Tensors


class Saved:
    """A folder with an adapter.

    Args:
        folder: where it is.
        dtype: what its tensors are computed in.
    """

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        stored = load_file(folder / "adapter_model.safetensors")
        self.settings: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text())
        self.tensors = {name: t.to(dtype).requires_grad_() for name, t in stored.items()}
        self.own: Tensors = {}
        self.heads: Tensors = {}
        for name, tensor in self.tensors.items():
            bare = name.removeprefix(PREFIX)
            found = OWN.fullmatch(bare)
            (self.own if found else self.heads)[found[2] if found else bare] = tensor

    def places(self) -> Iterator[tuple[str, Tensors]]:
        """Every place by its path, with its own tensors by their plain names. Intrinsic-SAID lists
        the modules that it moves, without tensors."""
        for stack in (stack for stack in self.settings["places"] if stack["tensors"]):
            for index, path in enumerate(stack["paths"]):
                yield (
                    path,
                    {re.sub(r"_\d+$", "", n): self.own[n][index] for n in stack["tensors"]},
                )


def matrix(own: Tensors, way: str, A: Tensor | None) -> Tensor:
    """W of one projection: itself, s t, or sum_i A_i (x) B_i with B_i = s_i t_i if need be."""
    if f"{way}_W" in own:
        return own[f"{way}_W"]
    s, t, B = (own.get(f"{way}_{name}") for name in ("s", "t", "B"))
    if B is None:
        assert s is not None
        assert t is not None
        B = s @ t
        if B.dim() == 2:
            return B
    slow = own.get(f"{way}_A", A)
    assert slow is not None
    return torch.stack([torch.kron(a, b) for a, b in zip(slow, B, strict=True)]).sum(0)


def gelu(z: Tensor) -> Tensor:
    return 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


def adapted(y: Tensor, own: Tensors, A: Tensor | None) -> Tensor:
    """y + gelu(y W + b) V + c."""
    W, V = matrix(own, "down", A), matrix(own, "up", A)
    hidden = gelu(y @ W + own.get("down_bias", 0))
    return y + hidden @ V + own.get("up_bias", 0)


def replace(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Let a module compute with this tensor instead of its parameter."""
    path, _, attribute = name.rpartition(".")
    owner = module.get_submodule(path)
    del owner._parameters[attribute]
    setattr(owner, attribute, tensor)


def rms_norm(module: Any, given: tuple[Tensor], output: Tensor) -> Tensor:
    """As transformers computes it, which takes the mean in float32 whatever x is."""
    (x,) = given
    result: Tensor = (
        module.weight * x / (x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon).sqrt()
    )
    return result


def install(base: nn.Module, folder: Path) -> Tensors:
    """Let a bare model compute with the adapter in the folder. Returns the tensors of the file, by
    their names in it, as the leaves of what is computed."""
    dtype = next(base.parameters()).dtype
    saved = Saved(folder, dtype)
    for name, tensor in saved.heads.items():
        replace(base, name, tensor)
    if "theta" in saved.own:
        move_all(base, saved)
    if "output_weight" in saved.own:
        replace_output_layer(base, saved.own)
    A = saved.own.get("A")
    for path, own in saved.places():
        module = base.get_submodule(path)
        if "bias" in own:
            module.register_forward_hook(lambda m, x, y, b=own["bias"]: y + b)
        elif "layernorm_weight" in own:
            for name, tensor in own.items():
                replace(module, name.removeprefix("layernorm_"), tensor)
            if hasattr(module, "variance_epsilon"):
                module.register_forward_hook(rms_norm)
        else:
            module.register_forward_hook(lambda m, x, y, own=own: adapted(y, own, A))
    return saved.tensors


def replace_output_layer(base: Any, own: Mapping[str, Tensor]) -> None:
    """The output layer and all that is tied to it. That of a model without `lm_head` or the like
    is its classifier."""
    layer = base.get_output_embeddings() or base.get_submodule("classifier")
    for name in ("weight", "bias"):
        parameter, tensor = layer._parameters.get(name), own.get(f"output_{name}")
        assert (parameter is None) == (tensor is None)
        if parameter is not None and tensor is not None:
            for path, found in [*base.named_parameters(remove_duplicate=False)]:
                if found is parameter:
                    replace(base, path, tensor)


def move_all(base: nn.Module, saved: Saved) -> None:
    """W_j + lambda_j P_j theta for every weight tensor of the model."""
    places: dict[Tensor, list[str]] = {}
    for name, parameter in base.named_parameters(remove_duplicate=False):
        places.setdefault(parameter, []).append(name)
    order = sorted(names[0] for names in places.values())
    theta, seed = saved.own["theta"], saved.settings["projection_seed"]
    for parameter, names in places.items():
        change = projected(theta, parameter.numel(), seed, names[0]).view(parameter.shape)
        moved = parameter.detach() + saved.own["lambda"][order.index(names[0])] * change
        for name in names:
            replace(base, name, moved)


def projected(theta: Tensor, size: int, seed: int, name: str) -> Tensor:
    """P theta, step by step as docs/file-format.md has it, for theta of more than four numbers."""
    d = len(theta)
    L = 1 << (d - 1).bit_length()
    K = -(-size // L)
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    stream = np.random.Philox(key=np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64))

    def draw(count: int) -> np.ndarray[Any, Any]:
        return stream.random_raw(count // 8).astype("<u8").view(np.uint8)

    signs = (draw(L) & 1) * 2.0 - 1
    permutation = np.argsort(stream.random_raw(L), kind="stable")
    levels = np.array([NormalDist().inv_cdf((b + 0.5) / 256) for b in range(256)])
    levels /= math.sqrt(np.mean(levels**2))
    g = torch.from_numpy(levels[draw(K * L)].reshape(K, L)).to(theta)
    H = torch.from_numpy(scipy.linalg.hadamard(L).astype(float)).to(theta)
    padded = torch.cat([theta, theta.new_zeros(L - d)])
    u = (H @ (torch.from_numpy(signs).to(theta) * padded))[torch.from_numpy(permutation)]
    return ((g * u) @ H).flatten()[:size] / math.sqrt(L * size)


def run_by_formula(base: nn.Module, folder: Path, inputs: Mapping[str, Any]) -> Run:
    """The logits and the gradients of the loss. The model is changed for good."""
    tensors = install(base, folder)
    output = base(**inputs)
    gradients = torch.autograd.grad(
        output.loss, [*tensors.values()], allow_unused=True, materialize_grads=True
    )
    return Run(
        output.logits.detach(), output.loss.detach(), dict(zip(tensors, gradients, strict=True))
    )


@contextmanager
def saved(model: PeftModel, adapter: str = "default") -> Iterator[Path]:
    """A folder with an adapter of the model as it is now."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, selected_adapters=[adapter])
        yield Path(folder) if adapter == "default" else Path(folder) / adapter


def expected_of(model: PeftModel, base: nn.Module, inputs: Mapping[str, Any]) -> Run:
    """What the model's active adapter has to give, on a bare model of the same weights."""
    parameter = next(p for p in model.get_base_model().parameters() if p.is_floating_point())
    base = base.to(parameter.dtype)
    with saved(model, model.active_adapter) as folder:
        return run_by_formula(base.train(model.training), folder, inputs)


def name_in_file(name: str, adapter: str = "default") -> str:
    return name.replace(".modules_to_save", "").replace(f".{adapter}", "")


def gradients_of(model: nn.Module, adapter: str = "default") -> Tensors:
    """Of all that is trained, by the names in a file. Where there is none it is zero."""
    return {
        name_in_file(n, adapter): torch.zeros_like(p) if p.grad is None else p.grad.clone()
        for n, p in model.named_parameters()
        if p.requires_grad
    }


def gradients(model: nn.Module, inputs: Mapping[str, Any], adapter: str = "default") -> Tensors:
    model.zero_grad()
    model(**inputs).loss.backward()
    return gradients_of(model, adapter)


def assert_same(found: Tensors, expected: Tensors, tolerance: float = 1e-10) -> None:
    """Up to the tolerance, relative to the largest number of each tensor."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = max(1.0, value.abs().max().item())
        torch.testing.assert_close(
            found[name] / scale,
            value / scale,
            rtol=0,
            atol=tolerance,
            msg=lambda text, name=name: f"{name}: {text}",
        )


WEIGHTS = "base_model.model.adapters.compacter_weights.default"
"""The module with the parameters of an adapter called default, in a `PeftModel`."""


def compacted(**settings: Any) -> PeftModel:
    """A T5 with Compacter in float64, where the order of operations does not show."""
    model = attach_tiny("t5", "compacter", **{"bottleneck": 8, **settings}).double()
    scramble(model, std=0.1)
    return model


def assert_as_by_formula(model: PeftModel, inputs: Mapping[str, Any], base: nn.Module) -> None:
    """Logits with and without gradients, and gradients, in float64."""
    expected = expected_of(model, base, inputs)
    assert_same({"logits": model(**inputs).logits.detach()}, {"logits": expected.logits})
    # Without gradients norms are transformers' own, which take means in float32
    assert_same({"logits": logits(model, **inputs)}, {"logits": expected.logits}, 2e-6)
    found = gradients(model, inputs, model.active_adapter)
    model.zero_grad()
    assert_same(found, expected.gradients)

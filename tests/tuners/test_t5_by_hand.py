"""A T5 with Compacter, written out by hand from the tensors of two files and a list of places."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from adapting import attach_tiny, inputs_of, logits, save, scramble
from tiny_models import HEADS, HIDDEN, LAYERS, TINY

PREFIX = "base_model.model.adapters.compacter_weights."


class T5ByHand:
    """Encoder and decoder as in the T5 paper; after self-attention and feed-forward the adapter
    A(y) = y + U(gelu(D(y))) with W = sum_i A_i (x) s_i t_i, and the adapter's own layer norms."""

    def __init__(self, base: dict[str, Tensor], folder: Path) -> None:
        self.base = base
        stored = load_file(folder / "adapter_model.safetensors")
        self.adapter = {name.removeprefix(PREFIX): tensor for name, tensor in stored.items()}
        places = json.loads((folder / "adapter_config.json").read_text())["places"]
        self.index = {path: i for stack in places for i, path in enumerate(stack["paths"])}

    def norm(self, x: Tensor, name: str) -> Tensor:
        weight = self.adapter["layernorm_weight"][self.index[name]]
        return weight * x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    def projection(self, x: Tensor, way: str, name: str) -> Tensor:
        A, place = self.adapter["A"], self.index[name]
        s, t = self.adapter[f"{way}_s"][place], self.adapter[f"{way}_t"][place]
        W = sum(torch.kron(A[i], s[i] @ t[i]) for i in range(len(A)))
        return x @ W + self.adapter[f"{way}_bias"][place]

    def adapt(self, y: Tensor, name: str) -> Tensor:
        if name not in self.index:
            return y
        z = self.projection(y, "down", name)
        z = 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
        return y + self.projection(z, "up", name)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.base[f"{name}.weight"].T

    def attention(self, x: Tensor, memory: Tensor, name: str, bias: Tensor) -> Tensor:
        def heads(y: Tensor) -> Tensor:
            return y.unflatten(-1, (HEADS, -1)).transpose(1, 2)

        q = heads(self.linear(x, f"{name}.q"))
        k, v = (heads(self.linear(memory, f"{name}.{part}")) for part in "kv")
        weights = torch.softmax(q @ k.transpose(-1, -2) + bias, dim=-1)
        return self.linear((weights @ v).transpose(1, 2).flatten(2), f"{name}.o")

    def relative_bias(self, stack: str, length: int) -> Tensor:
        table = self.base[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        buckets = torch.empty(length, length, dtype=torch.long)
        for i in range(length):
            for j in range(length):
                d = int(distance[i, j])
                if stack == "encoder":  # 16 buckets a side; all distances here are below 8
                    buckets[i, j] = abs(d) + (16 if d > 0 else 0)
                else:
                    buckets[i, j] = max(-d, 0)
        return table[buckets].permute(2, 0, 1)[None]

    def stack(self, stack: str, x: Tensor, memory: Tensor | None) -> Tensor:
        length = x.shape[1]
        bias = self.relative_bias(stack, length)
        if memory is not None:
            bias = bias + torch.full((length, length), -math.inf).triu(1)
        for index in range(LAYERS):
            layer = f"{stack}.block.{index}.layer"
            y = self.norm(x, f"{layer}.0.layer_norm")
            name = f"{layer}.0.SelfAttention"
            x = x + self.adapt(self.attention(y, y, name, bias), f"{name}.o")
            last = 1
            if memory is not None:
                last = 2
                y = self.norm(x, f"{layer}.1.layer_norm")
                x = x + self.attention(y, memory, f"{layer}.1.EncDecAttention", torch.zeros(1))
            y = self.norm(x, f"{layer}.{last}.layer_norm")
            name = f"{layer}.{last}.DenseReluDense"
            x = x + self.adapt(
                self.linear(torch.relu(self.linear(y, f"{name}.wi")), f"{name}.wo"), f"{name}.wo"
            )
        return self.norm(x, f"{stack}.final_layer_norm")

    def __call__(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        embedding = self.base["shared.weight"]
        memory = self.stack("encoder", embedding[input_ids], None)
        shifted = torch.cat([torch.zeros_like(labels[:, :1]), labels[:, :-1]], dim=1)
        hidden = self.stack("decoder", embedding[shifted], memory)
        return hidden * HIDDEN**-0.5 @ embedding.T


@pytest.mark.parametrize("method", ["compacter", "compacter++"])
@pytest.mark.parametrize("rank", [1, 2])
def test_forward_equals_the_formulas(method, rank, tmp_path):
    model = attach_tiny("t5", method, rank=rank, bottleneck=8)
    scramble(model)
    save(model, tmp_path)
    inputs = inputs_of("t5")
    by_hand = T5ByHand(TINY["t5"]().state_dict(), tmp_path)
    expected = by_hand(inputs["input_ids"], inputs["labels"])
    found = logits(model, **inputs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert (found - logits(TINY["t5"](), **inputs)).abs().max() > 0.1

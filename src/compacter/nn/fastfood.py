"""The Fastfood projection of Intrinsic-SAID: theta in R^d -> R^D in O(D log d) time.

With L the power of two at or above d, D numbers are ceil(D / L) stacked blocks

    V_k = H G_k P H S / sqrt(L D),        (P theta)[k L : (k+1) L] = V_k theta

H the Walsh-Hadamard matrix, S random signs, P a random permutation, G_k random Gaussian diagonals.
S and P are drawn once for a tensor and G_k anew for every block: given P H S theta the blocks are
independent, and the first transform is paid once. E ||V theta||^2 = ||theta||^2 for every D.

Nothing random is stored. All of it is read from one stream of Philox bytes whose key is a digest
of (seed, tensor name); the stream of that generator is fixed for all platforms and versions.
A Gaussian is one byte, an index into 256 equally likely levels of N(0, 1), scaled to variance 1.
docs/file-format.md fixes these choices: an adapter on disk is only theta, lambda and the seed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compacter.errors import SettingError

_CHUNK_BLOCKS = 16  # blocks transformed at a time, which bounds the memory for intermediates
_HADAMARD_BITS = 5  # a transform of 2^m numbers is m/5 products with a 32 x 32 matrix


@dataclass(frozen=True)
class Fastfood:
    """The projection of `dim` numbers to `size` numbers that belongs to (seed, name)."""

    dim: int
    size: int
    seed: int
    name: str

    def __post_init__(self) -> None:
        for setting, value in (("dim", self.dim), ("size", self.size)):
            if value < 1:
                raise SettingError(f"{setting}={value} is too small; it must be at least 1")

    @property
    def block(self) -> int:
        """L: the power of two at or above dim."""
        return 1 << (self.dim - 1).bit_length()

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.block * self.size)

    def __call__(self, theta: Tensor) -> Tensor:
        """P theta, differentiable in theta (any number of times: P is linear)."""
        result: Tensor = _Project.apply(theta, self)  # type: ignore[no-untyped-call]
        return result

    def project(self, theta: Tensor) -> Tensor:
        signs, permutation, gaussians = self._draw(theta)
        mixed = theta.new_zeros(self.block)
        mixed[: self.dim] = theta
        mixed = hadamard(mixed * signs)[permutation] * self.scale
        out = theta.new_empty(self.size)
        for start, diagonal in gaussians:
            rows = hadamard(diagonal * mixed).reshape(-1)
            out[start : start + rows.numel()] = rows[: self.size - start]
        return out

    def transpose(self, y: Tensor) -> Tensor:
        """P^T y: the same products in reverse order (H and the diagonals are symmetric)."""
        signs, permutation, gaussians = self._draw(y)
        mixed = y.new_zeros(self.block)
        for start, diagonal in gaussians:
            rows = y.new_zeros(diagonal.numel())
            part = y[start : start + diagonal.numel()]
            rows[: part.numel()] = part
            mixed += (diagonal * hadamard(rows.reshape(diagonal.shape))).sum(0)
        back = torch.empty_like(mixed)
        back[permutation] = mixed * self.scale
        return (hadamard(back) * signs)[: self.dim]

    def _draw(self, like: Tensor) -> tuple[Tensor, Tensor, Iterator[tuple[int, Tensor]]]:
        """S, the permutation, and (offset, diagonals of some blocks) until all are drawn."""
        digest = hashlib.sha256(f"{self.seed}/{self.name}".encode()).digest()
        stream = np.random.Philox(key=np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64))
        bits = _draw_bytes(stream, self.block) & 1
        signs = torch.from_numpy(bits.astype(np.int8)).to(like) * 2 - 1
        order = np.argsort(stream.random_raw(self.block), kind="stable")
        permutation = torch.from_numpy(order).to(like.device)
        return signs, permutation, self._gaussians(stream, like)

    def _gaussians(self, stream: np.random.Philox, like: Tensor) -> Iterator[tuple[int, Tensor]]:
        levels = _normal_levels().to(like)
        blocks = -(-self.size // self.block)
        for first in range(0, blocks, _CHUNK_BLOCKS):
            count = min(_CHUNK_BLOCKS, blocks - first)
            indices = torch.from_numpy(_draw_bytes(stream, count * self.block)).to(like.device)
            diagonal = levels[indices.int()].reshape(count, self.block)
            yield first * self.block, diagonal


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, theta: Tensor, fastfood: Fastfood) -> Tensor:
        ctx.fastfood = fastfood
        with torch.autocast(theta.device.type, enabled=False):
            return fastfood.project(theta)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Transpose.apply(grad, ctx.fastfood), None  # type: ignore[no-untyped-call]


class _Transpose(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, fastfood: Fastfood) -> Tensor:
        ctx.fastfood = fastfood
        with torch.autocast(y.device.type, enabled=False):
            return fastfood.transpose(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Project.apply(grad, ctx.fastfood), None  # type: ignore[no-untyped-call]


def hadamard(x: Tensor) -> Tensor:
    """H x over the last dimension (a power of two), H unnormalised: entries +1 and -1.

    H of 2^m is the Kronecker product of smaller ones, so it is applied digit by digit."""
    length = x.shape[-1]
    bits = length.bit_length() - 1
    if length != 1 << bits:
        raise SettingError(f"a Hadamard transform needs a power of two, got {length}")
    shape = x.shape
    done = 0
    while done < bits:
        step = min(_HADAMARD_BITS, bits - done)
        done += step
        matrix = _hadamard_matrix(step).to(x)
        if done < bits:
            x = matrix @ x.reshape(-1, 1 << step, length >> done)
        else:
            x = x.reshape(-1, 1 << step) @ matrix
    return x.reshape(shape)


@lru_cache(maxsize=_HADAMARD_BITS + 1)
def _hadamard_matrix(bits: int) -> Tensor:
    matrix = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(bits):
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), matrix)
    return matrix


@lru_cache(maxsize=1)
def _normal_levels() -> Tensor:
    """256 equally likely values with mean 0 and variance 1, at the quantiles of N(0, 1)."""
    normal = NormalDist()
    levels = torch.tensor(
        [normal.inv_cdf((i + 0.5) / 256) for i in range(256)], dtype=torch.float64
    )
    return levels / levels.square().mean().sqrt()


def _draw_bytes(stream: np.random.Philox, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    words: np.ndarray[Any, np.dtype[np.uint64]] = stream.random_raw(-(-count // 8))
    return words.astype("<u8").view(np.uint8)[:count]

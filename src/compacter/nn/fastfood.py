"""The Fastfood projection of Intrinsic-SAID: theta in R^d -> R^D in O(D log d) time.

With L the power of two at or above d, D numbers are ceil(D / L) stacked blocks

    V_k = H G_k P H S / sqrt(L D),        (P theta)[k L : (k+1) L] = V_k theta

H the Walsh-Hadamard matrix, S random signs, P a random permutation, G_k random Gaussian diagonals.
S and P are drawn once for a tensor and G_k anew for every block: given P H S theta the blocks are
independent, and the first transform is paid once. E ||V theta||^2 = ||theta||^2 for every D.

Nothing random is saved. All of it is read from one stream of Philox bytes whose key is a digest
of (seed, tensor name); the stream of that generator is fixed for all platforms and versions.
A Gaussian is one byte, an index into 256 equally likely levels of N(0, 1), scaled to variance 1.
docs/file-format.md fixes these choices: an adapter on disk is only theta, lambda and the seed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from torch import Tensor

from compacter.errors import SettingError

Blocks = np.ndarray[Any, np.dtype[np.int64]]

_CHUNK = 1 << 17  # numbers transformed at a time: 512 KB in float32, which stay in cache
_HADAMARD_BITS = 5  # a transform of 2^m numbers is ceil(m / 5) products, at most 32 wide
_PHILOX_STEP = 32  # bytes that one step of the generator's counter gives


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

    @cached_property
    def permutation(self) -> np.ndarray[Any, np.dtype[np.uint16 | np.uint32]]:
        """Kept once it is known, in two bytes (four above 65,536) for each of L numbers: sorting
        takes as long as projecting a small tensor."""
        stream = self.stream()
        _draw_words(stream, self.block)  # the signs come first
        order = stable_order(stream.random_raw(self.block))
        return order.astype(np.uint16 if self.block <= 1 << 16 else np.uint32)

    def stream(self) -> np.random.Philox:
        digest = hashlib.sha256(f"{self.seed}/{self.name}".encode()).digest()
        key = np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64)
        return np.random.Philox(key=key)

    def __call__(self, theta: Tensor) -> Tensor:
        """P theta, differentiable in theta (any number of times: P is linear)."""
        result: Tensor = _Project.apply(theta, self)  # type: ignore[no-untyped-call]
        return result

    def project(self, theta: Tensor, blocks: Blocks | None = None) -> Tensor:
        """P theta. With `blocks` only those of its blocks, one after the other; of these the last
        is not cut off."""
        draw = _Draw(self, theta)
        mixed = draw.mix(theta)
        out = theta.new_empty(self.size if blocks is None else len(blocks) * self.block)
        for start, diagonal in draw.diagonals(blocks):
            rows = hadamard(diagonal * mixed).view(-1)
            out[start : start + rows.numel()] = rows[: out.numel() - start]
        return out

    def transpose(self, y: Tensor, blocks: Blocks | None = None) -> Tensor:
        """P^T y: the same products in reverse order (H and the diagonals are symmetric). With
        `blocks`, y is these blocks of a vector that is zero elsewhere."""
        draw = _Draw(self, y)
        total = draw.zeros()
        for start, diagonal in draw.diagonals(blocks):
            total += draw.collect(diagonal, y, start)
        return draw.unmix(total).to(y.dtype)

    def add(self, weight: Tensor, theta: Tensor) -> Tensor:
        """weight + P theta."""
        moved, _ = self._add(weight, theta, None)
        return moved

    def add_and_transpose(self, weight: Tensor, theta: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """weight + P theta, and P^T y, for which the random numbers are drawn once."""
        moved, gathered = self._add(weight, theta, y.reshape(-1))
        assert gathered is not None
        return moved, gathered

    def _add(self, weight: Tensor, theta: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor | None]:
        draw = _Draw(self, theta)
        mixed, total = draw.mix(theta), draw.zeros()
        moved = weight.new_empty(weight.shape)
        old, new = weight.reshape(-1), moved.view(-1)
        for start, diagonal in draw.diagonals():
            part = slice(start, min(start + diagonal.numel(), self.size))
            rows = hadamard(diagonal * mixed).view(-1)[: part.stop - start]
            if rows.dtype == old.dtype:
                torch.add(old[part], rows, out=new[part])
            else:
                new[part] = old[part] + rows.to(old.dtype)
            if y is not None:
                total += draw.collect(diagonal, y, start)
        return moved, None if y is None else draw.unmix(total)

    def blocks_of(self, positions: Tensor) -> Blocks:
        """The blocks of P theta in which these positions are, in order; all of them where the
        generator could not jump to their Gaussians."""
        if self.block % _PHILOX_STEP:
            return np.arange(-(-self.size // self.block))
        found: Blocks = torch.unique(positions // self.block).cpu().numpy()
        return found


class _Draw:
    """The random numbers of one projection, read from its stream as they are needed, on the device
    of a tensor and in its precision (at least float32)."""

    def __init__(self, fastfood: Fastfood, like: Tensor) -> None:
        self.fastfood = fastfood
        self.device = like.device
        self.dtype = torch.promote_types(like.dtype, torch.float32)
        self.stream = fastfood.stream()
        bits = torch.from_numpy((_draw_bytes(self.stream, fastfood.block) & 1).astype(np.int8))
        self.signs = bits.to(self.device, self.dtype) * 2 - 1
        self._skip(8 * fastfood.block)  # the permutation, which is known
        self.permutation = torch.from_numpy(fastfood.permutation).to(self.device).int()

    def zeros(self) -> Tensor:
        return torch.zeros(self.fastfood.block, device=self.device, dtype=self.dtype)

    def mix(self, theta: Tensor) -> Tensor:
        """P H S theta / sqrt(L D)"""
        padded = self.zeros()
        padded[: self.fastfood.dim] = theta
        mixed = hadamard(padded * self.signs).index_select(0, self.permutation)
        return mixed * self.fastfood.scale

    def unmix(self, total: Tensor) -> Tensor:
        """The transpose of `mix`."""
        back = torch.empty_like(total)
        back.index_copy_(0, self.permutation.long(), total * self.fastfood.scale)
        return (hadamard(back) * self.signs)[: self.fastfood.dim]

    def collect(self, diagonal: Tensor, y: Tensor, start: int) -> Tensor:
        """sum_k G_k H y_k over the blocks y_k of y from `start` on."""
        part = y[start : start + diagonal.numel()]
        if part.numel() < diagonal.numel() or part.dtype != self.dtype:
            rows = diagonal.new_zeros(diagonal.numel())
            rows[: part.numel()] = part
            part = rows
        return (diagonal * hadamard(part.reshape(diagonal.shape))).sum(0)

    def diagonals(self, blocks: Blocks | None = None) -> Iterator[tuple[int, Tensor]]:
        """G_k of some blocks at a time, and where these begin among all that were asked for."""
        block = self.fastfood.block
        if blocks is None:
            blocks = np.arange(-(-self.fastfood.size // block))
        pairs = _level_pairs(self.dtype).to(self.device)
        at_once = max(1, _CHUNK // block)
        drawn = 0
        for first in range(0, len(blocks), at_once):
            some = blocks[first : first + at_once]
            indices: list[np.ndarray[Any, np.dtype[np.uint16]]] = []
            for run in np.split(some, np.flatnonzero(np.diff(some) > 1) + 1):
                if run[0] > drawn:
                    self._skip(int(run[0] - drawn) * block)
                drawn = int(run[-1]) + 1
                indices.append(_draw_words(self.stream, len(run) * block).view("<u2"))
            joined = torch.from_numpy(indices[0] if len(indices) == 1 else np.concatenate(indices))
            levels = pairs.index_select(0, joined.to(self.device).int())
            numbers = torch.view_as_real(levels).view(-1)[: len(some) * block]
            yield first * block, numbers.view(-1, block)

    def _skip(self, count: int) -> None:
        """Leave out the next bytes of the stream, without drawing them where it can jump."""
        if self.fastfood.block % _PHILOX_STEP == 0:
            self.stream.advance(count // _PHILOX_STEP)
        else:
            self.stream.random_raw(count // 8)


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
    products = -(-bits // _HADAMARD_BITS)
    done = 0
    for index in range(products):
        step = (bits - done) // (products - index)
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


@lru_cache(maxsize=2)
def _level_pairs(dtype: torch.dtype) -> Tensor:
    """The Gaussians of two bytes as one complex number: half the look-ups for all.

    They are 256 equally likely values with mean 0 and variance 1, at the quantiles of N(0, 1)."""
    normal = NormalDist()
    levels = torch.tensor(
        [normal.inv_cdf((i + 0.5) / 256) for i in range(256)], dtype=torch.float64
    )
    levels = (levels / levels.square().mean().sqrt()).to(dtype)
    return torch.complex(levels.repeat(256), levels.repeat_interleave(256))


def stable_order(keys: np.ndarray[Any, np.dtype[np.uint64]]) -> Blocks:
    """argsort(keys, stable) of 2^m random numbers: they are sorted with their indices in place of
    their lowest m bits, which is several times as fast where the others tell them apart."""
    low = np.uint64(len(keys) - 1)
    ordered = np.sort((keys & ~low) | np.arange(len(keys), dtype=np.uint64))
    high = ordered & ~low
    if (high[1:] == high[:-1]).any():
        return np.argsort(keys, kind="stable")
    return (ordered & low).astype(np.int64)


def _draw_words(stream: np.random.Philox, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The next `count` bytes of the stream, rounded up to whole outputs."""
    words: np.ndarray[Any, np.dtype[np.uint64]] = stream.random_raw(-(-count // 8))
    return words.astype("<u8")


def _draw_bytes(stream: np.random.Philox, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return _draw_words(stream, count).view(np.uint8)[:count]

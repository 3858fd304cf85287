"""The Fastfood projection of Intrinsic-SAID: theta in R^d -> P theta in R^D, in O(D log d) time.

With L the power of two at or above d, P theta consists of ceil(D / L) blocks of L numbers,

    V_k theta = H G_k P H S theta / sqrt(L D)        (k = 0, 1, ...; the last block is cut off)

where H is the Walsh-Hadamard matrix, S are random signs, P is a random permutation, and G_k are
random Gaussian diagonals. A tensor has one S, one P, and a G_k for each block. So P H S theta is
computed once, and the blocks follow from it one by one. E ||P theta||^2 = ||theta||^2 for every D.

The random numbers are not saved. They are read from one stream of Philox bytes whose key is a
digest of (seed, tensor name); this stream is the same on all platforms and versions of numpy. A
Gaussian takes one byte: it is one of 256 equally likely levels of N(0, 1), scaled to variance 1.
docs/file-format.md fixes all of this: a saved adapter holds only theta, lambda and the seed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, split
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from compacter.errors import SettingError

_CHUNK = 1 << 18  # numbers computed at a time: 1 MB in float32, which stays in the cache
_HADAMARD = np.array([[(-1.0) ** (i & j).bit_count() for j in range(16)] for i in range(16)])
_LEVELS = np.array([NormalDist().inv_cdf((byte + 0.5) / 256) for byte in range(256)])
_LEVELS /= np.sqrt(np.square(_LEVELS).mean())


class Random(NamedTuple):
    """The random numbers of a projection, in as few bytes as possible."""

    signs: Tensor
    permutation: Tensor
    levels: Tensor  # the Gaussians, L for each block

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self)


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
    def blocks(self) -> int:
        """How many there are."""
        return -(-self.size // self.block)

    @property
    def blocks_at_once(self) -> int:
        """How many are computed at a time."""
        return max(1, _CHUNK // self.block)

    @cached_property
    def random(self) -> Random:
        """Drawn once and kept: for most tensors, drawing takes longer than projecting."""
        digest = hashlib.sha256(f"{self.seed}/{self.name}".encode()).digest()
        key = np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64)
        stream, block = np.random.Philox(key=key), self.block
        signs = (_draw_bytes(stream, block) & 1).astype(np.int8) * np.int8(2) - np.int8(1)
        order = np.argsort(stream.random_raw(block), kind="stable")
        permutation = order.astype(np.uint16 if block <= 1 << 16 else np.uint32)
        levels = _draw_bytes(stream, self.blocks * block).reshape(-1, block)
        return Random(*map(torch.from_numpy, (signs, permutation, levels)))

    def __call__(self, theta: Tensor) -> Tensor:
        """P theta, differentiable in theta."""
        result: Tensor = _Project.apply(theta, self)  # type: ignore[no-untyped-call]
        return result

    def project(
        self, theta: Tensor, dtype: torch.dtype | None = None, blocks: range | None = None
    ) -> Tensor:
        """P theta or some blocks of it, without gradient, in the given dtype (default: theta's)."""
        blocks = blocks or range(self.blocks)
        size = min(blocks.stop * self.block, self.size) - blocks.start * self.block
        out = theta.new_empty(size, dtype=dtype)
        parts = split(out, self.block * self.blocks_at_once)
        for part, made in zip(parts, self.spread(theta, torch.tensor(blocks)), strict=True):
            part.copy_(made[: len(part)])
        return out

    def transpose(self, y: Tensor, blocks: range | None = None) -> Tensor:
        """P^T y, where y may be some blocks (zero elsewhere), without gradient, in at least single
        precision."""
        parts = split(y, self.block * self.blocks_at_once)
        padded = (pad(part, (0, -len(part) % self.block)) for part in parts)
        return self.collect(padded, torch.tensor(blocks or range(self.blocks)), y)

    @torch.no_grad()
    def spread(self, theta: Tensor, blocks: Tensor) -> Iterator[Tensor]:
        """V_k theta for these blocks, `blocks_at_once` of them in a vector."""
        precision = torch.promote_types(theta.dtype, torch.float32)
        padded = pad(theta.to(precision), (0, self.block - self.dim))
        signs, permutation = self._signs_and_permutation(padded)
        mixed = hadamard(padded * signs).index_select(0, permutation)
        for gaussians in self._gaussians(blocks, mixed):
            yield hadamard(gaussians * mixed).view(-1)

    @torch.no_grad()
    def collect(self, parts: Iterable[Tensor], blocks: Tensor, like: Tensor) -> Tensor:
        """The sum of V_k^T y_k over these blocks, with the y_k in vectors as `spread` makes them.

        H and the diagonals are symmetric, so these are the same products in reverse order."""
        total = like.new_zeros(self.block, dtype=torch.promote_types(like.dtype, torch.float32))
        for part, gaussians in zip(parts, self._gaussians(blocks, total), strict=True):
            total += (hadamard(part.to(total.dtype).view_as(gaussians)) * gaussians).sum(0)
        signs, permutation = self._signs_and_permutation(total)
        padded = torch.empty_like(total).index_copy_(0, permutation, total)
        return (hadamard(padded) * signs)[: self.dim]

    def _signs_and_permutation(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """S / sqrt(L D) and P."""
        signs = self.random.signs.to(like) / math.sqrt(self.block * self.size)
        return signs, self.random.permutation.to(like.device, torch.int64)

    def _gaussians(self, blocks: Tensor, like: Tensor) -> Iterator[Tensor]:
        """G_k for these blocks, `blocks_at_once` of them in a matrix."""
        values = torch.from_numpy(_LEVELS).to(like)
        for some in split(blocks, self.blocks_at_once):
            levels = self.random.levels.index_select(0, some).to(like.device, torch.int32)
            yield values.index_select(0, levels.view(-1)).view(levels.shape)


class FastfoodRows:
    """Some rows of P theta, read as a matrix of a given width. The rows are in ascending order.

    Only the blocks that hold these rows are computed. A row may lie in several blocks, so rows and
    blocks are both cut into pieces, as long as possible, and pieces are copied."""

    def __init__(self, fastfood: Fastfood, rows: Tensor, width: int) -> None:
        self.fastfood, self.shape = fastfood, (len(rows), width)
        self.piece = math.gcd(width, fastfood.block)
        per_row, self.per_block = width // self.piece, fastfood.block // self.piece
        pieces = (rows[:, None] * per_row + torch.arange(per_row, device=rows.device)).view(-1)
        blocks, rank = torch.unique_consecutive(pieces // self.per_block, return_inverse=True)
        self.blocks = blocks.cpu()
        # for each vector that Fastfood.spread makes: how many of our pieces are in it, and where
        self.counts = torch.bincount(rank // fastfood.blocks_at_once, minlength=1).tolist()
        places = rank % fastfood.blocks_at_once * self.per_block + pieces % self.per_block
        self.places = split(places, self.counts)

    def __call__(self, theta: Tensor) -> Tensor:
        """The rows, differentiable in theta."""
        result: Tensor = _Project.apply(theta, self)  # type: ignore[no-untyped-call]
        return result

    def project(self, theta: Tensor) -> Tensor:
        """The rows, without gradient."""
        out = theta.new_empty(self.shape)
        parts = split(out.view(-1, self.piece), self.counts)
        made = self.fastfood.spread(theta, self.blocks)
        for part, places, numbers in zip(parts, self.places, made, strict=True):
            part.copy_(numbers.view(-1, self.piece).index_select(0, places))
        return out

    def transpose(self, y: Tensor) -> Tensor:
        """P^T of the matrix that has y in these rows and zeros elsewhere, without gradient."""
        parts = split(y.reshape(-1, self.piece), self.counts)
        blocks = split(self.blocks, self.fastfood.blocks_at_once)
        with_zeros = (
            y.new_zeros(len(some) * self.per_block, self.piece).index_copy_(0, places, part)
            for part, places, some in zip(parts, self.places, blocks, strict=True)
        )
        return self.fastfood.collect(with_zeros, self.blocks, y)


def hadamard(x: Tensor) -> Tensor:
    """H x over the last dimension (a power of two), H unnormalised: entries +1 and -1.

    H is a Kronecker product of matrices of at most 16 x 16; x is multiplied by one after another.
    Autocast is off because it would make half-precision products of these."""
    length = x.shape[-1]
    if length.bit_count() != 1:
        raise SettingError(f"a Hadamard transform needs a power of two, got {length}")
    matrix = torch.from_numpy(_HADAMARD).to(x)
    done = min(16, length)
    with torch.autocast(x.device.type, enabled=False):
        y = x.reshape(-1, done) @ matrix[:done, :done]
        while done < length:
            n = min(16, length // done)
            y = matrix[:n, :n] @ y.view(-1, n, done)
            done *= n
    return y.view(x.shape)


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, theta: Tensor, projection: Fastfood | FastfoodRows) -> Tensor:
        ctx.projection = projection
        return projection.project(theta)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.projection.transpose(grad), None


def _draw_bytes(stream: np.random.Philox, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The next `count` bytes of the stream, which moves on by whole 64-bit outputs."""
    words = stream.random_raw(-(-count // 8))
    return words.astype("<u8", copy=False).view(np.uint8)[:count]

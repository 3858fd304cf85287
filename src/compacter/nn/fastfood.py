"""The Fastfood projection of Intrinsic-SAID: theta in R^d -> R^D in O(D log d) time.

With L the power of two at or above d, D numbers are ceil(D / L) stacked blocks

    V_k = H G_k P H S / sqrt(L D),        (P theta)[k L : (k+1) L] = V_k theta

H the Walsh-Hadamard matrix, S random signs, P a random permutation, G_k random Gaussian diagonals.
S and P are drawn once for a tensor and G_k anew for every block: given P H S theta the blocks are
independent, and the first transform is paid once. E ||V theta||^2 = ||theta||^2 for every D.

Nothing random is saved to disk. All of it is read from one stream of Philox bytes whose key is a
digest of (seed, tensor name); the stream of that generator is fixed for all platforms and versions.
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
from threading import local
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from compacter.errors import SettingError

Blocks = np.ndarray[Any, np.dtype[np.int64]]

_CHUNK = 1 << 19  # numbers transformed at a time: 2 MB in float32, which stays in cache
_HADAMARD_BITS = 5  # a transform of 2^m numbers is ceil(m / 5) products, at most 32 wide


class Random(NamedTuple):
    """The random numbers of a projection, as small as they can be used."""

    signs: np.ndarray[Any, np.dtype[np.int8]]
    permutation: np.ndarray[Any, np.dtype[np.uint16 | np.uint32]]
    levels: np.ndarray[Any, np.dtype[np.uint8]]
    """The Gaussians of all blocks."""

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self)


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
        """How many there are; the last may be cut off."""
        return -(-self.size // self.block)

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.block * self.size)

    @cached_property
    def random(self) -> Random:
        """Drawn once and kept: drawing takes as long as a third of a projection."""
        digest = hashlib.sha256(f"{self.seed}/{self.name}".encode()).digest()
        key = np.frombuffer(digest[:16], dtype="<u8").astype(np.uint64)
        stream, block = np.random.Philox(key=key), self.block
        bits = _draw_bytes(stream, block) & 1
        order = stable_order(stream.random_raw(block))
        levels = _draw_bytes(stream, self.blocks * block)
        signs = bits.astype(np.int8) * np.int8(2) - np.int8(1)
        return Random(signs, order.astype(np.uint16 if block <= 1 << 16 else np.uint32), levels)

    def __call__(self, theta: Tensor) -> Tensor:
        """P theta, differentiable in theta (any number of times: P is linear)."""
        result: Tensor = _Project.apply(theta, self)  # type: ignore[no-untyped-call]
        return result

    def project(self, theta: Tensor) -> Tensor:
        """P theta."""
        draw = _Draw(self, theta)
        mixed = draw.mix(theta)
        out = theta.new_empty(self.size)
        for start, diagonal in draw.diagonals():
            rows = draw.spread(diagonal, mixed)
            out[start : start + rows.numel()] = rows[: self.size - start]
        return out

    def transpose(self, y: Tensor) -> Tensor:
        """P^T y: the same products in reverse order (H and the diagonals are symmetric)."""
        draw = _Draw(self, y)
        total = draw.zeros()
        for start, diagonal in draw.diagonals():
            total += draw.collect(diagonal, y[start : start + diagonal.numel()])
        return draw.unmix(total).to(y.dtype)

    def project_rows(self, theta: Tensor, rows: Tensor, width: int) -> Tensor:
        """P theta as a matrix of that width: these rows of it, which are in order. Only the blocks
        that hold them are made."""
        draw = _Draw(self, theta)
        mixed = draw.mix(theta)
        out = mixed.new_empty(len(rows), width)
        for some, places, diagonal in self._rows(draw, rows, width):
            made = draw.spread(diagonal, mixed)
            whole = made[: made.numel() // width * width].view(-1, width)
            torch.index_select(whole, 0, places, out=out[some])
        return out.to(theta.dtype)

    def transpose_rows(self, values: Tensor, rows: Tensor) -> Tensor:
        """P^T y for the y that, as a matrix as wide as the values, has them in these rows, which
        are in order, and is zero elsewhere."""
        draw, width = _Draw(self, values), values.shape[1]
        total = draw.zeros()
        for some, places, diagonal in self._rows(draw, rows, width):
            y = total.new_zeros(diagonal.numel() // width, width)
            y.index_copy_(0, places, values[some].to(y.dtype))
            total += draw.collect(diagonal, y.view(-1))
        return draw.unmix(total).to(values.dtype)

    def _rows(
        self, draw: _Draw, rows: Tensor, width: int
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Which of the rows are in some blocks, where in these, and the blocks' diagonals. Rows and
        blocks are taken from where they begin together to where they do so again."""
        together = _together(width, self.block)
        rows_each, blocks_each = together // width, together // self.block
        spans, rank = torch.unique_consecutive(rows // rows_each, return_inverse=True)
        places = rank * rows_each + rows % rows_each
        blocks = (spans.cpu()[:, None] * blocks_each + torch.arange(blocks_each)).view(-1)
        first = 0
        for start, diagonal in draw.diagonals(blocks[blocks < self.blocks], unit=width):
            start //= width
            after = int(torch.searchsorted(places, start + diagonal.numel() // width))
            some = slice(first, after)
            yield some, places[some] - start, diagonal
            first = after

    def mix(self, theta: Tensor) -> Tensor:
        """P H S theta / sqrt(L D): the L numbers that all blocks are made of."""
        return _Draw(self, theta).mix(theta)

    def add(self, weight: Tensor, mixed: Tensor) -> Tensor:
        """weight + P theta, given theta as `mix` makes it."""
        moved, _ = self._add(weight, mixed, None)
        return moved

    def add_and_transpose(self, weight: Tensor, mixed: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """weight + P theta, and P^T y, for which the random numbers are drawn once."""
        moved, gathered = self._add(weight, mixed, y.reshape(-1))
        assert gathered is not None
        return moved, gathered

    def _add(self, weight: Tensor, mixed: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor | None]:
        draw = _Draw(self, mixed)
        total = draw.zeros()
        moved = weight.new_empty(weight.shape)
        old, new = weight.reshape(-1), moved.view(-1)
        for start, diagonal in draw.diagonals():
            part = slice(start, min(start + diagonal.numel(), self.size))
            rows = draw.spread(diagonal, mixed)[: part.stop - start]
            if rows.dtype == old.dtype:
                torch.add(old[part], rows, out=new[part])
            else:
                new[part] = old[part] + rows.to(old.dtype)
            if y is not None:
                total += draw.collect(diagonal, y[part])
        return moved, None if y is None else draw.unmix(total)


class Walk:
    """weight + P theta, some rows of the weight at a time, and P^T y for a y of the same shape
    whose rows are handed in on the way: nothing of the weight's size is made.

        walk = Walk(fastfood, weight, fastfood.mix(theta))
        for rows, made in walk:
            walk.collect(y[rows])
        walk.transposed()"""

    def __init__(self, fastfood: Fastfood, weight: Tensor, mixed: Tensor) -> None:
        self.weight = weight
        self._draw = _Draw(fastfood, mixed)
        self._mixed = mixed
        self._total = self._draw.zeros()

    @staticmethod
    def is_possible(fastfood: Fastfood, weight: Tensor) -> bool:
        """Whether rows and blocks begin together often enough."""
        return _together(weight.shape[1], fastfood.block) <= 4 * _CHUNK

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        count, width = self.weight.shape
        for start, diagonal in self._draw.diagonals(unit=width):
            self._diagonal = diagonal
            rows = slice(start // width, min((start + diagonal.numel()) // width, count))
            weight = self.weight[rows]
            made = self._draw.spread(diagonal, self._mixed)[: weight.numel()]
            yield rows, weight + made.view_as(weight).to(weight.dtype)

    def collect(self, y: Tensor) -> None:
        """Those rows of y that were given last."""
        self._total += self._draw.collect(self._diagonal, y.reshape(-1))

    def transposed(self) -> Tensor:
        return self._draw.unmix(self._total)


def _together(width: int, block: int) -> int:
    """The least common multiple: how far it is until a row and a block begin together again."""
    return math.lcm(width, block)


class _Rooms(local):
    """Where a thread works, whichever tensor it projects: new memory would not be in cache."""

    def __init__(self) -> None:
        self._rooms: dict[tuple[str, torch.device, torch.dtype], Tensor] = {}

    def get(
        self, use: str, shape: tuple[int, ...], device: torch.device, dtype: torch.dtype
    ) -> Tensor:
        """Memory for a tensor, until the next call for the same use."""
        count = math.prod(shape)
        if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
            return torch.empty(shape, device=device, dtype=dtype)
        room = self._rooms.get((use, device, dtype))
        if room is None or room.numel() < count:
            with torch.inference_mode(False):
                room = self._rooms[use, device, dtype] = torch.empty(
                    count, device=device, dtype=dtype
                )
        return room[:count].view(shape)


_rooms = _Rooms()


class _Draw:
    """The random numbers of one projection, on the device of a tensor and in its precision (at
    least float32)."""

    def __init__(self, fastfood: Fastfood, like: Tensor) -> None:
        self.fastfood = fastfood
        self.device = like.device
        self.dtype = torch.promote_types(like.dtype, torch.float32)

    @cached_property
    def signs(self) -> Tensor:
        return torch.from_numpy(self.fastfood.random.signs).to(self.device, self.dtype)

    @cached_property
    def permutation(self) -> Tensor:
        return torch.from_numpy(self.fastfood.random.permutation).to(self.device).int()

    def zeros(self) -> Tensor:
        return torch.zeros(self.fastfood.block, device=self.device, dtype=self.dtype)

    def mix(self, theta: Tensor) -> Tensor:
        """See `Fastfood.mix`."""
        padded = self.zeros()
        padded[: self.fastfood.dim] = theta.detach()
        mixed = hadamard(padded * self.signs).index_select(0, self.permutation)
        return mixed * self.fastfood.scale

    def unmix(self, total: Tensor) -> Tensor:
        """The transpose of `mix`."""
        back = torch.empty_like(total)
        back.index_copy_(0, self.permutation.long(), total * self.fastfood.scale)
        return (hadamard(back) * self.signs)[: self.fastfood.dim]

    def spread(self, diagonal: Tensor, mixed: Tensor) -> Tensor:
        """H G_k u of some blocks. Until the next call of this or of `collect`."""
        first, second = self._room(diagonal)
        torch.mul(diagonal, mixed, out=first)
        return hadamard(first, (second, first)).view(-1)

    def collect(self, diagonal: Tensor, y: Tensor) -> Tensor:
        """sum_k G_k H y_k over the blocks y_k of y, of which the last may be cut off."""
        first, second = self._room(diagonal)
        blocks = y.detach()
        if y.numel() < diagonal.numel() or y.dtype is not self.dtype:
            blocks = first.view(-1)
            blocks[: y.numel()] = y.detach()
            blocks[y.numel() :] = 0
        transformed = hadamard(blocks.view_as(diagonal), (second, first))
        return torch.mul(transformed, diagonal, out=second).sum(0)

    def _room(self, diagonal: Tensor) -> Tensor:
        """Two places to work in."""
        return _rooms.get("blocks", (2, *diagonal.shape), self.device, self.dtype)

    def diagonals(
        self, blocks: Tensor | None = None, unit: int = 1
    ) -> Iterator[tuple[int, Tensor]]:
        """G_k of some blocks at a time, and where these begin among all that were asked for: at a
        multiple of `unit`. Until the next call."""
        block = self.fastfood.block
        levels = torch.from_numpy(self.fastfood.random.levels).view(-1, block)
        count = len(levels) if blocks is None else len(blocks)
        least = _together(unit, block) // block
        at_once = least * max(1, _CHUNK // (least * block))
        for first in range(0, count, at_once):
            some = slice(first, first + at_once)
            chosen = levels[some] if blocks is None else levels[blocks[some]]
            yield first * block, self._gaussians(chosen.view(-1)).view(-1, block)

    def _gaussians(self, levels: Tensor) -> Tensor:
        """Two at a time."""
        count = levels.numel()
        if count % 2 or levels.storage_offset() % 2:  # only where L = 1
            levels = torch.cat([levels, levels.new_zeros(count % 2)])
        index = levels.view(torch.uint16).to(self.device).int()
        pairs = _level_pairs(self.dtype).to(self.device)
        found = _rooms.get("gaussians", index.shape, self.device, pairs.dtype)
        torch.index_select(pairs, 0, index, out=found)
        return found.view(self.dtype)[:count]


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, theta: Tensor, fastfood: Fastfood) -> Tensor:
        ctx.fastfood = fastfood
        return fastfood.project(theta)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Transpose.apply(grad, ctx.fastfood), None  # type: ignore[no-untyped-call]


class _Transpose(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, fastfood: Fastfood) -> Tensor:
        ctx.fastfood = fastfood
        return fastfood.transpose(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Project.apply(grad, ctx.fastfood), None  # type: ignore[no-untyped-call]


def hadamard(x: Tensor, places: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """H x over the last dimension (a power of two), H unnormalised: entries +1 and -1.

    H of 2^m is the Kronecker product of smaller ones, so it is applied digit by digit, the results
    going to two places by turns if these are given; x may be the second. Autocast would make
    half-precision products of it."""
    if torch.is_autocast_enabled(x.device.type):
        with torch.autocast(x.device.type, enabled=False):
            return hadamard(x, places)
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
        matrix = _hadamard_matrix(step, x.dtype, x.device)
        digits = (-1, 1 << step, length >> done) if done < bits else (-1, 1 << step)
        out = None if places is None else places[index % 2].view(digits)
        x = x.reshape(digits)
        factors = (matrix, x) if done < bits else (x, matrix)
        x = torch.matmul(*factors, out=out)
    return x.reshape(shape)


@lru_cache(maxsize=32)
def _hadamard_matrix(bits: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    matrix = torch.ones(1, 1)
    for _ in range(bits):
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
    return matrix.to(device, dtype)


@lru_cache(maxsize=2)
def _level_pairs(dtype: torch.dtype) -> Tensor:
    """The Gaussians of two bytes in one number: half the look-ups for all. Two of single precision
    are held in one of double precision, which is looked up faster than a complex one.

    They are 256 equally likely values with mean 0 and variance 1, at the quantiles of N(0, 1)."""
    normal = NormalDist()
    levels = torch.tensor(
        [normal.inv_cdf((i + 0.5) / 256) for i in range(256)], dtype=torch.float64
    )
    levels = (levels / levels.square().mean().sqrt()).to(dtype)
    pairs = torch.complex(levels.repeat(256), levels.repeat_interleave(256))
    return pairs.view(torch.float64) if dtype is torch.float32 else pairs


def stable_order(keys: np.ndarray[Any, np.dtype[np.uint64]]) -> Blocks:
    """argsort(keys, stable) of 2^m random numbers: they are sorted with their indices in place of
    their lowest m bits, which is several times as fast where the others tell them apart."""
    low = np.uint64(len(keys) - 1)
    ordered = np.sort((keys & ~low) | np.arange(len(keys), dtype=np.uint64))
    high = ordered & ~low
    if (high[1:] == high[:-1]).any():
        return np.argsort(keys, kind="stable")
    return (ordered & low).astype(np.int64)


def _draw_bytes(stream: np.random.Philox, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The next `count` bytes of the stream, of which it moves on by whole outputs."""
    words = stream.random_raw(-(-count // 8))
    return words.astype("<u8", copy=False).view(np.uint8)[:count]

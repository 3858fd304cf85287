"""The four kinds of projection y = x W + b that an adapter can be made of.

Every projection keeps the paper's orientation, W in R^{in x out}, and its letters:

    dense      W                                        in * out numbers
    low-rank   W = s t                                  r (in + out)
    PHM        W = sum_i A_i (x) B_i            (eq. 4)   in * out / n + n^3
    LPHM       W = sum_i A_i (x) (s_i t_i^T)    (eq. 5)   r (in + out), + n^3 if A is not shared

The parameters of P projections of one shape are stacked: P comes first in every tensor. One
projection is a stack of one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from compacter.errors import SettingError

ProjectionKind = Literal["dense", "low-rank", "phm", "lphm"]

DENSE_STD = 0.01
OWN_A_STD = 0.01
SHARED_A_STD = 1e-4

Factors = Mapping[str, Tensor]
"""The stacked parameters that W is made of: W, s and t, or B; and A where it is not shared."""


def slow_weights(n: int, std: float = SHARED_A_STD, count: int | None = None) -> Tensor:
    """A: the n matrices A_i in R^{n x n}, drawn from N(0, std^2); or `count` sets of them."""
    _require_positive("n", n)
    return torch.randn(*([] if count is None else [count]), n, n, n) * std


def kronecker_sums(A: Tensor, B: Tensor) -> Tensor:
    """sum_i A_i (x) B_i for A in R^{(P x) n x n x n} and B in R^{P x n x p x q}.

    Entry (a p', b q') of a sum is the inner product over i of A_i[a, b] and B_i[p', q'], so the n
    Kronecker products are never made."""
    (P, n, p, q), (a, b) = B.shape, A.shape[-2:]
    product = A.flatten(-2).mT @ B.reshape(P, n, p * q)
    return product.reshape(P, a, b, p, q).transpose(2, 3).reshape(P, a * p, b * q)


def low_rank_kronecker_sums(A: Tensor, s: Tensor, t: Tensor) -> Tensor:
    """sum_i A_i (x) s_i t_i for s in R^{P x n x p x r} and t in R^{P x n x r x q}.

    A is multiplied into the shorter factor, which keeps what is made in between small. The rest is
    one product per matrix."""
    (P, n, p, r), q = s.shape, t.shape[-1]
    if p >= q:
        short = torch.einsum("Piab,Pirq->Pbqair", A.expand(P, n, n, n), t)
        product = short.reshape(P, n * q * n, n * r) @ s.mT.reshape(P, n * r, p)
        return product.reshape(P, n * q, n * p).mT
    short = torch.einsum("Piab,Pipr->Papbir", A.expand(P, n, n, n), s)
    product = short.reshape(P, n * p * n, n * r) @ t.reshape(P, n * r, q)
    return product.reshape(P, n * p, n * q)


@dataclass(frozen=True)
class Projection:
    """What a stack of projections has in common.

    Args:
        kind: dense, low-rank, phm or lphm.
        inputs: width of x.
        outputs: width of y.
        n: number of Kronecker products (phm and lphm).
        rank: rank r of s t (low-rank and lphm).
        shared_A: A is given to every call instead of being one of the factors (phm and lphm).
        bias: whether there is a b.
        A_std: standard deviation of A at the start, where it is not shared.
    """

    kind: ProjectionKind
    inputs: int
    outputs: int
    n: int = 4
    rank: int = 1
    shared_A: bool = True
    bias: bool = True
    A_std: float = field(default=OWN_A_STD, compare=False)

    def __post_init__(self) -> None:
        _require_positive("inputs", self.inputs)
        _require_positive("outputs", self.outputs)
        _require_positive("rank", self.rank)
        if self.is_hypercomplex:
            require_divisible(self.n, inputs=self.inputs, outputs=self.outputs)

    @property
    def is_hypercomplex(self) -> bool:
        return self.kind in ("phm", "lphm")

    @property
    def is_factored(self) -> bool:
        """W is the product of two factors, so x W can be computed without W."""
        return self.kind in ("low-rank", "lphm")

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of the parameters of one projection."""
        k, d, n, r = self.inputs, self.outputs, self.n, self.rank
        factors: dict[str, tuple[int, ...]]
        if self.kind == "dense":
            factors = {"W": (k, d)}
        elif self.kind == "low-rank":
            factors = {"s": (k, r), "t": (r, d)}
        elif self.kind == "phm":
            factors = {"B": (n, k // n, d // n)}
        else:
            factors = {"s": (n, k // n, r), "t": (n, r, d // n)}
        own = {"A": (n, n, n)} if self.is_hypercomplex and not self.shared_A else {}
        return factors | own | ({"bias": (d,)} if self.bias else {})

    def initial(self, count: int) -> dict[str, Tensor]:
        """New parameters of `count` projections: W from N(0, 0.01^2), A from N(0, A_std^2), biases
        zero, all others Glorot-uniform with gain sqrt(2) by their own two widths."""
        found: dict[str, Tensor] = {}
        for name, shape in self.shapes.items():
            if name == "bias":
                found[name] = torch.zeros(count, *shape)
            elif name == "A":
                found[name] = slow_weights(self.n, self.A_std, count)
            elif name == "W":
                found[name] = torch.randn(count, *shape) * DENSE_STD
            else:
                bound = math.sqrt(2.0) * math.sqrt(6.0 / sum(shape[-2:]))
                found[name] = torch.empty(count, *shape).uniform_(-bound, bound)
        return found

    def matrices(self, factors: Factors, A: Tensor | None = None) -> Tensor:
        """W in R^{P x in x out} of all projections; `A` are shared slow weights."""
        if self.kind == "dense":
            return factors["W"]
        if self.kind == "low-rank":
            return factors["s"] @ factors["t"]
        slow = self.slow(factors, A)
        if self.kind == "phm":
            return kronecker_sums(slow, factors["B"])
        return low_rank_kronecker_sums(slow, factors["s"], factors["t"])

    def prepare(self, factors: Factors, A: Tensor | None = None) -> list[Tensor]:
        """What `project` needs of P projections: both factors of each W where it is factored, with
        A in the shorter one, else W."""
        if not self.is_factored:
            return [self.matrices(factors, A)]
        s, t = factors["s"], factors["t"]
        if self.kind == "low-rank":
            return [s, t]
        (P, n, p, r), q = s.shape, t.shape[-1]
        slow = self.slow(factors, A).expand(P, n, n, n)
        if p >= q:  # s_i[p, r] as p x (i r), then A_i[a, b] t_i[r, q] as (a i r) x (b q)
            second = torch.einsum("Piab,Pirq->Pairbq", slow, t)
            return [s.transpose(1, 2).reshape(P, p, n * r), second.reshape(P, n * n * r, n * q)]
        # A_i[a, b] s_i[p, r] as (a p) x (b i r), then t_i[r, q] as (i r) x q
        first = torch.einsum("Piab,Pipr->Papbir", slow, s)
        return [first.reshape(P, n * p, n * n * r), t.reshape(P, n * r, q)]

    def slow(self, factors: Factors, A: Tensor | None) -> Tensor:
        """The slow weights that these projections use."""
        found = A if self.shared_A else factors.get("A")
        if found is None or (A is not None and not self.shared_A):
            wanted = "shared" if self.shared_A else "their own"
            raise SettingError(f"these projections use {wanted} slow weights A; found others")
        return found


def project(x: Tensor, prepared: list[Tensor], bias: Tensor | None) -> Tensor:
    """y = x W + b for x in R^{P x length x in}, each of the P with a W of its own, as
    `Projection.prepare` leaves it, and b in R^{P x out}."""
    P, length, _ = x.shape
    *first, last = prepared
    for factor in first:  # a factor can be shorter than x: it is multiplied with each part of x
        x = torch.bmm(x.reshape(P, -1, factor.shape[1]), factor).reshape(P, -1, last.shape[1])
    if bias is not None and x.shape[1] == length:
        return torch.baddbmm(bias.unsqueeze(1), x, last)
    y = torch.bmm(x, last).reshape(P, length, -1)
    return y if bias is None else y + bias.unsqueeze(1)


def require_divisible(n: int, **widths: int) -> None:
    """n must divide every width; the error names the values of n that would."""
    _require_positive("n", n)
    for name, width in widths.items():
        if width % n:
            common = math.gcd(*widths.values())
            fitting = ", ".join(str(m) for m in range(1, common + 1) if common % m == 0)
            raise SettingError(f"n={n} does not divide {name}={width}; n could be {fitting}")


def _require_positive(setting: str, value: int) -> None:
    if value < 1:
        raise SettingError(f"{setting}={value} is too small; it must be at least 1")

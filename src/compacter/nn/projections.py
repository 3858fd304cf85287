"""The four kinds of projection y = x W + b that an adapter can be made of.

Every projection keeps the paper's orientation, W in R^{in x out}, and its letters:

    dense      W                                        in * out numbers
    low-rank   W = s t                                  r (in + out)
    PHM        W = sum_i A_i (x) B_i            (eq. 4)   in * out / n + n^3
    LPHM       W = sum_i A_i (x) (s_i t_i^T)    (eq. 5)   r (in + out), + n^3 if A is not shared

A projection whose slow weights A are shared does not own them: whoever calls it hands them in,
so that one A can serve all layers without being registered in any of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from compacter.errors import SettingError

ProjectionKind = Literal["dense", "low-rank", "phm", "lphm"]

DENSE_STD = 0.01
OWN_A_STD = 0.01
SHARED_A_STD = 1e-4


def slow_weights(n: int, std: float = SHARED_A_STD) -> nn.Parameter:
    """A: the n matrices A_i in R^{n x n}, drawn from N(0, std^2)."""
    _require_positive("n", n)
    return nn.Parameter(torch.randn(n, n, n) * std)


def kronecker_sum(A: Tensor, B: Tensor) -> Tensor:
    """sum_i A_i (x) B_i for A in R^{n x a x b} and B in R^{n x p x q}, without the n terms:
    entry (a p', b q') of the sum is the inner product over i of A_i[a, b] and B_i[p', q']."""
    (n, a, b), (_, p, q) = A.shape, B.shape
    product = A.reshape(n, a * b).t() @ B.reshape(n, p * q)
    return product.reshape(a, b, p, q).permute(0, 2, 1, 3).reshape(a * p, b * q)


def kronecker_sums(A: Tensor, B: Tensor) -> Tensor:
    """`kronecker_sum` of m sets at once: B in R^{m x n x p x q}, A one set for all or m of them."""
    (m, n, p, q), (a, b) = B.shape, A.shape[-2:]
    product = A.flatten(-2).transpose(-1, -2) @ B.reshape(m, n, p * q)
    return product.reshape(m, a, b, p, q).transpose(2, 3).reshape(m, a * p, b * q)


def low_rank_kronecker_sums(A: Tensor, s: Tensor, t: Tensor) -> Tensor:
    """sum_i A_i (x) s_i t_i of m sets at once, s in R^{m x n x p x r}, t in R^{m x n x r x q}, A as
    in `kronecker_sums`. A goes into t, which had better be the shorter factor, since that makes
    something small; the sum is then one product, which comes out transposed, (b q) x (a p)."""
    (m, n, p, _), q = s.shape, t.shape[-1]
    short, long = _kronecker_factors(A, s, t)
    return (short @ long).reshape(m, n * q, n * p).mT


def low_rank_kronecker_gradients(
    A: Tensor, s: Tensor, t: Tensor, gradient: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of s, t and A, given that of `low_rank_kronecker_sums`."""
    (m, n, p, r), q = s.shape, t.shape[-1]
    short, long = _kronecker_factors(A, s, t)
    transposed = gradient.mT.reshape(m, n * q * n, p)
    of_s = (short.mT @ transposed).reshape(m, n, r, p).mT
    of_short = (transposed @ long.mT).reshape(m, n, q, n, n, r)
    slow, fast = _aligned(A, t)
    of_A = (of_short * fast).sum((2, 5) if A.dim() > 3 else (0, 2, 5)).transpose(-3, -1)
    of_t = (of_short * slow).sum((1, 3)).permute(0, 2, 3, 1)
    return of_s, of_t, of_A


def _kronecker_factors(A: Tensor, s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """A_i[a, b] t_i[r, q] in R^{m x (b q a) x (i r)}, and s_i[p, r] in R^{m x (i r) x p}."""
    (m, n, p, r), q = s.shape, t.shape[-1]
    slow, fast = _aligned(A, t)
    return (slow * fast).reshape(m, n * q * n, n * r), s.mT.reshape(m, n * r, p)


def _aligned(A: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """A_i[a, b] and t_i[r, q] with their dimensions in the order (m) b q a i r."""
    return A.transpose(-3, -1).unsqueeze(-3).unsqueeze(-1), t.permute(0, 3, 1, 2)[:, None, :, None]


class Projection(nn.Module, ABC):
    """y = x W + b, where W is `matrix(A)`."""

    FACTORS: ClassVar[tuple[str, ...]]
    """The parameters that W is made of, without slow weights."""
    FACTORED: ClassVar[bool] = False
    """Whether W is made of two factors, one as wide as the input and one as the output. Then
    `prepare` stays as small as they are, and their transposes, exchanged, make W^T."""

    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True) -> None:
        super().__init__()
        _require_positive("in_features", in_features)
        _require_positive("out_features", out_features)
        self.in_features = in_features
        self.out_features = out_features
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    @abstractmethod
    def matrix(self, A: Tensor | None = None) -> Tensor:
        """W in R^{in x out}; `A` are the shared slow weights where there are any."""

    @classmethod
    @abstractmethod
    def matrices(cls, factors: Mapping[str, Tensor], A: Tensor | None = None) -> Tensor:
        """W in R^{m x in x out} of m projections of equal shapes in a few operations, from their
        stacked factors; `A` is one set of slow weights for all of them, or m sets."""

    @classmethod
    def gradients(
        cls,
        factors: Mapping[str, Tensor],
        A: Tensor | None,
        gradient: Tensor,
        *,
        again: bool = False,
    ) -> Sequence[Tensor]:
        """Gradients of the factors, then of `A` if there is one, given that of `matrices`; `again`:
        such that they have gradients themselves."""
        inputs = [*factors.values()] if A is None else [*factors.values(), A]
        with torch.enable_grad():
            inputs = [
                x if again and x.requires_grad else x.detach().requires_grad_() for x in inputs
            ]
            slow = None if A is None else inputs[-1]
            W = cls.matrices(dict(zip(factors, inputs, strict=False)), slow)
            return torch.autograd.grad(W, inputs, gradient, create_graph=again)

    @classmethod
    def prepare(cls, factors: Mapping[str, Tensor], A: Tensor | None = None) -> list[Tensor]:
        """What `project` needs of m projections, given as for `matrices`; m comes first."""
        return [cls.matrices(factors, A)]

    @classmethod
    def project(cls, x: Tensor, prepared: Sequence[Tensor], bias: Tensor | None) -> Tensor:
        """y = x W + b with m projections for x in R^{m x rows x in}, bias in R^{m x out}."""
        *first, last = prepared
        for factor in first:
            x = torch.bmm(x, factor)
        return torch.bmm(x, last) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, last)

    def forward(self, x: Tensor, A: Tensor | None = None) -> Tensor:
        return nn.functional.linear(x, self.matrix(A).t(), self.bias)

    def extra_repr(self) -> str:
        return f"{self.in_features} -> {self.out_features}, bias={self.bias is not None}"


class Dense(Projection):
    """W itself, drawn from N(0, 0.01^2)."""

    FACTORS = ("W",)

    def __init__(self, in_features: int, out_features: int, *, bias: bool = True) -> None:
        super().__init__(in_features, out_features, bias=bias)
        self.W = nn.Parameter(torch.randn(in_features, out_features) * DENSE_STD)

    def matrix(self, A: Tensor | None = None) -> Tensor:
        return self.W

    @classmethod
    def matrices(cls, factors: Mapping[str, Tensor], A: Tensor | None = None) -> Tensor:
        return factors["W"]


class LowRank(Projection):
    """W = s t of rank r."""

    FACTORS = ("s", "t")
    FACTORED = True

    def __init__(
        self, in_features: int, out_features: int, *, rank: int = 1, bias: bool = True
    ) -> None:
        super().__init__(in_features, out_features, bias=bias)
        _require_positive("rank", rank)
        self.s = nn.Parameter(_glorot(1, in_features, rank)[0])
        self.t = nn.Parameter(_glorot(1, rank, out_features)[0])

    def matrix(self, A: Tensor | None = None) -> Tensor:
        return self.s @ self.t

    @classmethod
    def matrices(cls, factors: Mapping[str, Tensor], A: Tensor | None = None) -> Tensor:
        return factors["s"] @ factors["t"]

    @classmethod
    def prepare(cls, factors: Mapping[str, Tensor], A: Tensor | None = None) -> list[Tensor]:
        return [factors["s"], factors["t"]]


class _Hypercomplex(Projection):
    """What PHM and LPHM have in common: n, and slow weights of their own or shared ones."""

    A: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        n: int,
        shared_A: bool,
        A_std: float,
        bias: bool,
    ) -> None:
        super().__init__(in_features, out_features, bias=bias)
        require_divisible(n, in_features=in_features, out_features=out_features)
        self.n = n
        self.A = None if shared_A else slow_weights(n, A_std)

    def slow(self, A: Tensor | None) -> Tensor:
        if (A is None) == (self.A is None):
            wanted = "its own" if self.A is not None else "shared"
            given = "none were given" if A is None else "others were given"
            raise SettingError(f"this projection uses {wanted} slow weights A, but {given}")
        slow = self.A if A is None else A
        assert slow is not None
        return slow

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, n={self.n}, shared_A={self.A is None}"


class PHM(_Hypercomplex):
    """W = sum_i A_i (x) B_i with B_i in R^{in/n x out/n} (eq. 4)."""

    FACTORS = ("B",)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        n: int = 4,
        shared_A: bool = False,
        A_std: float = OWN_A_STD,
        bias: bool = True,
    ) -> None:
        super().__init__(in_features, out_features, n=n, shared_A=shared_A, A_std=A_std, bias=bias)
        self.B = nn.Parameter(_glorot(n, in_features // n, out_features // n))

    def matrix(self, A: Tensor | None = None) -> Tensor:
        return kronecker_sum(self.slow(A), self.B)

    @classmethod
    def matrices(cls, factors: Mapping[str, Tensor], A: Tensor | None = None) -> Tensor:
        assert A is not None
        return kronecker_sums(A, factors["B"])


class LPHM(_Hypercomplex):
    """W = sum_i A_i (x) s_i t_i^T with s_i in R^{in/n x r}, t_i^T in R^{r x out/n} (eq. 5)."""

    FACTORS = ("s", "t")
    FACTORED = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        n: int = 4,
        rank: int = 1,
        shared_A: bool = True,
        A_std: float = OWN_A_STD,
        bias: bool = True,
    ) -> None:
        super().__init__(in_features, out_features, n=n, shared_A=shared_A, A_std=A_std, bias=bias)
        _require_positive("rank", rank)
        self.s = nn.Parameter(_glorot(n, in_features // n, rank))
        self.t = nn.Parameter(_glorot(n, rank, out_features // n))

    def matrix(self, A: Tensor | None = None) -> Tensor:
        return kronecker_sum(self.slow(A), self.s @ self.t)

    @classmethod
    def matrices(cls, factors: Mapping[str, Tensor], A: Tensor | None = None) -> Tensor:
        assert A is not None
        return low_rank_kronecker_sums(A, factors["s"], factors["t"])

    @classmethod
    def gradients(
        cls,
        factors: Mapping[str, Tensor],
        A: Tensor | None,
        gradient: Tensor,
        *,
        again: bool = False,
    ) -> Sequence[Tensor]:
        if again:
            return super().gradients(factors, A, gradient, again=True)
        assert A is not None
        return low_rank_kronecker_gradients(A, factors["s"], factors["t"], gradient)

    @classmethod
    def prepare(cls, factors: Mapping[str, Tensor], A: Tensor | None = None) -> list[Tensor]:
        """x W in two products, of the n parts of x with the longer factor and of all that with A
        times the shorter one, or the other way round."""
        s, t = factors["s"], factors["t"]
        (m, n, p, r), q = s.shape, t.shape[-1]
        assert A is not None
        if p >= q:  # s_i[p, r] as p x (i r), then A_i[a, b] t_i[r, q] as (a i r) x (b q)
            slow = A.transpose(-3, -2)[..., None, :, None]
            second = slow * t[:, None, :, :, None, :]
            return [s.transpose(1, 2).reshape(m, p, n * r), second.reshape(m, n * n * r, n * q)]
        # A_i[a, b] s_i[p, r] as (a p) x (b i r), then t_i[r, q] as (i r) x q
        slow = A.movedim(-3, -1)[..., None, :, :, None]
        first = slow * s.transpose(1, 2)[:, None, :, None]
        return [first.reshape(m, n * p, n * n * r), t.reshape(m, n * r, q)]

    @classmethod
    def project(cls, x: Tensor, prepared: Sequence[Tensor], bias: Tensor | None) -> Tensor:
        first, second = prepared
        m, rows, width = x.shape
        if first.shape[1] < width:
            between = torch.bmm(x.reshape(m, -1, first.shape[1]), first).reshape(m, rows, -1)
            return super().project(between, [second], bias)
        between = torch.bmm(x, first).reshape(m, -1, second.shape[1])
        y = torch.bmm(between, second).reshape(m, rows, -1)
        return y if bias is None else y + bias.unsqueeze(1)


def make_projection(
    kind: ProjectionKind,
    in_features: int,
    out_features: int,
    *,
    n: int = 4,
    rank: int = 1,
    shared_A: bool = True,
    A_std: float = OWN_A_STD,
    bias: bool = True,
) -> Projection:
    """The projection of that kind; settings that the kind does not have are not looked at, and
    `A_std` only where A is not shared."""
    widths = (in_features, out_features)
    makers: dict[str, Callable[[], Projection]] = {
        "dense": lambda: Dense(*widths, bias=bias),
        "low-rank": lambda: LowRank(*widths, rank=rank, bias=bias),
        "phm": lambda: PHM(*widths, n=n, shared_A=shared_A, A_std=A_std, bias=bias),
        "lphm": lambda: LPHM(*widths, n=n, rank=rank, shared_A=shared_A, A_std=A_std, bias=bias),
    }
    if kind not in makers:
        raise SettingError(f"projection={kind!r} is unknown; choose one of {', '.join(makers)}")
    return makers[kind]()


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


def _glorot(count: int, rows: int, columns: int) -> Tensor:
    """`count` matrices, each Glorot-uniform with gain sqrt(2) by its own rows and columns."""
    bound = math.sqrt(2.0) * math.sqrt(6.0 / (rows + columns))
    return torch.empty(count, rows, columns).uniform_(-bound, bound)

"""The configuration of the seven adapter methods."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, get_args

from peft import PeftType

from compacter.errors import SettingError
from compacter.models import POSITIONS
from compacter.nn.projections import OWN_A_STD, SHARED_A_STD, ProjectionKind
from compacter.tuners.bottleneck.activation import find_activation
from compacter.tuners.config import AdapterConfig


@dataclass
class CompacterConfig(AdapterConfig):
    """Bottleneck adapters: {dense, low-rank, PHM, LPHM} x positions x layers x sharing of A.

    The defaults are the paper's Compacter; `compacter.attach` knows the other six by name."""

    n: int = field(default=4, metadata={"help": "number of Kronecker products in a projection"})
    bottleneck: int = field(default=24, metadata={"help": "width between down and up"})
    rank: int = field(default=1, metadata={"help": "rank r of B_i = s_i t_i^T, or of a low-rank W"})
    projection: ProjectionKind = field(
        default="lphm", metadata={"help": "dense, low-rank, phm or lphm"}
    )
    share_A: bool = field(
        default=True, metadata={"help": "one set of slow weights A for all layers (phm, lphm)"}
    )
    A_std: float | None = field(
        default=None, metadata={"help": "initial standard deviation of A (1e-4 shared, 0.01 not)"}
    )
    positions: tuple[str, ...] = field(
        default=POSITIONS, metadata={"help": "adapters after attention, feed_forward or both"}
    )
    drop_layers: int = field(
        default=0, metadata={"help": "lowest layers of each stack that get no adapter"}
    )
    use_bias: bool = field(default=True, metadata={"help": "biases in down and up"})
    activation: str = field(
        default="gelu_new", metadata={"help": "any activation that transformers knows"}
    )
    train_layer_norms: bool = field(
        default=True, metadata={"help": "also train a copy of every layer norm of the model"}
    )
    tune_output_layer: bool = field(
        default=False, metadata={"help": "also train a copy of the output layer (Appendix C)"}
    )

    peft_name: ClassVar[str] = "compacter"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = PeftType(self.peft_name.upper())
        self.positions = tuple(self.positions)
        kinds = get_args(ProjectionKind)
        if self.projection not in kinds:
            raise SettingError(
                f"projection={self.projection!r} is unknown; choose one of {', '.join(kinds)}"
            )
        for name in ("n", "bottleneck", "rank"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise SettingError(f"{name}={value!r} does not fit; expected a whole number from 1")
        if type(self.drop_layers) is not int or self.drop_layers < 0:
            raise SettingError(
                f"drop_layers={self.drop_layers!r} does not fit; expected a whole number from 0"
            )
        if not self.positions or not set(self.positions) <= set(POSITIONS):
            raise SettingError(
                f"positions={self.positions} do not fit; choose from {', '.join(POSITIONS)}"
            )
        if self.A_std is not None and not (isinstance(self.A_std, int | float) and self.A_std > 0):
            raise SettingError(f"A_std={self.A_std!r} does not fit; expected a number above 0")
        if self.is_hypercomplex and self.bottleneck % self.n:
            raise SettingError(
                f"n={self.n} does not divide bottleneck={self.bottleneck}; "
                f"bottleneck could be {self.n * -(-self.bottleneck // self.n)}"
            )
        find_activation(self.activation)

    @property
    def is_hypercomplex(self) -> bool:
        return self.projection in ("phm", "lphm")

    @property
    def shares_A(self) -> bool:
        return self.is_hypercomplex and self.share_A

    @property
    def initial_A_std(self) -> float:
        if self.A_std is not None:
            return self.A_std
        return SHARED_A_STD if self.share_A else OWN_A_STD

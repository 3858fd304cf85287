"""The configuration of Intrinsic-SAID."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from peft import PeftType

from compacter.errors import SettingError
from compacter.tuners.config import AdapterConfig


@dataclass
class IntrinsicSAIDConfig(AdapterConfig):
    """Every weight tensor W_j of the model becomes W_j + lambda_j P_j theta, where theta is one
    short vector for all of them and P_j a random projection that is never stored."""

    intrinsic_dim: int = field(
        default=20_000,
        metadata={"help": "d': how many numbers are trained, theta and the lambdas together"},
    )
    projection_seed: int = field(
        default=0, metadata={"help": "the seed from which the random projections are derived"}
    )

    peft_name: ClassVar[str] = "intrinsic_said"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = PeftType(self.peft_name.upper())
        if not isinstance(self.intrinsic_dim, int) or self.intrinsic_dim < 2:
            raise SettingError(
                f"intrinsic_dim={self.intrinsic_dim!r} does not fit; expected a whole number from 2"
            )
        if self.trainable_token_indices is not None:
            raise SettingError(
                "trainable_token_indices cannot be set: Intrinsic-SAID moves all embeddings"
            )
        if self.target_modules is not None:
            raise SettingError("target_modules cannot be set: Intrinsic-SAID moves every weight")

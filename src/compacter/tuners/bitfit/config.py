"""The configuration of BitFit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

from peft import PeftType

from compacter.errors import SettingError
from compacter.tuners.config import AdapterConfig

Biases = Literal["auto", "existing", "added"]


@dataclass
class BitFitConfig(AdapterConfig):
    """Biases alone are trained: as a learned change where the model has biases, as added biases
    where it has none (T5)."""

    biases: Biases = field(
        default="auto",
        metadata={
            "help": "existing: a change to the bias of every module that has one; added: a bias "
            "for every linear layer and layer norm of the blocks and for the output layer; auto: "
            "existing, or added if the blocks of the model have no biases at all"
        },
    )
    tune_output_layer: bool = field(
        default=False, metadata={"help": "also train a copy of the output layer (Appendix C)"}
    )

    peft_name: ClassVar[str] = "bitfit"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = PeftType(self.peft_name.upper())
        if self.biases not in get_args(Biases):
            choices = ", ".join(get_args(Biases))
            raise SettingError(f"biases={self.biases!r} is unknown; choose one of {choices}")

"""Makes the three tuners known to PEFT, once."""

from __future__ import annotations

from peft import PeftType
from peft.utils import register_peft_method

from compacter.tuners.bitfit.config import BitFitConfig
from compacter.tuners.bitfit.model import BitFitModel
from compacter.tuners.bottleneck.config import CompacterConfig
from compacter.tuners.bottleneck.model import CompacterModel
from compacter.tuners.config import AdapterConfig
from compacter.tuners.intrinsic.config import IntrinsicSAIDConfig
from compacter.tuners.intrinsic.model import IntrinsicSAIDModel
from compacter.tuners.tuner import Tuner

TUNERS: tuple[tuple[type[AdapterConfig], type[Tuner]], ...] = (
    (CompacterConfig, CompacterModel),
    (BitFitConfig, BitFitModel),
    (IntrinsicSAIDConfig, IntrinsicSAIDModel),
)


def register() -> None:
    """PEFT looks tuners up by members of its enumeration PeftType, so each becomes a member."""
    for config_cls, model_cls in TUNERS:
        name = config_cls.peft_name
        if name.upper() not in PeftType.__members__:
            _add_member(PeftType, name.upper())
            register_peft_method(
                name=name, config_cls=config_cls, model_cls=model_cls, prefix=model_cls.prefix
            )


def _add_member(enum: type[PeftType], name: str) -> None:
    member = str.__new__(enum, name)
    member._name_ = name
    member._value_ = name
    enum._member_names_.append(name)
    enum._member_map_[name] = member
    enum._value2member_map_[name] = member
    type.__setattr__(enum, name, member)

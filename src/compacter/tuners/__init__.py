"""PEFT tuners: bottleneck (Adapter ... Compacter++), bitfit, intrinsic. Importing registers."""

from compacter.tuners.bitfit.config import BitFitConfig
from compacter.tuners.bottleneck.config import CompacterConfig
from compacter.tuners.intrinsic.config import IntrinsicSAIDConfig
from compacter.tuners.registration import register

register()

__all__ = ["BitFitConfig", "CompacterConfig", "IntrinsicSAIDConfig"]

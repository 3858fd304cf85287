"""The paper's mathematics in plain torch: projections, the bottleneck adapter, Fastfood; and the
norm of T5."""

from compacter.nn.bottleneck import (
    Bottleneck,
    bottleneck,
    bottleneck_by_linear,
    bottleneck_of,
    trained_bottleneck,
)
from compacter.nn.building import Backward, Builder, build
from compacter.nn.fastfood import Fastfood
from compacter.nn.moved import moved, moved_embedding, moved_linear
from compacter.nn.projections import (
    LPHM,
    PHM,
    Dense,
    LowRank,
    Projection,
    make_projection,
    slow_weights,
)
from compacter.nn.rms_norm import rms_epsilon, rms_norm
from compacter.nn.watched import is_watched

__all__ = [
    "LPHM",
    "PHM",
    "Backward",
    "Bottleneck",
    "Builder",
    "Dense",
    "Fastfood",
    "LowRank",
    "Projection",
    "bottleneck",
    "bottleneck_by_linear",
    "bottleneck_of",
    "build",
    "is_watched",
    "make_projection",
    "moved",
    "moved_embedding",
    "moved_linear",
    "rms_epsilon",
    "rms_norm",
    "slow_weights",
    "trained_bottleneck",
]

"""The paper's mathematics in plain torch: projections, the bottleneck adapter, Fastfood."""

from compacter.nn.bottleneck import Bottleneck, bottleneck, bottleneck_of
from compacter.nn.building import Backward, build
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

__all__ = [
    "LPHM",
    "PHM",
    "Backward",
    "Bottleneck",
    "Dense",
    "Fastfood",
    "LowRank",
    "Projection",
    "bottleneck",
    "bottleneck_of",
    "build",
    "make_projection",
    "moved",
    "moved_embedding",
    "moved_linear",
    "slow_weights",
]

"""The paper's mathematics in plain torch: projections, adapters as stacks of them, Fastfood; and
the norm of T5."""

from compacter.nn.bottleneck import Activation, bottleneck
from compacter.nn.fastfood import Fastfood
from compacter.nn.moved import moved, moved_embedding, moved_linear
from compacter.nn.projections import Projection, project, require_divisible, slow_weights
from compacter.nn.replaced import call_with, with_tensors
from compacter.nn.rms_norm import rms_epsilon, rms_norm
from compacter.nn.stacks import WHOLE, Biases, Bottlenecks, Norms, Stack, Whole
from compacter.nn.watched import is_watched
from compacter.nn.weights import SLOW, AdapterWeights, Layout, moved_to

__all__ = [
    "SLOW",
    "WHOLE",
    "Activation",
    "AdapterWeights",
    "Biases",
    "Bottlenecks",
    "Fastfood",
    "Layout",
    "Norms",
    "Projection",
    "Stack",
    "Whole",
    "bottleneck",
    "call_with",
    "is_watched",
    "moved",
    "moved_embedding",
    "moved_linear",
    "moved_to",
    "project",
    "require_divisible",
    "rms_epsilon",
    "rms_norm",
    "slow_weights",
    "with_tensors",
]

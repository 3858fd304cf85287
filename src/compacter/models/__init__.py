"""Models: loading their shape, and finding where attention and feed-forward write back.

`architectures` is the table of known families, `inference` works out the others, `structure` turns
both into targets for adapters, `modules` sees a model without PEFT's wrappers, `loading` builds a
model without its weights or with random ones, `mixing` knows where examples cannot be told apart,
`quantised` which weights are not plain numbers, and `builtin` finds the models that come as Python
packages.
"""

from __future__ import annotations

from compacter.models.architectures import ARCHITECTURES, BYPASSES, Architecture, Bypass
from compacter.models.builtin import BUILTIN_MODELS, builtin_folder, is_builtin
from compacter.models.inference import hidden_size
from compacter.models.loading import T5_DIMENSIONS, T5Dimensions, random_model, skeleton
from compacter.models.loss import count_loss_once
from compacter.models.mixing import obstacle
from compacter.models.modules import (
    TASK_HEADS,
    bare_model,
    base_modules,
    input_width,
    is_called_plainly,
    is_layer_norm,
    layer_norms,
    optional_call,
    outer_modules,
    output_width,
    unwrapped,
)
from compacter.models.output_layer import output_layer, trainable_output_layer
from compacter.models.quantised import check_not_quantised, check_trained_whole
from compacter.models.structure import (
    POSITIONS,
    READ_DIRECTLY,
    Block,
    Target,
    drop_layers,
    find_blocks,
    infer_blocks,
    linear_targets,
    named_targets,
    target_at,
    targets_of,
)

__all__ = [
    "ARCHITECTURES",
    "BUILTIN_MODELS",
    "BYPASSES",
    "POSITIONS",
    "READ_DIRECTLY",
    "T5_DIMENSIONS",
    "TASK_HEADS",
    "Architecture",
    "Block",
    "Bypass",
    "T5Dimensions",
    "Target",
    "bare_model",
    "base_modules",
    "builtin_folder",
    "check_not_quantised",
    "check_trained_whole",
    "count_loss_once",
    "drop_layers",
    "find_blocks",
    "hidden_size",
    "infer_blocks",
    "input_width",
    "is_builtin",
    "is_called_plainly",
    "is_layer_norm",
    "layer_norms",
    "linear_targets",
    "named_targets",
    "obstacle",
    "optional_call",
    "outer_modules",
    "output_layer",
    "output_width",
    "random_model",
    "skeleton",
    "target_at",
    "targets_of",
    "trainable_output_layer",
    "unwrapped",
]

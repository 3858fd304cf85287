"""Whether operations are only done, or something looks at them too."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad


def is_watched() -> bool:
    """Whether there is a compiler, a tracer, a function transform such as vmap, forward-mode
    differentiation, or a mode that sees every operation, as selective checkpointing's does. Then
    operations have to be torch's own, and nothing may be kept.

    Torch has no public way to ask for most of these, so this function alone uses private ones."""
    return bool(
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or forward_ad._current_level >= 0
    )

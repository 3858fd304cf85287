"""Whether operations are only done, or something looks at them too."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad


def is_watched() -> bool:
    """Whether there is a compiler, a tracer, a transform of functions such as vmap, derivatives in
    forward mode, or a mode that sees every operation, as selective checkpointing's does, which may
    have kept what is changed afterwards. Then operations have to be torch's own, and none may
    change what it is given."""
    return bool(
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or forward_ad._current_level >= 0
    )

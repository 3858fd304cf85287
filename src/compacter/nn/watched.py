"""Whether operations are only done, or something looks at them too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

# Bound once: every norm of every token asks
_is_compiling = torch.compiler.is_compiling
_tracing_state = torch._C._get_tracing_state
_transforms_active = torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack


def is_watched() -> bool:
    """Whether there is a compiler, a tracer, a transform of functions such as vmap, derivatives in
    forward mode, or a mode that sees every operation, as selective checkpointing's does, which may
    have kept what is changed afterwards. Then operations have to be torch's own, and none may
    change what it is given."""
    return bool(
        _is_compiling()
        or _tracing_state()
        or _transforms_active()
        or _dispatch_modes()
        or forward_ad._current_level >= 0
    )


def unwatched_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """The `apply` of a function where it is known that nobody watches: torch's own first asks for
    transforms once more, in Python."""
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply

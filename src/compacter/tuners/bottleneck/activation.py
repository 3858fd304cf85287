"""Activations by the names that transformers gives them."""

from __future__ import annotations

import difflib

from torch import nn
from transformers.activations import ACT2FN

from compacter.errors import SettingError


def find_activation(name: str) -> nn.Module:
    """The activation of that name. `gelu_new` is GeLU in its tanh form, for which torch has one
    fused operation; transformers writes the same formula out in eight."""
    if name == "gelu_new":
        return nn.GELU("tanh")
    if name not in ACT2FN:
        near = difflib.get_close_matches(str(name), ACT2FN, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(ACT2FN)}"
        raise SettingError(f"activation={name!r} is unknown to transformers; {hint}")
    activation: nn.Module = ACT2FN[name]
    if any(True for _ in activation.parameters()):
        raise SettingError(
            f"activation={name!r} has parameters of its own, which an adapter would not train; "
            "choose one without, such as 'gelu_new' or 'relu'"
        )
    return activation

"""Activations by the names that transformers gives them."""

from __future__ import annotations

import difflib
from functools import cache

from torch import Tensor
from torch.nn.functional import gelu
from transformers.activations import ACT2FN

from compacter.errors import SettingError
from compacter.nn import Activation


def gelu_new(x: Tensor) -> Tensor:
    """GeLU in its tanh form, for which torch has one fused operation. Transformers writes the same
    formula out in eight."""
    return gelu(x, approximate="tanh")


@cache  # adapters whose activation is the same object can be computed together
def find_activation(name: str) -> Activation:
    """The activation of that name."""
    if name == "gelu_new":
        return gelu_new
    if name not in ACT2FN:
        near = difflib.get_close_matches(str(name), ACT2FN, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(ACT2FN)}"
        raise SettingError(f"activation={name!r} is unknown to transformers; {hint}")
    activation = ACT2FN[name]
    if any(True for _ in activation.parameters()):
        raise SettingError(
            f"activation={name!r} has parameters of its own, which an adapter would not train; "
            "choose one without, such as 'gelu_new' or 'relu'"
        )
    found: Activation = activation
    return found

"""RMS norm, w x / sqrt(mean(x^2) + eps), of which autograd keeps two results of the size of x. Here
the backward pass is torch's for LayerNorm, which keeps the input and a number per token."""

import copy
from typing import Any

import torch
from torch import Tensor, nn

from compacter.nn.watched import is_watched


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x in R^{... x d} and w in R^d, of one dtype."""
    if is_watched():
        return weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))
    if not x.is_cpu:
        return torch.rms_norm(x, weight.shape, weight, eps)
    return _RmsNorm.apply(x, weight, eps)  # type: ignore[no-any-return, no-untyped-call]


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        ctx.eps = eps
        return (x * scale).mul_(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """LayerNorm's, with a mean of 0. It differs by the mean of w g, which is added again."""
        x, weight, scale = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of gradients are wanted
            given = [t if t.requires_grad else t.detach().requires_grad_() for t in (x, weight)]
            output = torch.rms_norm(given[0], weight.shape, given[1], ctx.eps)
            return *torch.autograd.grad(output, given, grad, create_graph=True), None
        of_x, of_weight, _ = torch.ops.aten.native_layer_norm_backward(
            grad, x, weight.shape, torch.zeros_like(scale), scale, weight, None, (True, True, False)
        )
        with torch.autocast(x.device.type, enabled=False):
            mean = (grad.reshape(-1, len(weight)) @ weight).view_as(scale) * scale / len(weight)
        return of_x.add_(mean), of_weight, None


def rms_epsilon(norm: nn.Module) -> float | None:
    """The eps of a module that computes an RMS norm, found by trying; None of any other."""
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    own = [(name, parameter.dim()) for name, parameter in norm.named_parameters()]
    if own != [("weight", 1)] or not isinstance(eps, float):
        return None
    x, w = torch.linspace(-1, 2, 16).view(2, 8) ** 3 * eps**0.25, torch.linspace(0.5, 2, 8)
    tried = copy.copy(norm)
    tried._parameters = {"weight": nn.Parameter(w, requires_grad=False)}
    tried.__dict__["normalized_shape"] = (8,)  # of torch's own
    try:
        same = torch.allclose(type(norm).forward(tried, x), torch.rms_norm(x, (8,), w, eps))
    except Exception:  # whatever another module does with such input
        return None
    return eps if same else None

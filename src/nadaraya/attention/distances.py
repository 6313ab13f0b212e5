"""Squared distances of all pairs, differentiable as often as wanted, in both modes and under `torch.func`."""

from typing import Any

import torch
from torch import Tensor

_DIRECT = "donot_use_mm_for_euclid_dist"


def squared_distances(query: Tensor, key: Tensor) -> Tensor:
    """‖q_i − k_j‖² from direct differences: ‖q‖² + ‖k‖² − 2 q·k would lose digits far from the origin.

    Args:
        query: (…, n, d).
        key: (…, m, d).

    Returns:
        (…, n, m).
    """
    if torch.compiler.is_exporting():  # other runtimes have no cdist; centring keeps the digits
        query, key = _centred(query, key)
        squares = query.square().sum(-1, keepdim=True) + key.square().sum(-1)[..., None, :]
        return squares - 2 * query @ key.transpose(-1, -2)
    if torch.compiler.is_compiling():  # Dynamo traces no function with a forward derivative of its own
        return torch.cdist(query, key, compute_mode=_DIRECT).square()
    found: Tensor = _SquaredDistances.apply(query, key)
    return found


def distances(query: Tensor, key: Tensor) -> Tensor:
    """‖q_i − k_j‖, whose gradient is 0 where two points coincide; shapes as in `squared_distances`."""
    squares = squared_distances(query, key)
    coincide = squares <= 0.0
    return squares.masked_fill(coincide, 1.0).sqrt().masked_fill(coincide, 0.0)


def _centred(*points: Tensor) -> tuple[Tensor, ...]:
    """Points minus the mean of the last ones, which changes no distance and no derivative of one."""
    centre = points[-1].detach().sum(-2, keepdim=True) / max(1, points[-1].shape[-2])
    return tuple(x - centre for x in points)


class _SquaredDistances(torch.autograd.Function):
    """PyTorch's distances, which have a first derivative only, with derivatives that have their own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(query: Tensor, key: Tensor) -> Tensor:
        return torch.cdist(query, key, compute_mode=_DIRECT).square()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        query, key = _centred(*ctx.saved_tensors)
        grad_query = 2 * (grad.sum(-1)[..., None] * query - grad @ key)
        grad_key = 2 * (grad.sum(-2)[..., None] * key - grad.transpose(-1, -2) @ query)
        return grad_query, grad_key

    @staticmethod
    def jvp(ctx: Any, query_tangent: Tensor, key_tangent: Tensor) -> Tensor:
        query, key = _centred(*ctx.saved_tensors)
        of_query = (query * query_tangent).sum(-1)[..., None] - query_tangent @ key.transpose(-1, -2)
        of_key = (key * key_tangent).sum(-1)[..., None, :] - query @ key_tangent.transpose(-1, -2)
        return 2 * (of_query + of_key)

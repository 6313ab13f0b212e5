"""Sums over pairs with PyTorch, in blocks of queries: any kernel, any device, O(n + m) memory."""

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nadaraya.kernels import Kernel
from nadaraya.regression.sums import PairSums

Array = NDArray[np.floating]

_PAIRS_CPU = 2**20
_PAIRS_ELSEWHERE = 2**26


def distances(query: Tensor, points: Tensor) -> Tensor:
    """‖q_i − x_j‖, (m, n), of points scaled by the bandwidth; from direct differences, so nothing cancels."""
    return torch.cdist(query, points, compute_mode="donot_use_mm_for_euclid_dist")


def rows_of_a_block(num_points: int, per_pair: int, device: torch.device) -> int:
    """How many queries to take at once, with `per_pair` numbers held for each pair."""
    pairs = _PAIRS_CPU if device.type == "cpu" else _PAIRS_ELSEWHERE
    return max(1, pairs // (num_points * per_pair))


def pair_sums(
    query: Array,
    points: Array,
    columns: Array,
    kernel: Kernel,
    bandwidth: Array,
    *,
    what: str,
    power: int,
    query_scale: Array | None,
    exclude_self: bool,
    device: torch.device,
) -> PairSums:
    """The sums of `nadaraya.regression.sums.pair_sums`, which explains the arguments."""
    dtype = torch.float32 if points.dtype == np.float32 and device.type != "cpu" else torch.float64
    if device.type != "cpu":
        kernel = copy.deepcopy(kernel).to(device)
    scale = torch.tensor(1.0 / bandwidth, dtype=dtype, device=device)
    q, x, c = (torch.tensor(array, dtype=dtype, device=device) for array in (query, points, columns.T))
    shrink = None if query_scale is None else torch.tensor(1.0 / query_scale, dtype=dtype, device=device)
    rows = rows_of_a_block(len(x), 4 + x.shape[1], device)
    blocks = [
        _block(
            q, x, c, kernel, scale, shrink, slice(start, min(start + rows, len(q))), what, power, exclude_self
        )
        for start in range(0, len(q), rows)
    ]
    if not blocks:
        d, k = x.shape[1], c.shape[1]
        return PairSums(np.zeros((0, k)), np.zeros((0, d, k)), np.zeros((0, d, d)), np.zeros(0))
    return PairSums(*(torch.cat(part).double().cpu().numpy() for part in zip(*blocks, strict=True)))


def _block(
    query: Tensor,
    x: Tensor,
    columns: Tensor,
    kernel: Kernel,
    scale: Tensor,
    shrink: Tensor | None,
    rows: slice,
    what: str,
    power: int,
    exclude_self: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q = query[rows]
    row_shrink = torch.ones_like(q[:, 0]) if shrink is None else shrink[rows]
    r = distances(q * scale, x * scale) * row_shrink[:, None]
    derivative = what in ("bandwidth", "position")
    with torch.set_grad_enabled(derivative):
        r.requires_grad_(derivative)
        log_weights = kernel.log(r)
        slope = torch.autograd.grad(log_weights.sum(), r)[0] if derivative else None
    r = r.detach()
    hidden = (columns[:, 0] == 0).expand_as(r)
    if exclude_self:
        own = torch.arange(rows.start, rows.stop, device=q.device)
        hidden = hidden.clone()
        hidden[own - rows.start, own] = True
    log_weights = power * log_weights.detach().masked_fill(hidden, -torch.inf)
    top = log_weights.max(dim=1).values
    empty = top == -torch.inf
    reach = r.masked_fill(hidden, torch.inf)
    nearest = reach <= reach.min(dim=1, keepdim=True).values * (1 + 1e-12)
    weights = torch.where(
        empty[:, None],
        (nearest & ~hidden).to(r.dtype),
        torch.exp(log_weights - top.masked_fill(empty, 0.0)[:, None]),
    )
    values = weights @ columns
    nothing = values.new_zeros(0)
    if what == "values":
        return values, nothing, nothing, top
    difference = q[:, None, :] - x  # (rows, n, d)
    if slope is not None:
        # dκ/dr · ∂r/∂Δ = κ · slope · Δ / (r h²); at r = 0 the difference itself is zero.
        weights = torch.where(r > 0, weights * slope / r.clamp_min(torch.finfo(r.dtype).tiny), 0.0)
        weights = weights.masked_fill(empty[:, None], 0.0) * row_shrink.square()[:, None]
        scaled = difference * scale
        if what == "bandwidth":
            return values, -torch.einsum("mn,mnd,nc->mdc", weights, scaled.square(), columns), nothing, top
        return values, torch.einsum("mn,mnd,nc->mdc", weights, scaled * scale, columns), nothing, top
    weighted = weights[..., None] * difference
    by_feature = torch.einsum("mnd,nc->mdc", weighted, columns)
    second = torch.einsum("mnd,mne->mde", weighted * columns[:, :1], difference)
    return values, by_feature, second, top

"""Sums over pairs with PyTorch, in blocks of queries: any kernel, any device, O(n + m) memory."""

import copy
from dataclasses import dataclass

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
    lines: tuple[Array, Array] | None = None,
    device: torch.device,
) -> PairSums:
    """The sums of `nadaraya.regression.sums.pair_sums`, which explains the arguments."""
    dtype = torch.float32 if points.dtype == np.float32 and device.type != "cpu" else torch.float64

    def tensor(array: Array) -> Tensor:
        return torch.tensor(array, dtype=dtype, device=device)

    job = _Job(
        query=tensor(query),
        points=tensor(points),
        columns=tensor(columns.T),
        kernel=kernel if device.type == "cpu" else copy.deepcopy(kernel).to(device),
        scale=tensor(1.0 / bandwidth),
        shrink=tensor(np.ones(len(query)) if query_scale is None else 1.0 / query_scale),
        what=what,
        power=power,
        exclude_self=exclude_self,
        lines=None if lines is None else (tensor(lines[0]), tensor(lines[1])),
    )
    d, c = points.shape[1], len(columns)
    rows = rows_of_a_block(len(points), 4 + (d + c if what != "values" else 0), device)
    blocks = [job.sums(slice(start, min(start + rows, len(query)))) for start in range(0, len(query), rows)]
    if not blocks:
        return PairSums(np.zeros((0, c)), np.zeros((0, d, c)), np.zeros((0, d, d)), np.zeros(0))
    return PairSums(*(torch.cat(part).double().cpu().numpy() for part in zip(*blocks, strict=True)))


@dataclass(frozen=True)
class _Job:
    """What all blocks share; columns are (n, c)."""

    query: Tensor
    points: Tensor
    columns: Tensor
    kernel: Kernel
    scale: Tensor
    shrink: Tensor
    what: str
    power: int
    exclude_self: bool
    lines: tuple[Tensor, Tensor] | None

    def sums(self, rows: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Values, sums by feature, second moments and log scale of the queries in `rows`."""
        q, shrink = self.query[rows], self.shrink[rows, None]
        r = distances(q * self.scale, self.points * self.scale) * shrink
        derivative = self.what in ("bandwidth", "position", "lines")
        log_weights, slope = self._log_weights(r, derivative)
        hidden = self._hidden(rows)
        log_weights = (self.power * log_weights).masked_fill(hidden, -torch.inf)
        top = log_weights.max(dim=1).values
        empty = torch.isneginf(top)
        reach = r.masked_fill(hidden, torch.inf)
        nearest = (reach <= reach.min(dim=1, keepdim=True).values * (1 + 1e-12)) & ~hidden
        weights = torch.exp(log_weights - top.masked_fill(empty, 0.0)[:, None])
        weights = torch.where(empty[:, None], nearest.to(r.dtype), weights)
        values = weights @ self.columns
        nothing = values.new_zeros(0)
        if self.what == "values":
            return values, nothing, nothing, top
        difference = q[:, None, :] - self.points  # (rows, n, d)
        if not derivative:
            weighted = weights[..., None] * difference
            by_feature = torch.einsum("mnd,nc->mdc", weighted, self.columns)
            second = torch.einsum("mnd,mne->mde", weighted * self.columns[:, :1], difference)
            return values, by_feature, second, top
        # ∂κ/∂Δ_f = κ'(r) Δ_f / (r h_f²); where r = 0 the difference itself is zero.
        per_distance = torch.where(r > 0, slope / r.clamp_min(torch.finfo(r.dtype).tiny), 0.0)
        change = weights * per_distance.masked_fill(empty[:, None], 0.0) * shrink.square()
        scaled = difference * self.scale
        if self.what == "position":
            return values, self._summed(change, scaled * self.scale), nothing, top
        if self.lines is None:
            return values, -self._summed(change, scaled.square()), nothing, top
        return values, -self._summed_lines(change, difference, scaled.square(), rows), nothing, top

    def _log_weights(self, r: Tensor, derivative: bool) -> tuple[Tensor, Tensor]:
        """log κ(r) and its derivative, zeros unless asked for."""
        with torch.set_grad_enabled(derivative):
            r = r.detach().requires_grad_(derivative)
            log_weights = self.kernel.log(r)
            slope = torch.autograd.grad(log_weights.sum(), r)[0] if derivative else torch.zeros_like(r)
        return log_weights.detach(), slope

    def _hidden(self, rows: slice) -> Tensor:
        """(rows, n) pairs that do not count: points without weight and, if excluded, each query itself."""
        hidden = (self.columns[:, 0] == 0).repeat(rows.stop - rows.start, 1)
        if self.exclude_self:
            own = torch.arange(rows.start, rows.stop, device=hidden.device)
            hidden[own - rows.start, own] = True
        return hidden

    def _summed(self, change: Tensor, by_feature: Tensor) -> Tensor:
        return torch.einsum("mn,mnd,nc->mdc", change, by_feature, self.columns)

    def _summed_lines(self, change: Tensor, difference: Tensor, squares: Tensor, rows: slice) -> Tensor:
        assert self.lines is not None
        row, coefficients = self.lines[0][rows], self.lines[1][rows]
        leaning = row[:, :1] - torch.einsum("mnd,md->mn", difference, row[:, 1:])
        line = coefficients[:, :1] - difference @ coefficients[:, 1:]  # (rows, n, c − 1)
        weight = self.columns[:, :1]
        residual = torch.cat([(weight * leaning[..., None]), self.columns[:, 1:] - weight * line], dim=-1)
        return torch.einsum("mn,mnd,mnc->mdc", change * leaning, squares, residual)

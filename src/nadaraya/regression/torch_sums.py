"""Sums over pairs with PyTorch, in blocks of queries: any kernel, any device, O(n + m) memory."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nadaraya.kernels import Kernel
from nadaraya.regression.categories import Factors
from nadaraya.regression.requests import (
    Gradients,
    LineGradients,
    Moments,
    PositionGradients,
    R,
    Request,
    Sums,
    joined,
)

_PAIRS_CPU = 2**20
_PAIRS_ELSEWHERE = 2**26


def compute(request: Request[R]) -> R:
    """The answer to a request of `nadaraya.regression.sums`."""
    job = Job(request)
    answer: Any = request.quantity
    parts: list[R] = []
    for rows in job.blocks(numbers_per_pair(request)):
        arrays = (part.double().cpu().numpy() for part in job.sums(rows))
        parts.append(answer(*arrays))
    return joined(parts)


def numbers_per_pair(request: Request[Any]) -> int:
    """Number of values held for each pair, which is also the cost of their sums."""
    return 4 if request.quantity is Sums else 4 + request.points.shape[1] + len(request.columns)


def distances(query: Tensor, points: Tensor) -> Tensor:
    """‖q_i − x_j‖, (..., m, n), of scaled points; from direct differences, so that nothing cancels."""
    return torch.cdist(query, points, compute_mode="donot_use_mm_for_euclid_dist")


def relative_weights(log_weights: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """exp(log_weights − their maximum) of every query, (..., m, n), and that maximum, (..., m).

    Where all weights are zero the maximum is −inf, and the nearest points have weight 1, without a gradient.
    Pairs that do not count have the distance inf.
    """
    top = log_weights.detach().amax(dim=-1)
    no_support = torch.isneginf(top)
    weights = torch.exp(log_weights - top.masked_fill(no_support, 0.0)[..., None])
    if no_support.any():
        reach = r.detach()
        nearest = (reach <= reach.amin(dim=-1, keepdim=True) * (1 + 1e-12)) & reach.isfinite()
        weights = torch.where(no_support[..., None], nearest.to(r.dtype), weights)
    return weights, top


class Job:
    """A request as tensors; columns are (n, c), and the kernel is a copy on the device unless it is there."""

    def __init__(self, request: Request[Any]) -> None:
        request = request.representable()
        device = request.device or torch.device("cpu")
        on_cpu = device.type == "cpu"
        single = request.points.dtype == np.float32 and not on_cpu

        def tensor(array: Any) -> Tensor:
            return torch.tensor(array, dtype=torch.float32 if single else torch.float64, device=device)

        self.request = request
        self.device = device
        self.query, self.points = tensor(request.query), tensor(request.points)
        self.columns = tensor(request.columns.T)
        self.kernel: Kernel = request.kernel if on_cpu else copy.deepcopy(request.kernel).to(device)
        self.inverse = tensor(1.0 / request.bandwidth)
        for numbers in (self.query, self.points):  # a feature that plays no part has no line either
            numbers[:, self.inverse == 0] = 0.0
        scale = request.query_scale
        self.shrink = tensor(np.ones(len(request.query)) if scale is None else 1.0 / scale)
        self.lines = None if request.lines is None else tuple(tensor(array) for array in request.lines)
        self._factors = None if request.factors is None else _PairFactors(request.factors, self.points)

    def blocks(self, per_pair: int) -> Iterator[slice]:
        """Queries to take at once, with `per_pair` numbers held for each pair; at least one block."""
        pairs = _PAIRS_CPU if self.device.type == "cpu" else _PAIRS_ELSEWHERE
        rows, m = max(1, pairs // (len(self.points) * per_pair)), len(self.query)
        return (slice(start, min(start + rows, m)) for start in range(0, max(m, 1), rows))

    def hidden(self, rows: slice) -> Tensor:
        """(rows, n) pairs that do not count: points without weight and, if excluded, each query itself."""
        hidden = (self.columns[:, 0] == 0).repeat(rows.stop - rows.start, 1)
        if self.request.exclude_self:
            own = torch.arange(rows.start, rows.stop, device=self.device)
            hidden[own - rows.start, own] = True
        return hidden

    def offsets(self, rows: slice) -> Tensor:
        """(d, rows, n) queries less points, 0 where one of them lacks the number."""
        offsets = self.query.T[:, rows, None] - self.points.T[:, None]
        if self._factors is not None and self._factors.some_missing:
            offsets = offsets * self._factors.known(rows)
        return offsets

    def distances(self, rows: slice) -> Tensor:
        """(rows, n) distances in bandwidths."""
        if self._factors is None or not self._factors.some_missing:
            r = distances(self.query[rows] * self.inverse, self.points * self.inverse)
        else:
            r = (self.offsets(rows) * self.inverse[:, None, None]).square().sum(dim=0).sqrt()
        return r * self.shrink[rows, None]

    def relative_weights(self, rows: slice, r: Tensor, log_weights: Tensor) -> tuple[Tensor, Tensor]:
        """`relative_weights` of the pairs that count, with the request's power and factors."""
        hidden = self.hidden(rows)
        if self._factors is not None:
            log_factors = self._factors.log(rows)
            log_weights, hidden = log_weights + log_factors, hidden | torch.isneginf(log_factors)
        log_weights = (self.request.power * log_weights).masked_fill(hidden, -torch.inf)
        return relative_weights(log_weights, r.masked_fill(hidden, torch.inf))

    def shares(self, rows: slice, r: Tensor, log_weights: Tensor) -> Tensor:
        """(rows, n) weights of the points in a local mean: of sum 1, or 0 where no point counts."""
        weights = self.relative_weights(rows, r, log_weights)[0] * self.columns[:, 0]
        total = weights.sum(dim=1, keepdim=True)
        return weights / torch.where(total > 0, total, 1.0)

    def local_weights(self, rows: slice) -> Tensor:
        """`shares` by the request's own kernel."""
        r = self.distances(rows)
        return self.shares(rows, r, self.kernel.log(r))

    def sums(self, rows: slice) -> tuple[Tensor, ...]:
        """The fields of the answer for the queries in `rows`."""
        quantity, shrink = self.request.quantity, self.shrink[rows, None]
        r = self.distances(rows)
        log_weights, slope = self.log_weights(r, issubclass(quantity, Gradients))
        weights, top = self.relative_weights(rows, r, log_weights)
        values = weights @ self.columns
        if quantity is Sums:
            return values, top
        offsets = self.offsets(rows)
        if quantity is Moments:
            first = ((weights * offsets) @ self.columns).movedim(0, 1)
            second = torch.einsum("fmn,gmn->mfg", weights * self.columns[:, 0] * offsets, offsets)
            return values, top, first, second
        # ∂κ/∂Δ_f = κ'(r) Δ_f / (r h_f²); where r = 0 the difference itself is zero.
        per_distance = torch.where(r > 0, slope / r.clamp_min(torch.finfo(r.dtype).tiny), 0.0)
        weights = weights.masked_fill(torch.isneginf(top)[:, None], 0.0)
        change = weights * per_distance * shrink.square()
        scaled, inverse = offsets * self.inverse[:, None, None], self.inverse[:, None, None]
        if quantity is PositionGradients:
            return values, top, ((change * scaled * inverse) @ self.columns).movedim(0, 1)
        changes = -change * scaled.square()
        if self._factors is not None:
            changes = torch.cat([changes, weights * self._factors.slopes(rows)])
        if quantity is LineGradients:
            return values, top, torch.einsum("dmn,mnc->mdc", changes, self._off_lines(rows, offsets))
        return values, top, (changes @ self.columns).movedim(0, 1)

    def log_weights(self, r: Tensor, has_gradient: bool) -> tuple[Tensor, Tensor]:
        """log κ(r) and its derivative, zeros unless asked for."""
        with torch.set_grad_enabled(has_gradient):
            r = r.detach().requires_grad_(has_gradient)
            log_weights = self.kernel.log(r)
            slope = torch.autograd.grad(log_weights.sum(), r)[0] if has_gradient else torch.zeros_like(r)
        return log_weights.detach(), slope

    def _off_lines(self, rows: slice, offsets: Tensor) -> Tensor:
        """(rows, n, c): what `LineGradients` multiplies the derivatives of the kernel by."""
        assert self.lines is not None
        row, coefficients = (part[rows] for part in self.lines)
        leaning = row[:, :1] - torch.einsum("dmn,md->mn", offsets, row[:, 1:])
        line = coefficients[:, :1] - torch.einsum("dmn,mdc->mnc", offsets, coefficients[:, 1:])
        weight = self.columns[:, :1]
        residual = torch.cat([weight * leaning[..., None], self.columns[:, 1:] - weight * line], dim=-1)
        return leaning[..., None] * residual


class _PairFactors:
    """Factors of categories for blocks of queries, as tensors like another."""

    def __init__(self, factors: Factors, like: Tensor) -> None:
        self._like, self._factors = like, factors
        self._query, self._points = (
            torch.tensor(codes, device=like.device) for codes in (factors.query, factors.points)
        )
        missing = factors.missing(like.shape[1])
        self._query_known, self._known = (torch.tensor(~part, device=like.device) for part in missing)
        self.some_missing = any(part.any() for part in missing)

    def known(self, rows: slice) -> Tensor:
        """(f, b, n) numbers that neither of a pair lacks."""
        return self._query_known.T[:, rows, None] & self._known.T[:, None]

    def log(self, rows: slice) -> Tensor:
        """(b, n) logarithms of the factors, relative to those of equal levels."""
        total = self._like.new_zeros(())
        for k, (category, scale) in enumerate(
            zip(self._factors.categories, self._factors.scales, strict=True)
        ):
            steps = self._steps(k, rows)
            by_steps = category.log_factor(np.arange(int(steps.max()) + 1), float(scale))
            total = total + torch.tensor(by_steps).to(self._like)[steps]
        return total

    def slopes(self, rows: slice) -> Tensor:
        """(K, b, n) derivatives by the logarithms of the scales; 0 at their ends."""
        scales = self._factors.scales
        per_step = np.divide(1.0, scales, out=np.zeros(len(scales)), where=(scales > 0) & (scales < np.inf))
        steps = torch.stack([self._steps(k, rows) for k in range(len(per_step))])
        return steps * torch.tensor(per_step[:, None, None]).to(self._like)

    def _steps(self, k: int, rows: slice) -> Tensor:
        return self._factors.categories[k].steps(self._query[rows, k, None], self._points[:, k])

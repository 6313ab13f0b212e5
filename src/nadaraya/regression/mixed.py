"""Sums over pairs where some features are categories, and some numbers are missing.

All queries with the same levels, and the same numbers missing, have the same factor of the categories for a
point. For each such group the columns of the points are multiplied by it, and what remains is a sum over
numbers; so every pair is visited once. Derivatives by the scales of the categories are further columns. Where
groups are small PyTorch makes the sums with a factor for every pair.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from nadaraya.regression import torch_sums
from nadaraya.regression.categories import Factors
from nadaraya.regression.requests import (
    Array,
    BandwidthGradients,
    Gradients,
    LineGradients,
    Lines,
    Moments,
    Request,
    Sums,
    joined,
)
from nadaraya.regression.rules import log_values

# With fewer pairs per group, PyTorch is faster, which takes all groups at once.
_PAIRS_PER_GROUP = 2**14

Answer = Callable[[Request[Any]], Any]


def compute(request: Request[Any], answer: Answer) -> Any:
    """The sums of a request with factors of categories; `answer` gives those over numbers.

    Where every weight is exactly zero because no point has the levels of a query, and other levels do not
    count, the points of the fewest steps do.
    """
    mixture = _Mixture.of(request, answer)
    combinations, group = np.unique(mixture.factors.query, axis=0, return_inverse=True)
    if _suits_pytorch(request, len(combinations)):
        return torch_sums.compute(request)
    order = np.argsort(group.reshape(-1), kind="stable")
    ends = np.flatnonzero(np.diff(group.reshape(-1)[order])) + 1
    found = joined([mixture.of_group(rows) for rows in np.split(order, ends)])
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return type(found)(*(getattr(found, field.name)[back] for field in fields(found)))


def _suits_pytorch(request: Request[Any], num_groups: int) -> bool:
    """Return whether a factor for every pair costs less; where factors are 0 groups know which points."""
    assert request.factors is not None
    m, (n, f) = len(request.query), request.points.shape
    on_cpu = request.device is None or request.device.type == "cpu"
    small = m * n <= num_groups * _PAIRS_PER_GROUP or not on_cpu
    return small and f > 0 and bool((request.factors.scales > 0).all())


@dataclass(frozen=True)
class _Part:
    """The points that count for a group of queries, at positions `chosen`, and what they count."""

    chosen: NDArray[np.intp]  # (n',) positions of points
    log_factor: Array  # (n',) of the categories, finite
    steps: NDArray[np.int64]  # (K, n') from the levels of the queries
    left_out: NDArray[np.bool_]  # (f,) numbers that do not count, as one of the two lacks them
    exclude_self: bool = False  # the points are the queries themselves, each of which does not see itself


@dataclass(frozen=True)
class _Mixture:
    """A request, its factors, and which of the numbers are missing: (m, f) and (n, f)."""

    request: Request[Any]
    answer: Answer
    factors: Factors
    query_missing: NDArray[np.bool_]
    missing: NDArray[np.bool_]

    @classmethod
    def of(cls, request: Request[Any], answer: Answer) -> "_Mixture":
        factors = request.factors
        assert factors is not None
        return cls(request, answer, factors, *factors.missing(request.points.shape[1]))

    def of_group(self, rows: NDArray[np.intp]) -> Any:
        """The answer for queries of one group."""
        request, factors, first = self.request, self.factors, rows[0]
        moves, log_factor = [], np.zeros(len(request.points))
        of_each = zip(factors.categories, factors.scales, factors.query[first], factors.points.T, strict=True)
        for category, scale, code, codes in of_each:
            moves.append(category.steps(code, codes))
            log_factor += request.power * category.log_factor(moves[-1], float(scale))
        steps = np.stack(moves)
        weighted = request.columns[0] > 0
        if request.exclude_self:
            weighted[rows] = False  # the group itself is a part of its own
        counted = weighted & np.isfinite(log_factor)
        parts = self._by_missing(counted, log_factor, steps, first)
        if request.exclude_self:
            own = np.zeros(len(rows))
            parts.append(_Part(rows, own, steps[:, rows], self.query_missing[first], exclude_self=True))
        found = self._merged(rows, parts)
        lost = ~(found.values[:, 0] > 0)
        if lost.any() and weighted.any():
            far = steps.sum(axis=0)
            nearest = weighted & (far == far[weighted].min())
            parts = self._by_missing(nearest, np.zeros(len(far)), steps, first)
            instead = self._merged(rows[lost], parts)
            for field in fields(found):
                getattr(found, field.name)[lost] = getattr(instead, field.name)
            found.log_scale[lost] = -np.inf
            if isinstance(found, Gradients):
                found.gradients[lost] = 0.0
        return found

    def _by_missing(
        self, counted: NDArray[np.bool_], log_factor: Array, steps: NDArray[np.int64], first: int
    ) -> list[_Part]:
        """The parts of points that lack the same numbers."""
        chosen = np.flatnonzero(counted)
        if len(chosen) == 0:
            return [_Part(chosen, log_factor[chosen], steps[:, chosen], self.query_missing[first])]
        patterns, which = np.unique(self.missing[chosen], axis=0, return_inverse=True)
        parts = []
        for number, pattern in enumerate(patterns):
            points = chosen[which.reshape(-1) == number]
            left_out = pattern | self.query_missing[first]
            parts.append(_Part(points, log_factor[points], steps[:, points], left_out))
        return parts

    def _merged(self, rows: NDArray[np.intp], parts: list[_Part]) -> Any:
        """One answer for queries from those over several parts of the points."""
        answers = [self._of_part(rows, part) for part in parts]
        if len(answers) == 1:
            return answers[0]
        seen = np.stack([found.values[:, 0] > 0 for found in answers])
        scales = np.where(seen, [found.log_scale for found in answers], -np.inf)
        top = scales.max(axis=0)
        share = np.exp(scales - np.where(np.isneginf(top), 0.0, top))
        empty = np.isneginf(top)
        if empty.any():  # no weight in any part: the nearest point of all
            reach = np.stack([self._reach(rows[empty], part) for part in parts])
            share[:, empty] = seen[:, empty] & (reach <= reach.min(axis=0) * (1 + 1e-12))

        def total(name: str) -> Array:
            return sum(
                np.reshape(weight, (-1,) + (1,) * (getattr(found, name).ndim - 1)) * getattr(found, name)
                for weight, found in zip(share, answers, strict=True)
            )

        names = [field.name for field in fields(answers[0])]
        return type(answers[0])(*(top if name == "log_scale" else total(name) for name in names))

    def _of_part(self, rows: NDArray[np.intp], part: _Part) -> Any:
        """The answer for queries over one part of the points, with all derivatives."""
        request, top = self.request, part.log_factor.max() if len(part.chosen) else 0.0
        columns = request.columns[:, part.chosen] * np.exp(part.log_factor - top)
        gradient = request.quantity in (BandwidthGradients, LineGradients)
        moving = []  # categories by whose scale the factors can change
        if gradient and not part.exclude_self:
            scales = enumerate(self.factors.scales)
            moving = [k for k, scale in scales if 0 < scale < np.inf and part.steps[k].any()]
        sub = self._numbers(rows, part, columns)
        by_category: list[Array] = []
        if request.quantity is BandwidthGradients and moving:
            c = len(columns)
            stacked = np.concatenate([columns, *(part.steps[k] * columns for k in moving)])
            found = self._answered(replace(sub, columns=stacked), part)
            by_category = [found.values[:, c * (k + 1) : c * (k + 2)] for k in range(len(moving))]
            found = BandwidthGradients(found.values[:, :c], found.log_scale, found.gradients[:, :, :c])
        else:
            found = self._answered(sub, part)
            by_category = [self._off_lines(sub, part, k, found.log_scale) for k in moving]
        if gradient:
            f = request.points.shape[1]
            everywhere = np.zeros((len(rows), f + len(self.factors.scales), len(columns)))
            everywhere[:, :f] = found.gradients
            for k, change in zip(moving, by_category, strict=True):
                known = ~found.no_support[:, None]
                everywhere[:, f + k] = np.where(known, change / self.factors.scales[k], 0.0)
            found = replace(found, gradients=everywhere)
        return replace(found, log_scale=found.log_scale + top)

    def _numbers(self, rows: NDArray[np.intp], part: _Part, columns: Array) -> Request[Any]:
        """The request over numbers alone."""
        request = self.request
        points = request.points[part.chosen]
        query = points if part.exclude_self else request.query[rows]
        for numbers in (query, points):
            numbers[:, part.left_out] = 0.0
        lines = request.lines
        return replace(
            request,
            query=query,
            points=points,
            columns=columns,
            query_scale=None if request.query_scale is None else request.query_scale[rows],
            exclude_self=part.exclude_self,
            lines=None if lines is None else Lines(lines.row[rows], lines.coefficients[rows]),
            factors=None,
        )

    def _answered(self, sub: Request[Any], part: _Part) -> Any:
        counts = ~part.left_out & np.isfinite(sub.bandwidth)
        return self.answer(sub) if counts.any() and len(sub.points) else table(sub)

    def _off_lines(self, sub: Request[Any], part: _Part, k: int, log_scale: Array) -> Array:
        """(m, c): Σ_j s κ C_0j (a · z) (y_j − β · z) with the steps s of category k, relative to log_scale.

        z = (1, x_j − q), as for `LineGradients`; the moments have the weights s C_0j.
        """
        assert sub.lines is not None
        most = part.steps[k].max()
        moments = self._answered(
            replace(sub, quantity=Moments, columns=sub.columns * (part.steps[k] / most), lines=None), part
        )
        a, beta = sub.lines.row, sub.lines.coefficients  # (m, 1 + f), (m, 1 + f, c − 1)
        # Sums are of q − x_j = −(x_j − q).
        first, second = -moments.first, moments.second
        with_line = a[:, :1] * moments.values + np.einsum("mf,mfc->mc", a[:, 1:], first)  # Σ w (a · z) C
        moved = a[:, :1, None] * first[:, :, :1] + np.einsum("mfg,mg->mf", second, a[:, 1:])[:, :, None]
        # Σ w (a · z) z, (m, 1 + f)
        leaning = np.concatenate([with_line[:, :1], moved[:, :, 0]], axis=1)
        result = np.concatenate(
            [
                np.einsum("mz,mz->m", leaning, a)[:, None],
                with_line[:, 1:] - np.einsum("mz,mzc->mc", leaning, beta),
            ],
            axis=1,
        )
        known = np.isfinite(moments.log_scale) & np.isfinite(log_scale)
        factor = np.zeros(len(known))
        factor[known] = most * np.exp(moments.log_scale[known] - log_scale[known])
        return result * factor[:, None]

    def _reach(self, rows: NDArray[np.intp], part: _Part) -> Array:
        """(m,) distances, in bandwidths, to the nearest point of a part that has weight."""
        request = self.request
        used = ~part.left_out & np.isfinite(request.bandwidth)
        unit = request.bandwidth[used]
        chosen = part.chosen[request.columns[0, part.chosen] > 0]
        if not used.any() or len(chosen) == 0:
            return np.full(len(rows), 0.0 if len(chosen) else np.inf)
        tree = cKDTree(request.points[chosen][:, used] / unit)
        distances, _ = tree.query(request.query[rows][:, used] / unit, k=[1, 2])
        sees_itself = part.exclude_self & (request.columns[0, rows] > 0)
        return np.where(sees_itself, distances[:, 1], distances[:, 0])


def table(request: Request[Any]) -> Any:
    """The sums of a request where no number counts: of the columns, times κ(0)."""
    m, (c, _), f = len(request.query), request.columns.shape, request.points.shape[1]
    sums = np.repeat(request.columns.sum(axis=1)[None], m, axis=0)
    if request.exclude_self:
        weighted = request.columns[0] > 0
        sums -= request.columns.T
        if weighted.sum() == 1:
            sums[weighted] = 0.0
    log_height = log_values(request.kernel, np.zeros(()))
    log_scale = np.where(sums[:, 0] > 0, request.power * log_height, -np.inf)
    if request.quantity is Sums:
        return Sums(sums, log_scale)
    if request.quantity is Moments:
        return Moments(sums, log_scale, np.zeros((m, f, c)), np.zeros((m, f, f)))
    return request.quantity(sums, log_scale, np.zeros((m, f, c)))

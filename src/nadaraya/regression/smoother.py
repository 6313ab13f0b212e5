"""A kernel smoother: points, kernel and bandwidths, from which all fits, means and gradients come.

`local` gets a fit and its variance from sums; of a quadratic, or of the derivative of a mean, these sums
would be many. There the equivalent kernels L_j(x) themselves are written out with PyTorch for blocks of
queries, O(n + m) in memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nadaraya.kernels import Kernel
from nadaraya.regression.categories import Factors, codes_of
from nadaraya.regression.local import (
    LEVEL,
    LEVEL_OF_POLYNOMIALS,
    TINY,
    LocalFit,
    damped_gradients,
    damped_inverse,
    is_damped,
    local_fit,
)
from nadaraya.regression.requests import (
    Array,
    BandwidthGradients,
    LineGradients,
    Lines,
    Means,
    Moments,
    PositionGradients,
    R,
    Request,
    Sums,
)
from nadaraya.regression.rules import log_values
from nadaraya.regression.sample import NeighbourScale, Sample
from nadaraya.regression.sums import compute
from nadaraya.regression.torch_sums import Job


@dataclass(frozen=True)
class Smoother:
    """A smoother that fits a constant or a line at every query.

    Queries X are (m, d) as the user gave them, or None for the points themselves; columns are (p, n).
    """

    sample: Sample
    kernel: Kernel  # κ, float64
    bandwidth: NDArray[np.float64]  # (d,) h, and (K,) scales of the categories
    degree: int = 0  # 1 for local linear fits
    neighbours: NeighbourScale | None = None  # the local scale of the bandwidth; None for 1

    def request(
        self,
        quantity: type[R],
        X: Array | None,
        columns: Array | None = None,
        weight: Array | None = None,
        **options: Any,
    ) -> Request[R]:
        """For sums of s, s C_1, s C_2, …; `weight` (n,) takes the place of the sample's weights s."""
        sample = self.sample
        query = sample.x if X is None else sample.centred(X)
        weight = sample.weight if weight is None else weight
        scale = None
        if self.neighbours is not None:
            scale = self.neighbours.of_points if X is None else self.neighbours.at(query)
        return Request(
            quantity,
            query,
            sample.x,
            weight[None] if columns is None else np.concatenate([weight[None], weight * columns]),
            self.kernel,
            self.bandwidth[: sample.x.shape[1]],
            query_scale=scale,
            device=sample.device,
            factors=self._factors(X),
            **options,
        )

    def answer(self, quantity: type[R], X: Array | None, columns: Array | None = None, **options: Any) -> R:
        """The answer to a `request` with these arguments."""
        return compute(self.request(quantity, X, columns, **options), self.sample.report)

    def fit(self, X: Array | None, columns: Array, exclude_self: bool = False) -> LocalFit:
        """Fits at X; with exclude_self at the points, each without itself."""
        return local_fit(self.answer(self._fitted, X, columns, exclude_self=exclude_self))

    def fit_with_gradients(self, columns: Array, exclude_self: bool) -> tuple[LocalFit, Array]:
        """Fits at the points and (n, d, 1 + p) their gradients by log bandwidth.

        Of the 1 + p the first is that of −log L_ii, times a_0; the others are those of the predictions.
        """
        if self.degree == 0:
            sums = self.answer(BandwidthGradients, None, columns, exclude_self=exclude_self)
            fit, gradients = local_fit(sums), sums.gradients.copy()
            gradients[:, :, 1:] -= fit.mean[:, None] * gradients[:, :, :1]
        else:
            moments = self.answer(Moments, None, columns, exclude_self=exclude_self)
            fit = local_fit(moments)
            assert fit.slope is not None
            lines = Lines(fit.row, np.concatenate([fit.mean[:, None], fit.slope], axis=1))
            gradients = self._line_gradients(columns, lines, exclude_self)
            damped = is_damped(moments)
            if damped.any():
                gradients = gradients.copy()
                gradients[damped] = self._damped_gradients(moments, damped, columns, exclude_self)
        return fit, gradients / fit.mass[:, None, None]

    def _line_gradients(self, columns: Array, lines: Lines, exclude_self: bool) -> Array:
        return self.answer(LineGradients, None, columns, exclude_self=exclude_self, lines=lines).gradients

    def _damped_gradients(
        self, moments: Moments, damped: NDArray[np.bool_], columns: Array, exclude_self: bool
    ) -> Array:
        """`damped_gradients` of the queries in `damped`, from the derivatives of all moments.

        These are of lines with one coefficient each, of leaning 1 or x_j − x and value −1 or x − x_j, for
        zeros.
        """
        (p, n), d = columns.shape, self.sample.x.shape[1]
        with_zeros = np.concatenate([np.zeros((1, n)), columns, np.zeros((d, n))])
        coefficients = np.zeros((n, 1 + d, 1 + p + d))
        coefficients[:, 0, 0] = -1.0
        coefficients[:, 1:, 1 + p :] = -np.eye(d)
        rows = np.tile(np.eye(1 + d)[:, None], (1, n, 1))
        parts = [
            self._line_gradients(with_zeros, Lines(row, coefficients), exclude_self)[damped, :, 1:]
            for row in rows
        ]
        by_bandwidth = np.stack(parts, axis=2)  # (m, d, 1 + d, 1 + p + d)
        chosen = Moments(*(getattr(moments, field.name)[damped] for field in fields(moments)))
        return damped_gradients(chosen, by_bandwidth[..., : 1 + p], by_bandwidth[:, :, 1:, 1 + p :])

    def slopes(self, X: Array, columns: Array) -> Array:
        """(m, d, p) slopes of the fit at X, of a local constant its derivatives; 0 where every weight is."""
        if self.degree:
            slope = self.fit(X, columns).slope
            assert slope is not None
            return slope
        sums = self.answer(PositionGradients, X, columns)
        mass, gradients = sums.values[:, :1], sums.gradients
        mean = sums.values[:, 1:] / mass
        return (gradients[:, :, 1:] - mean[:, None] * gradients[:, :, :1]) / mass[:, None]

    def means(self, X: Array | None, columns: Array) -> Means:
        """Weighted means of the columns, local constants whatever the degree."""
        return self.answer(Means, X, columns)

    def combined(self, fit: LocalFit, X: Array, columns: Array) -> Array:
        """Σ_j L_j C_j, (m, p), of other columns under the equivalent kernel of a fit at X."""
        return fit.combine(self.answer(self._fitted, X, columns))[:, 1:]

    def combined_variance(self, fit: LocalFit, X: Array | None, variance: Array | float = 1.0) -> Array:
        """Σ_j L_j² v_j, (m,), of a fit at X: the variance of predictions if v (n,) are the targets'."""
        weight = self.sample.weight**2 * variance
        return fit.combine_squares(self.answer(self._fitted, X, weight=weight, power=2))

    def peak(self) -> float:
        """κ(0)."""
        return float(np.exp(log_values(self.kernel, np.zeros(()))))

    def leverage(self, fit: LocalFit, peak: float | None = None) -> Array:
        """L_ii = s_i κ(0) a_0 / Z_i of fits at the points themselves, (n,); 0 for points without weight."""
        counted = (self.sample.weight > 0) & ~fit.no_support
        at_zero = self.sample.weight * (self.peak() if peak is None else peak) * fit.row[:, 0]
        # By its root twice: the reciprocal of a subnormal mass would overflow.
        root = np.exp(-0.5 * np.where(counted, fit.log_mass, 0.0))
        return np.where(counted, at_zero * root * root, 0.0)

    def _factors(self, X: Array | None) -> Factors | None:
        sample = self.sample
        if not sample.categories:
            return None
        codes = sample.codes if X is None else codes_of(sample.categories, X)
        return Factors(sample.categories, self.bandwidth[sample.x.shape[1] :], codes, sample.codes)

    @property
    def _fitted(self) -> type[Sums]:
        return Moments if self.degree else Sums


@dataclass(frozen=True)
class EquivalentKernels:
    """The weights of the targets in an estimate at each of m queries, with the kernel of a smoother."""

    smoother: Smoother
    X: Array | None  # (m, d) queries as the user gave them; None for the points themselves
    degree: int  # of the polynomial, whatever the smoother's
    # the estimate is the polynomial's slope at the query along this feature, for degree 0 the derivative of
    # the mean; None for its value
    feature: int | None = None
    exclude_self: bool = False  # whether the estimates at the points are each without the point itself

    def combined(self, columns: Array) -> Array:
        """Σ_j L_j C_j, (m, p), of columns (p, n)."""
        return self._over_blocks(columns, power=1)

    def combined_variance(self, variance: Array) -> Array:
        """Σ_j L_j² v_j, (m,), for v (n,)."""
        return self._over_blocks(variance[None], power=2)[:, 0]

    def own(self) -> Array:
        """(n,) L_i of each point's own target; X is None."""
        parts = [weights[:, rows].diagonal().cpu().numpy() for rows, weights in self._blocks(self.job())]
        return np.concatenate(parts)

    def _over_blocks(self, columns: Array, power: int) -> Array:
        job = self.job()
        right = torch.tensor(columns.T, dtype=torch.float64, device=job.device)
        parts = [(weights**power @ right).cpu().numpy() for _, weights in self._blocks(job)]
        return np.concatenate(parts)

    def _blocks(self, job: Job) -> Iterator[tuple[slice, Tensor]]:
        d = job.points.shape[1]
        terms = sum(1 for _ in _monomials(d, self.degree))
        for rows in job.blocks(8 + 2 * d + 3 * terms):
            yield rows, self._weights(job, rows).double()

    def job(self) -> Job:
        request = self.smoother.request(Sums, self.X, exclude_self=self.exclude_self)
        # Rounding in float32 would be magnified by the differences that make slopes and curvatures.
        query, points = request.query.astype(float), request.points.astype(float)
        return Job(replace(request, query=query, points=points))

    def _weights(self, job: Job, rows: slice) -> Tensor:
        """(b, n) the equivalent kernels of some queries."""
        offsets, r = -job.offsets(rows), job.distances(rows)
        log_weights, slope = job.log_weights(r, self.degree == 0 and self.feature is not None)
        weights = job.shares(rows, r, log_weights)
        if self.degree == 0 and self.feature is not None:
            counts = (weights > 0) & (r > 0)
            per_distance = torch.where(counts, slope / torch.where(counts, r, 1.0), 0.0)
            stretch = (job.inverse[self.feature] * job.shrink[rows, None]).square()
            change = -per_distance * offsets[self.feature] * stretch
            return weights * (change - (weights * change).sum(dim=1, keepdim=True))
        if self.degree == 0 or not len(offsets):
            return weights
        powers = monomials(offsets.movedim(0, -1), self.degree)
        if self.feature is None:
            return value_weights(weights, powers, self.degree)
        about_centre, _, inverse, per_unit = _solved(weights, powers, self.degree)
        at = self.feature  # the features are the first terms
        return weights * (about_centre @ inverse[..., at, None])[..., 0] * per_unit[..., at]


@dataclass(frozen=True)
class PolynomialSmoother(Smoother):
    """A smoother of degree 2 or 3, whose equivalent kernels are written out."""

    def fit(self, X: Array | None, columns: Array, exclude_self: bool = False) -> LocalFit:
        constant = Smoother(self.sample, self.kernel, self.bandwidth, 0, self.neighbours)
        fit = constant.fit(X, columns, exclude_self)
        mean = self._kernels(X, exclude_self).combined(columns)
        return replace(fit, mean=np.where(fit.no_support[:, None], fit.mean, mean))

    def slopes(self, X: Array, columns: Array) -> Array:
        features = range(self.sample.x.shape[1])
        slopes = [EquivalentKernels(self, X, self.degree, feature).combined(columns) for feature in features]
        return np.where(self.means(X, columns).no_support[:, None, None], 0.0, np.stack(slopes, axis=1))

    def combined(self, fit: LocalFit, X: Array, columns: Array) -> Array:
        return self._kernels(X).combined(columns)

    def combined_variance(self, fit: LocalFit, X: Array | None, variance: Array | float = 1.0) -> Array:
        of_targets = np.broadcast_to(variance, len(self.sample.x)).astype(np.float64)
        return np.where(fit.no_support, 0.0, self._kernels(X).combined_variance(of_targets))

    def leverage(self, fit: LocalFit, peak: float | None = None) -> Array:
        counted = (self.sample.weight > 0) & ~fit.no_support
        return np.where(counted, self._kernels(None).own(), 0.0)

    def _kernels(self, X: Array | None, exclude_self: bool = False) -> EquivalentKernels:
        return EquivalentKernels(self, X, self.degree, exclude_self=exclude_self)


def monomials(offsets: Tensor, degree: int) -> Tensor:
    """(..., n, k): products of up to `degree` of the features of offsets (..., n, d), the features first."""
    columns = [offsets[..., list(which)].prod(dim=-1) for which in _monomials(offsets.shape[-1], degree)]
    return torch.stack(columns, dim=-1)


def _monomials(d: int, degree: int) -> Iterator[tuple[int, ...]]:
    for order in range(1, degree + 1):
        yield from combinations_with_replacement(range(d), order)


def value_weights(weights: Tensor, powers: Tensor, degree: int) -> Tensor:
    """Weights (b, n) of a local mean as those of the value at the query of a polynomial, by its monomials."""
    about_centre, centre, inverse, _ = _solved(weights, powers, degree)
    return weights * (1 - about_centre @ inverse @ centre.transpose(1, 2))[..., 0]


def _solved(weights: Tensor, powers: Tensor, degree: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Terms less their mean (b, n, k), that mean (b, 1, k), their covariance's inverse, and their units."""
    squares = (weights[..., None] * powers.square()).sum(dim=1, keepdim=True)
    per_unit = torch.where(squares > TINY, squares, 1.0).rsqrt()
    powers = powers * per_unit
    centre = weights[:, None] @ powers
    about_centre = powers - centre
    covariance = (weights[..., None] * about_centre).transpose(1, 2) @ about_centre
    inverse = damped_inverse(covariance, LEVEL if degree == 1 else LEVEL_OF_POLYNOMIALS)
    return about_centre, centre, inverse, per_unit

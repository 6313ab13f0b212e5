"""Equivalent kernels of local polynomials and of derivatives, written out for blocks of queries.

`local` gets a fit and its variance from sums; of a quadratic, or of the derivative of a mean, these sums
would be many. Here the weights L_j(x) themselves are made with PyTorch, O(n + m) in memory.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

import numpy as np
import torch
from torch import Tensor

from nadaraya.regression.local import TINY, DampedInverse, LocalFit
from nadaraya.regression.requests import Array, Sums
from nadaraya.regression.smoother import Smoother
from nadaraya.regression.torch_sums import Job


@dataclass(frozen=True)
class EquivalentKernels:
    """The weights of the targets in an estimate at each of m queries, for a smoother's kernel and bandwidths.

    Attributes:
        smoother: the smoother.
        X: (m, d) queries as the user gave them; None for the points themselves.
        degree: of the polynomial, whatever the smoother's.
        feature: the estimate is the polynomial's slope at the query along this feature, for degree 0 the
            derivative of the mean; None for its value.
        exclude_self: whether the estimates at the points are each without the point itself.
    """

    smoother: Smoother
    X: Array | None
    degree: int
    feature: int | None = None
    exclude_self: bool = False

    def combined(self, columns: Array) -> Array:
        """Σ_j L_j C_j, (m, p), of columns (p, n)."""
        return self._over_blocks(columns, power=1)

    def combined_variance(self, variance: Array) -> Array:
        """Σ_j L_j² v_j, (m,), for v (n,)."""
        return self._over_blocks(variance[None], power=2)[:, 0]

    def own(self) -> Array:
        """(n,) L_i of each point's own target; X is None."""
        parts = [weights[:, rows].diagonal().cpu().numpy() for rows, weights in self._blocks(self._job())]
        return np.concatenate(parts)

    def _over_blocks(self, columns: Array, power: int) -> Array:
        job = self._job()
        right = torch.tensor(columns.T, dtype=torch.float64, device=job.device)
        parts = [(weights**power @ right).cpu().numpy() for _, weights in self._blocks(job)]
        return np.concatenate(parts)

    def _blocks(self, job: Job) -> Iterator[tuple[slice, Tensor]]:
        d = job.points.shape[1]
        terms = sum(1 for _ in _monomials(d, self.degree))
        for rows in job.blocks(8 + 2 * d + 3 * terms):
            yield rows, self._weights(job, rows).double()

    def _job(self) -> Job:
        request = self.smoother.request(Sums, self.X, np.zeros((0, len(self.smoother.sample.x))))
        # Rounding in float32 would be magnified by the differences that make slopes and curvatures.
        query, points = request.query.astype(float), request.points.astype(float)
        return Job(replace(request, query=query, points=points, exclude_self=self.exclude_self))

    def _weights(self, job: Job, rows: slice) -> Tensor:
        """(b, n) the equivalent kernels of some queries."""
        offsets, r = [-offset for offset in job.offsets(rows)], job.distances(rows)
        log_weights, slope = job.log_weights(r, self.degree == 0 and self.feature is not None)
        weights = job.shares(rows, r, log_weights)
        if self.degree == 0 and self.feature is not None:
            counts = (weights > 0) & (r > 0)
            per_distance = torch.where(counts, slope / torch.where(counts, r, 1.0), 0.0)
            stretch = (job.inverse[self.feature] * job.shrink[rows, None]).square()
            change = -per_distance * offsets[self.feature] * stretch
            return weights * (change - (weights * change).sum(dim=1, keepdim=True))
        if self.degree == 0 or not offsets:
            return weights
        powers = monomials(torch.stack(offsets, dim=-1), self.degree)
        if self.feature is None:
            return value_weights(weights, powers)
        return slope_weights(weights, powers, self.feature)


@dataclass(frozen=True)
class PolynomialSmoother(Smoother):
    """A smoother of degree 2 or 3, whose equivalent kernels are written out."""

    def fit(self, X: Array | None, columns: Array, exclude_self: bool = False) -> LocalFit:
        fit = self._constant.fit(X, columns, exclude_self)
        mean = self._kernels(X, exclude_self).combined(columns)
        return replace(fit, mean=np.where(fit.no_support[:, None], fit.mean, mean))

    def combined(self, fit: LocalFit, X: Array, columns: Array) -> Array:
        return self._kernels(X).combined(columns)

    def combined_variance(self, fit: LocalFit, X: Array | None, variance: Array | float = 1.0) -> Array:
        of_targets = np.broadcast_to(variance, len(self.sample.x)).astype(np.float64)
        return np.where(fit.no_support, 0.0, self._kernels(X).combined_variance(of_targets))

    def leverage(self, fit: LocalFit, peak: float | None = None) -> Array:
        counted = (self.sample.weight > 0) & ~fit.no_support
        return np.where(counted, self._kernels(None).own(), 0.0)

    @property
    def _constant(self) -> Smoother:
        return Smoother(self.sample, self.kernel, self.bandwidth, 0, self.neighbours)

    def _kernels(self, X: Array | None, exclude_self: bool = False) -> EquivalentKernels:
        return EquivalentKernels(self, X, self.degree, exclude_self=exclude_self)


def monomials(offsets: Tensor, degree: int) -> Tensor:
    """(..., n, k): products of up to `degree` of the features of offsets (..., n, d), the features first."""
    columns = [offsets[..., list(which)].prod(dim=-1) for which in _monomials(offsets.shape[-1], degree)]
    return torch.stack(columns, dim=-1)


def _monomials(d: int, degree: int) -> Iterator[tuple[int, ...]]:
    for order in range(1, degree + 1):
        yield from combinations_with_replacement(range(d), order)


def value_weights(weights: Tensor, powers: Tensor) -> Tensor:
    """Weights (b, n) of a local mean as those of a local polynomial's value at the query.

    Args:
        weights: (b, n), of sum 1.
        powers: (b, n, k) the polynomial's terms but the constant, zero at the query.
    """
    about_centre, centre, inverse, _ = _solved(weights, powers)
    return weights * (1 - about_centre @ inverse @ centre.transpose(1, 2))[..., 0]


def slope_weights(weights: Tensor, powers: Tensor, term: int) -> Tensor:
    """(b, n): those of the coefficient of one term; arguments as for `value_weights`."""
    about_centre, _, inverse, per_unit = _solved(weights, powers)
    return weights * (about_centre @ inverse[..., term, None])[..., 0] * per_unit[..., term]


def _solved(weights: Tensor, powers: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Terms less their mean (b, n, k), that mean (b, 1, k), the inverse of their covariance, and their units.

    In units of the terms' size, with the damping of `local_fit` where points do not determine a polynomial.
    """
    squares = (weights[..., None] * powers.square()).sum(dim=1, keepdim=True)
    per_unit = torch.where(squares > TINY, squares, 1.0).rsqrt()
    powers = powers * per_unit
    centre = weights[:, None] @ powers
    about_centre = powers - centre
    covariance = (weights[..., None] * about_centre).transpose(1, 2) @ about_centre
    return about_centre, centre, damped_inverse(covariance), per_unit


def damped_inverse(covariance: Tensor) -> Tensor:
    """`DampedInverse` of matrices (b, k, k), with its derivative."""
    damped = DampedInverse.of(covariance.detach().cpu().numpy())
    inverse: Tensor = torch.from_numpy(damped.inverse).to(covariance)
    if not covariance.requires_grad:
        return inverse
    directions, slopes = (
        torch.from_numpy(array).to(covariance) for array in (damped.directions, damped.slopes())
    )
    # Adds zero, with the derivative of the inverse.
    change = directions.transpose(1, 2) @ (covariance - covariance.detach()) @ directions
    return inverse + directions @ (slopes * change) @ directions.transpose(1, 2)

"""A kernel smoother: points, kernel and bandwidths, from which all fits, means and gradients come."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nadaraya.kernels import Kernel
from nadaraya.regression.local import LocalFit, damped_gradients, is_damped, local_fit
from nadaraya.regression.neighbours import NeighbourScale
from nadaraya.regression.requests import (
    Array,
    BandwidthGradients,
    LineGradients,
    Lines,
    Means,
    Moments,
    R,
    Request,
    Sums,
)
from nadaraya.regression.rules import values
from nadaraya.regression.sample import Sample
from nadaraya.regression.sums import compute


@dataclass(frozen=True)
class Smoother:
    """A smoother that fits a constant or a line at every query.

    Queries X are (m, d) as the user gave them, or None for the points themselves; columns are (p, n).

    Attributes:
        sample: the points.
        kernel: κ, float64.
        bandwidth: (d,) h.
        degree: 0 for local constant, 1 for local linear fits.
        neighbours: the local scale of the bandwidth; None for 1.
    """

    sample: Sample
    kernel: Kernel
    bandwidth: NDArray[np.float64]
    degree: int = 0
    neighbours: NeighbourScale | None = None

    def request(
        self, quantity: type[R], X: Array | None, columns: Array, weight: Array | None = None
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
            np.concatenate([weight[None], weight * columns]),
            self.kernel,
            self.bandwidth,
            query_scale=scale,
            device=sample.device,
        )

    def compute(self, request: Request[R]) -> R:
        """The answer to one of these requests."""
        return compute(request, self.sample.report)

    def fit(self, X: Array | None, columns: Array, exclude_self: bool = False) -> LocalFit:
        """Fits at X; with exclude_self at the points, each without itself."""
        request = replace(self.request(self._fitted, X, columns), exclude_self=exclude_self)
        return local_fit(self.compute(request))

    def fit_with_gradients(self, columns: Array, exclude_self: bool) -> tuple[LocalFit, Array]:
        """Fits at the points and (n, d, 1 + p) their gradients by log bandwidth.

        Of the 1 + p the first is that of −log L_ii, times a_0; the others are those of the predictions.
        """
        if self.degree == 0:
            request = self.request(BandwidthGradients, None, columns)
            sums = self.compute(replace(request, exclude_self=exclude_self))
            fit, gradients = local_fit(sums), sums.gradients.copy()
            gradients[:, :, 1:] -= fit.mean[:, None] * gradients[:, :, :1]
        else:
            moments = self.compute(replace(self.request(Moments, None, columns), exclude_self=exclude_self))
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
        request = self.request(LineGradients, None, columns)
        return self.compute(replace(request, exclude_self=exclude_self, lines=lines)).gradients

    def _damped_gradients(
        self, moments: Moments, damped: NDArray[np.bool_], columns: Array, exclude_self: bool
    ) -> Array:
        """`damped_gradients` of the queries in `damped`.

        Lines with one coefficient each, of leaning 1 or x_j − x, and for zeros in the place of the targets of
        value −1 or x − x_j, give the derivatives of all moments.
        """
        (p, n), d = columns.shape, len(self.bandwidth)
        with_zeros = np.concatenate([columns, np.zeros((1 + d, n))])
        coefficients = np.zeros((n, 1 + d, p + 1 + d))
        coefficients[:, :, p:] = -np.eye(1 + d)
        rows = np.tile(np.eye(1 + d)[:, None], (1, n, 1))
        parts = [
            self._line_gradients(with_zeros, Lines(row, coefficients), exclude_self)[damped, :, 1:]
            for row in rows
        ]
        by_bandwidth = np.stack(parts, axis=2)  # (m, d, 1 + d, p + 1 + d)
        chosen = Moments(
            *(getattr(moments, name)[damped] for name in ("values", "log_scale", "first", "second"))
        )
        return damped_gradients(chosen, by_bandwidth[..., :p], by_bandwidth[..., p:])

    def means(self, X: Array | None, columns: Array, weight: Array | None = None) -> Means:
        """Weighted means of the columns, local constants whatever the degree."""
        return self.compute(self.request(Means, X, columns, weight))

    def combined(self, fit: LocalFit, X: Array, columns: Array) -> Array:
        """Σ_j L_j C_j, (m, p), of other columns under the equivalent kernel of a fit at X."""
        return fit.combine(self.compute(self.request(self._fitted, X, columns)))[:, 1:]

    def combined_variance(self, fit: LocalFit, X: Array | None, variance: Array | float = 1.0) -> Array:
        """Σ_j L_j² v_j, (m,), of a fit at X: the variance of predictions if v (n,) are the targets'."""
        weight = self.sample.weight**2 * variance
        request = self.request(self._fitted, X, np.zeros((0, len(weight))), weight)
        return fit.combine_squares(self.compute(replace(request, power=2)))

    def peak(self) -> float:
        """κ(0)."""
        return float(values(self.kernel, np.zeros(())))

    def leverage(self, fit: LocalFit, peak: float | None = None) -> Array:
        """L_ii = s_i κ(0) a_0 / Z_i of fits at the points themselves, (n,); 0 for points without weight.

        Args:
            fit: at the points.
            peak: κ(0) where it is known; few points are fitted in less time than PyTorch takes to find it.
        """
        counted = (self.sample.weight > 0) & ~fit.no_support
        at_zero = self.sample.weight * (self.peak() if peak is None else peak) * fit.row[:, 0]
        # By its root twice: the reciprocal of a subnormal mass would overflow.
        root = np.exp(-0.5 * np.where(counted, fit.log_mass, 0.0))
        return np.where(counted, at_zero * root * root, 0.0)

    @property
    def _fitted(self) -> type[Sums]:
        return Moments if self.degree else Sums

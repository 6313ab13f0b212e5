"""How far targets scatter about the curve, and how far the curve itself is uncertain."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from nadaraya.kernels import Kernel
from nadaraya.regression.criteria import leverage
from nadaraya.regression.local import LocalFit, local_fit, what_to_sum
from nadaraya.regression.neighbours import NeighbourScale
from nadaraya.regression.sample import Sample
from nadaraya.regression.sums import PairSums

Array = NDArray[np.floating]

# A residual says nothing of the noise if its own point made more than all but this part of the fit.
_LEAST_FREEDOM = 1e-6


@dataclass(frozen=True)
class View:
    """A fitted smoother: points, kernel and bandwidths."""

    sample: Sample
    kernel: Kernel
    bandwidth: NDArray[np.float64]
    degree: int
    neighbours: NeighbourScale | None

    def sums(
        self,
        X: Array | None,
        columns: Array,
        *,
        what: str,
        power: int = 1,
        weight: Array | None = None,
        exclude_self: bool = False,
        ratios: bool = False,
        report: Callable[[str], None] | None = None,
    ) -> PairSums:
        """`Sample.sums` with the kernel, the bandwidth and its local scale."""
        scale = None
        if self.neighbours is not None:
            scale = self.neighbours.of_points if X is None else self.neighbours.at(self.sample.centred(X))
        return self.sample.sums(
            X,
            columns,
            self.kernel,
            self.bandwidth,
            what=what,
            power=power,
            weight=weight,
            query_scale=scale,
            exclude_self=exclude_self,
            ratios=ratios,
            report=report,
        )


@dataclass(frozen=True)
class Noise:
    """Residuals that have the variance of the noise, if the curve is right.

    Attributes:
        residuals: (n, p) y − f(x), divided by √(1 − 2 L_ii + Σ_j L_ij²), what the fit leaves of unit noise.
        informative: (n,) 1 where they say something; 0 for points that determine their own fit, or have no
            weight.
    """

    residuals: Array
    informative: NDArray[np.float64]

    @classmethod
    def of(cls, view: View, columns: Array, weight: Array) -> "Noise":
        """From the targets (p, n) less their mean, and the sample weights (n,)."""
        what = what_to_sum(view.degree)
        fit = local_fit(view.sums(None, columns, what=what), view.degree, view.sample.spread)
        squares = fit.combine_squares(view.sums(None, columns[:0], what=what, power=2))
        own = leverage(view.sample, view.kernel, fit)
        freedom = 1.0 - 2.0 * own + squares
        informative = (weight > 0) & ~fit.empty & (freedom > _LEAST_FREEDOM)
        scale = np.sqrt(np.where(informative, freedom, 1.0))
        residuals = np.where(informative[:, None], (columns.T - fit.mean) / scale[:, None], 0.0)
        return cls(residuals, informative.astype(np.float64))

    def variance(self, view: View, X: Array | None) -> Array:
        """(m, p) local variances: squared residuals smoothed with the weights of the regression."""
        squares = self.residuals.T**2
        weight = view.sample.weight * self.informative
        if not weight.any():
            return np.zeros((len(view.sample.x) if X is None else len(X), len(squares)))
        sums = view.sums(X, squares, what="values", weight=weight, ratios=True)
        variance: Array = sums.values[:, 1:] / sums.values[:, :1]
        return np.maximum(variance, 0.0)


def pointwise(view: View, X: Array, fit: LocalFit, noise: Noise, level: float) -> tuple[Array, Array]:
    """Half-widths below and above, (m, p): z √(Σ_j L_j(x)² σ_j²)."""
    at_points = noise.variance(view, None)
    half = np.empty((len(X), at_points.shape[1]))
    for target in range(at_points.shape[1]):
        squares = view.sums(
            X,
            np.zeros((0, len(at_points))),
            what=what_to_sum(view.degree),
            power=2,
            weight=view.sample.weight**2 * _relative(at_points[:, target]),
        )
        half[:, target] = np.sqrt(fit.combine_squares(squares) * at_points[:, target].max())
    half *= NormalDist().inv_cdf(0.5 + level / 2)
    half[fit.empty] = np.nan
    return half, half


def bootstrap(
    view: View,
    X: Array,
    fit: LocalFit,
    noise: Noise,
    level: float,
    draws: int,
    generator: np.random.RandomState,
    simultaneous: bool,
) -> tuple[Array, Array]:
    """Half-widths below and above, (m, p), of the wild bootstrap.

    The smoother is linear: the smooth of y* = f + e v is that of f plus that of e v, so that all draws are
    columns of one pass over the pairs.
    """
    signs = generator.choice([-1.0, 1.0], size=(draws, len(noise.residuals)))
    tail = (1.0 - level) / 2
    below, above = np.empty((2, len(X), noise.residuals.shape[1]))
    for target, residuals in enumerate(noise.residuals.T):
        sums = view.sums(X, signs * residuals, what=what_to_sum(view.degree))
        deviations = fit.combine(sums)[:, 1:]  # (m, draws)
        if simultaneous:
            spread = deviations.std(axis=1)
            inverse = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)
            largest = np.abs(deviations * inverse[:, None]).max(axis=0, initial=0.0)
            below[:, target] = above[:, target] = np.quantile(largest, level) * spread
        else:
            low, high = np.quantile(deviations, [tail, 1.0 - tail], axis=1)
            below[:, target], above[:, target] = np.maximum(high, 0.0), np.maximum(-low, 0.0)
    below[fit.empty] = above[fit.empty] = np.nan
    return below, above


def _relative(variance: Array) -> Array:
    greatest = variance.max()
    relative: Array = variance / greatest if greatest > 0 else np.zeros_like(variance)
    return relative

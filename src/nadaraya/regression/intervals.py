"""How far targets scatter about the curve, and how far the curve itself is uncertain."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from nadaraya.regression.local import LocalFit
from nadaraya.regression.requests import Array
from nadaraya.regression.smoother import Smoother

# A residual says nothing of the noise if its own point made more than all but this part of the fit.
_LEAST_FREEDOM = 1e-6


@dataclass(frozen=True)
class Noise:
    """Residuals that have the variance of the noise at average weight, if the curve is right.

    Targets have variances in inverse proportion to their weights w, here of mean 1.

    Attributes:
        residuals: (n, p) y − f(x), divided by √((1 − 2 L_ii) / w_i + Σ_j L_ij² / w_j), what the fit leaves of
            unit noise.
        informative: (n,) 1 where they say something; 0 for points that determine their own fit, or have no
            weight.
        relative: (n,) variances of the targets over that at average weight, 1 / w; 0 where w is.
    """

    residuals: Array
    informative: NDArray[np.float64]
    relative: NDArray[np.float64]

    @classmethod
    def of(cls, smoother: Smoother, targets: Array) -> "Noise":
        """From the targets (n, p) less their mean."""
        fit, weight = smoother.fit(None, targets.T), smoother.sample.counts
        weighted = weight > 0
        relative = np.divide(weight.sum() / weighted.sum(), weight, out=np.zeros_like(weight), where=weighted)
        variance = (1.0 - 2.0 * smoother.leverage(fit)) * relative
        variance += smoother.combined_variance(fit, None, relative)
        informative = weighted & ~fit.no_support & (variance > _LEAST_FREEDOM * relative)
        if not informative.any():
            warnings.warn(
                "the fit goes through every observation, which leaves no residual to judge the noise by: "
                "standard deviations and bands are NaN; a larger bandwidth has them",
                stacklevel=4,
            )
        scale = np.sqrt(np.where(informative, variance, 1.0))
        residuals = np.where(informative[:, None], (targets - fit.mean) / scale[:, None], 0.0)
        return cls(residuals, informative.astype(np.float64), relative)

    def variance(self, smoother: Smoother, X: Array | None) -> Array:
        """(m, p) local variances: squared residuals smoothed with the weights of the regression."""
        squares = self.residuals.T**2
        weight = smoother.sample.weight * self.informative
        if not weight.any():
            return np.full((len(smoother.sample.x) if X is None else len(X), len(squares)), np.nan)
        return np.maximum(smoother.means(X, squares, weight).values, 0.0)


@dataclass(frozen=True)
class Curve:
    """A curve at queries X (m, d), and the noise of the targets it was fitted to."""

    smoother: Smoother
    X: Array
    fit: LocalFit
    noise: Noise


def pointwise(curve: Curve, level: float) -> tuple[Array, Array]:
    """Half-widths below and above, (m, p): z √(Σ_j L_j(x)² σ_j²)."""
    at_points = curve.noise.variance(curve.smoother, None) * curve.noise.relative[:, None]
    greatest = at_points.max(axis=0)
    relative = at_points / np.where(greatest > 0, greatest, 1.0)
    variance = np.stack(
        [curve.smoother.combined_variance(curve.fit, curve.X, column) for column in relative.T], axis=1
    )
    half = NormalDist().inv_cdf(0.5 + level / 2) * np.sqrt(variance * greatest)
    half[curve.fit.no_support] = np.nan
    return half, half


def bootstrap(curve: Curve, level: float, signs: Array) -> tuple[Array, Array]:
    """Half-widths below and above, (m, p), of each point alone, by the wild bootstrap.

    Args:
        curve: the curve.
        level: probability of covering.
        signs: (draws, n) −1 or 1.
    """
    below, above = np.empty((2, len(curve.X), curve.noise.residuals.shape[1]))
    tail = (1.0 - level) / 2
    for target, deviations in enumerate(_deviations(curve, signs)):
        low, high = np.quantile(deviations, [tail, 1.0 - tail], axis=1)
        below[:, target], above[:, target] = np.maximum(high, 0.0), np.maximum(-low, 0.0)
    below[curve.fit.no_support] = above[curve.fit.no_support] = np.nan
    return below, above


def simultaneous(curve: Curve, level: float, signs: Array) -> tuple[Array, Array]:
    """Half-widths as of `bootstrap`, but of a band that covers all points at once."""
    half = np.empty((len(curve.X), curve.noise.residuals.shape[1]))
    for target, deviations in enumerate(_deviations(curve, signs)):
        spread = deviations.std(axis=1)
        inverse = np.divide(1.0, spread, out=np.zeros_like(spread), where=spread > 0)
        largest = np.abs(deviations * inverse[:, None]).max(axis=0, initial=0.0)
        half[:, target] = np.quantile(largest, level) * spread
    half[curve.fit.no_support] = np.nan
    return half, half


def _deviations(curve: Curve, signs: Array) -> Iterator[Array]:
    """For every target (m, draws), how far the smooth of y* = f + e v is from that of f.

    The smoother is linear, so that all draws are columns of one pass over the pairs.
    """
    known = 1.0 if curve.noise.informative.any() else np.nan
    for residuals in curve.noise.residuals.T * np.sqrt(curve.noise.relative) * known:
        yield curve.smoother.combined(curve.fit, curve.X, signs * residuals)

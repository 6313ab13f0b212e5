"""Scatter of targets about the curve, and uncertainty of the curve itself.

An estimate linear in the targets, Σ_j L_j(x) y_j, has the variance Σ_j L_j(x)² σ_j². The local variance σ²(x)
is estimated from few residuals where the bandwidth is small, so that (estimate − its mean) / standard error
has the tails of Student's t rather than of the normal distribution. Quantiles are those of t with local
degrees of freedom, or come from a bootstrap in which the standard error is estimated anew for every draw.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from nadaraya.regression.requests import Array
from nadaraya.regression.smoother import Smoother

# A residual says nothing of the noise if its own point made more than all but this part of the fit.
_LEAST_FREEDOM = 1e-6
_LEAST_WEIGHT = 1e-100  # of the greatest
# Draws of several targets are taken together while they are no more numbers than this.
_NUMBERS = 2**23


@dataclass(frozen=True)
class Noise:
    """Residuals that have the variance of the noise at average weight, if the curve is right.

    Targets have variances in inverse proportion to their weights w, here of mean 1.
    """

    smoother: Smoother  # of the regression
    residuals: Array  # (n, p) y − f(x), standardised by what the fit leaves of unit noise
    left: Array  # (n,) that is (1 − 2 L_ii) / w_i + Σ_j L_ij² / w_j; 1 for points that are not informative
    # (n,) 1 where they say something; 0 for points that determine their own fit, or have no weight
    informative: NDArray[np.float64]
    # (n,) variances of the targets over that at average weight, 1 / w; 0 where w is
    relative: NDArray[np.float64]
    within: Array  # (n,) degrees of freedom within each target, if that is a mean of several; else 0

    @classmethod
    def of(
        cls, smoother: Smoother, targets: Array, squares: Array, within: Array, robust: bool = False
    ) -> "Noise":
        """From the targets (n, p) less their mean; robust: `bisquare_weights` are part of the weights.

        Of those that are means of several, squares are Σ w (y − ȳ)² within them, (n, p); else 0.
        """
        fit, weight = smoother.fit(None, targets.T), smoother.sample.counts
        weighted = weight > 0
        least = np.maximum(weight, _LEAST_WEIGHT * weight.max())  # its reciprocal does not overflow
        relative = np.where(weighted, weight.sum() / weighted.sum() / least, 0.0)
        left = (1.0 - 2.0 * smoother.leverage(fit)) * relative
        left += smoother.combined_variance(fit, None, relative)
        all_left = left + within * relative
        informative = weighted & ~fit.no_support & (all_left > _LEAST_FREEDOM * (1.0 + within) * relative)
        if not informative.any():
            warnings.warn(
                "the fit goes through every observation, which leaves no residual to judge the noise by: "
                "standard deviations and bands are NaN; a larger bandwidth has them",
                stacklevel=4,
            )
        left = np.where(informative, left, 1.0)
        residuals = targets - fit.mean
        noise = cls(smoother, residuals, left, informative.astype(np.float64), relative, within)
        squares = noise._squares(residuals, squares) / (BISQUARE if robust else 1.0)
        return replace(noise, residuals=np.copysign(np.sqrt(squares), residuals))

    def variance(self, X: Array | None) -> Array:
        """(m, p) local variances: squared residuals smoothed with the weights of the regression."""
        return self._smoothed(X, self.residuals.T**2)

    def freedom(self, X: Array) -> Array:
        """(m,) degrees of freedom of these variances, at least 1.

        1 / Σ_i W_i² / v_i with W the weights of the smooth of the squares and v as in `left` at unit weight:
        the approximation of Satterthwaite (1946) with the correlations of the residuals as of a projection,
        for which it is n − p if all leverages are equal.
        """
        if not self.informative.any():
            return np.full(len(X), np.nan)
        smoother = self._of_squares
        weights = smoother.fit(X, np.zeros((0, len(self.left))))
        # Degrees of freedom of each squared residual; inf where it says nothing.
        own = self.within + self.left / np.where(self.relative > 0, self.relative, 1.0)
        own = np.where(self.informative > 0, own, np.inf)
        of_one = smoother.combined_variance(weights, X, 1.0 / own)
        return 1.0 / np.where(weights.no_support, 1.0, np.clip(of_one, 1e-300, 1.0))

    def draws(
        self, count: int, at_once: int, generator: np.random.RandomState
    ) -> Iterator[tuple[Array, Array]]:
        """Noise like that of the data and its squared residuals, (draws, n), for some targets at a time.

        Residuals over the local standard deviation, of mean 0 and variance 1 as a whole, are drawn with
        replacement, `count` times and alike for all targets, and multiplied by that of the point where they
        land.
        """
        known = np.flatnonzero(self.informative) if self.informative.any() else np.arange(len(self.left))
        chosen = generator.choice(known, size=(count, len(self.left)))
        variance = self.variance(None)
        scaled = _ratio(self.residuals, np.sqrt(variance))
        scaled = _ratio(scaled - scaled[known].mean(axis=0), scaled[known].std(axis=0))
        deviation = np.sqrt(variance * self.relative[:, None])
        for start in range(0, scaled.shape[1], at_once):
            targets = slice(start, start + at_once)
            noise = scaled.T[targets][:, chosen] * deviation.T[targets, None]
            noise = noise.reshape(-1, len(self.left))
            left_over = noise.T - self.smoother.fit(None, noise).mean
            squares = np.repeat(variance[:, targets], count, axis=1)
            if self.within.any():
                squares *= 2.0 * generator.standard_gamma(self.within[:, None] / 2.0, squares.shape)  # χ²
            else:
                squares[:] = 0.0
            yield noise, self._squares(left_over, squares).T

    def _squares(self, left_over: Array, within: Array) -> Array:
        """Squared residuals, both parts (n, draws), over their expectation for unit noise."""
        expected = self.left + self.within * self.relative
        return (left_over**2 + within * self.relative[:, None]) * (self.informative / expected)[:, None]

    def _smoothed(self, X: Array | None, squares: Array) -> Array:
        if not self.informative.any():
            return np.full((len(self.left) if X is None else len(X), len(squares)), np.nan)
        return np.maximum(self._of_squares.means(X, squares).values, 0.0)

    @cached_property
    def _of_squares(self) -> Smoother:
        sample = self.smoother.sample
        return replace(
            self.smoother, degree=0, sample=replace(sample, counts=sample.counts * self.informative)
        )


def _quantile(draws: Array, level: float) -> Array:
    """Over the last axis, of rank (B + 1) · level: one more draw is below it with this probability."""
    return np.quantile(draws, level, axis=-1, method="weibull")


def _ratio(above: Array, below: Array) -> Array:
    """above / below; 0 where that is 0."""
    return np.divide(above, below, out=np.zeros(np.broadcast(above, below).shape), where=below > 0)


@dataclass(frozen=True)
class Uncertainty:
    """Estimates at queries X (m, d), linear in targets with this noise."""

    combined: Callable[[Array], Array]  # (m, p) of columns (p, n) in the place of the targets
    combined_variance: Callable[[Array], Array]  # (m,) variances from those of the targets, (n,)
    noise: Noise  # of the targets
    X: Array

    @cached_property
    def deviation(self) -> Array:
        """(m, p) standard errors: √(σ²(x) Σ_j L_j(x)² / w_j)."""
        return np.sqrt(self.noise.variance(self.X)) * self._norm[:, None]

    def pointwise(self, level: float) -> Array:
        """Half-widths (m, p): the quantile of Student's t times the standard error."""
        return stdtrit(self.noise.freedom(self.X), 0.5 + level / 2)[:, None] * self.deviation

    def bootstrap(self, level: float, count: int, generator: np.random.RandomState) -> Array:
        """Half-widths (m, p), of each point alone, from the bootstrap's distribution of |t|."""
        ratios = [_quantile(ratio, level) for ratio in self._ratios(count, generator)]
        return np.concatenate(ratios, axis=1) * self.deviation

    def simultaneous(self, level: float, count: int, generator: np.random.RandomState) -> Array:
        """Half-widths (m, p) that cover all points at once with probability `level`, each equally likely.

        The smallest tail probability of |t| under Student's t over all points, of which the bootstrap gives
        the distribution, is compared with the same number everywhere (Beran 1988), so that points with few
        degrees of freedom do not widen the band elsewhere.
        """
        freedom = self.noise.freedom(self.X)
        ratios = []
        for ratio in self._ratios(count, generator):
            least = stdtr(freedom[:, None, None], -ratio).min(axis=0, initial=0.5)
            ratios.append(-stdtrit(freedom[:, None], _quantile(least, 1.0 - level)))
        return np.concatenate(ratios, axis=1) * self.deviation

    @cached_property
    def _norm(self) -> Array:
        return np.sqrt(self.combined_variance(self.noise.relative))

    def _ratios(self, count: int, generator: np.random.RandomState) -> Iterator[Array]:
        """(m, targets, draws) for some targets at a time: |estimate| / its standard error, of noise alone."""
        at_once = max(1, _NUMBERS // (count * (len(self.X) + len(self.noise.left))))
        for noise, squares in self.noise.draws(count, at_once, generator):
            deviation = np.sqrt(self.noise._smoothed(self.X, squares)) * self._norm[:, None]
            ratio = _ratio(np.abs(self.combined(noise)), deviation)
            yield ratio.reshape(len(ratio), -1, count)


_CUTOFF = 6.0  # median absolute residuals
# E(w² z²) / E(w)² of their weights w for normal residuals z: what is left of the variance of normal noise.
BISQUARE = 0.658308
_ROUNDING = 1e-7  # of targets, in a curve through most of them


def bisquare_weights(
    smoother: Smoother, targets: Array, precision: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(n,) weights (1 − (e / 6s)²)² of residuals e, s their median size, and 0 beyond 6s (Cleveland 1979).

    Residuals are in units of the targets' standard deviations, 1 / √precision; all weights are 1 where more
    than half of them are zero but for rounding.
    """
    errors = (targets - smoother.fit(None, targets.T).mean)[:, 0]
    sizes, residuals = (np.abs(each) * np.sqrt(precision) for each in (targets[:, 0], errors))
    middle = np.median(residuals)
    if not middle > _ROUNDING * np.median(sizes):
        return np.ones(len(residuals))
    return np.maximum(1.0 - (residuals / (_CUTOFF * middle)) ** 2, 0.0) ** 2

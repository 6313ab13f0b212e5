"""What a bandwidth is judged by, and its derivative: leave-one-out error or likelihood, corrected AIC.

Each criterion is a function of the logarithms of the bandwidths. Value and gradient come from one pass over
the
pairs: a prediction is a ratio of sums, and the derivatives of sums are sums as well.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from nadaraya.kernels import Kernel
from nadaraya.regression.local import LocalFit, local_fit
from nadaraya.regression.rules import values
from nadaraya.regression.sample import Sample

Array = NDArray[np.floating]
Criterion = Callable[[Array], tuple[float, Array]]

_TINY = 1e-300
# The correction of AIC has a pole where the smoother's trace is n − 2; this near to it, its tangent.
_LEAST_ROOM = 1e-2


def target_scale(y: Array, weight: Array) -> Array:
    """(p,) weighted variances of the targets; 1 where a target does not vary."""
    variance = np.average((y - np.average(y, axis=0, weights=weight)) ** 2, axis=0, weights=weight)
    return np.where(variance > 0, variance, 1.0)


def loo_of_errors(squared_errors: Array, weight: Array, scale: Array) -> tuple[float, Array]:
    """log of the mean over targets of mean squared error over variance, and its derivatives (n, p)."""
    per_point = weight[:, None] / weight.sum() / (scale * len(scale))
    loss = float((per_point * squared_errors).sum()) + _TINY
    return np.log(loss), per_point / loss


def aic_of_fit(
    squared_errors: Array, trace: float, weight: Array, scale: Array
) -> tuple[float, Array, float]:
    r"""AIC_c = mean of log σ̂² over targets + (1 + tr L / n) / (1 − (tr L + 2) / n) (Hurvich et al. 1998).

    Returns:
        The criterion and its derivatives by the squared errors (n, p) and by the trace. n counts the weights.
    """
    n = weight.sum()
    variance = (weight[:, None] * squared_errors).sum(axis=0) / n + 1e-30 * scale
    by_errors = weight[:, None] / n / variance / len(scale)
    t = trace / n
    edge = 1.0 - 2.0 / n - _LEAST_ROOM  # of t; beyond it the tangent
    inner = min(t, edge)
    room = 1.0 - inner - 2.0 / n
    slope = (2.0 - 2.0 / n) / room**2
    correction = (1.0 + inner) / room + slope * (t - inner)
    return float(np.log(variance).mean() + correction), by_errors, slope / n


@dataclass(frozen=True)
class Regression:
    """What the criteria of a regression depend on beside the bandwidth.

    Attributes:
        sample: the points.
        weight: (n,) their weights, in number of observations.
        targets: (n, p) less their mean.
        kernel: κ, float64.
        degree: 0 or 1.
        query_scale: (n,) bandwidths of the points relative to the common one, or None.
    """

    sample: Sample
    weight: Array
    targets: Array
    kernel: Kernel
    degree: int = 0
    query_scale: Array | None = None

    def fit(self, log_bandwidth: Array, exclude_self: bool) -> tuple[LocalFit, Array]:
        """Fits at the points and (n, d, 1 + p) derivatives by log bandwidth.

        Of the 1 + p the first is that of −log L_ii, times a_0; the others are those of the predictions.
        """
        bandwidth = np.exp(log_bandwidth)
        sums = partial(
            self.sample.sums,
            None,
            self.targets.T,
            self.kernel,
            bandwidth,
            query_scale=self.query_scale,
            exclude_self=exclude_self,
        )
        if self.degree == 0:
            moments = sums(what="bandwidth")
            fit = local_fit(moments, 0, self.sample.spread)
            changes = moments.by_feature.copy()
            changes[:, :, 1:] -= fit.mean[:, None] * changes[:, :, :1]
            return fit, changes / fit.mass[:, None, None]
        fit = local_fit(sums(what="moments"), 1, self.sample.spread)
        assert fit.slope is not None
        coefficients = np.concatenate([fit.mean[:, None], fit.slope], axis=1)
        changes = sums(what="lines", lines=(fit.row, coefficients)).by_feature
        return fit, changes / fit.mass[:, None, None]


def loo_error(regression: Regression) -> Criterion:
    """Leave-one-out squared error; see `loo_of_errors`."""
    scale = target_scale(regression.targets, regression.weight)

    def criterion(log_bandwidth: Array) -> tuple[float, Array]:
        fit, changes = regression.fit(log_bandwidth, exclude_self=True)
        errors = regression.targets - fit.mean
        loss, by_error = loo_of_errors(errors**2, regression.weight, scale)
        return loss, -2.0 * np.einsum("np,np,ndp->d", by_error, errors, changes[:, :, 1:])

    return criterion


def corrected_aic(regression: Regression) -> Criterion:
    """AIC_c; see `aic_of_fit`."""
    scale = target_scale(regression.targets, regression.weight)

    def criterion(log_bandwidth: Array) -> tuple[float, Array]:
        fit, changes = regression.fit(log_bandwidth, exclude_self=False)
        errors = regression.targets - fit.mean
        own = leverage(regression.sample, regression.kernel, fit)
        score, by_error, by_trace = aic_of_fit(errors**2, float(own.sum()), regression.weight, scale)
        gradient = -2.0 * np.einsum("np,np,ndp->d", by_error, errors, changes[:, :, 1:])
        return score, gradient - by_trace * ((own / fit.row[:, 0]) @ changes[:, :, 0])

    return criterion


def loo_likelihood(sample: Sample, weight: Array, kernel: Kernel) -> Criterion:
    """Minus the mean log-density of each point under the others, up to a constant (Habbema et al. 1974)."""

    def criterion(log_bandwidth: Array) -> tuple[float, Array]:
        sums = sample.sums(
            None,
            np.zeros((0, len(weight))),
            kernel,
            np.exp(log_bandwidth),
            what="bandwidth",
            exclude_self=True,
        )
        if np.isneginf(sums.log_scale[weight > 0]).any():
            # A point alone in a compact support has likelihood zero; smaller bandwidths are no better.
            return 1e10 - float(log_bandwidth.sum()), -np.ones(len(log_bandwidth))
        counted = weight > 0
        share = weight[counted] / weight.sum()
        log_mass = np.log(sums.values[counted, 0]) + sums.log_scale[counted]
        by_bandwidth = sums.by_feature[counted, :, 0] / sums.values[counted, :1]
        varies = np.isfinite(log_bandwidth)
        return float(log_bandwidth[varies].sum() - share @ log_mass), varies - share @ by_bandwidth

    return criterion


def leverage(sample: Sample, kernel: Kernel, fit: LocalFit) -> Array:
    """L_ii = s_i κ(0) a_0 / Z_i of fits at the points themselves, (n,); 0 for points without weight."""
    counted = (sample.weight > 0) & ~fit.empty
    at_zero = sample.weight * float(values(kernel, np.zeros(()))) * fit.row[:, 0]
    return np.where(counted, at_zero * np.exp(-np.where(counted, fit.log_mass, 0.0)), 0.0)

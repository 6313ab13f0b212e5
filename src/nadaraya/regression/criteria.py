"""What a bandwidth is judged by, with its derivative: leave-one-out error, corrected AIC, leave-one-out
likelihood.

Each criterion is a function of the logarithms of the bandwidths. Value and gradient come from one pass over
the
pairs: a prediction is a ratio of sums, and the derivatives of sums are sums as well.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from nadaraya.kernels import Kernel
from nadaraya.regression.rules import values
from nadaraya.regression.sample import Sample
from nadaraya.regression.sums import PairSums

Array = NDArray[np.floating]
Criterion = Callable[[Array], tuple[float, Array]]

_TINY = 1e-300
# The correction of AIC grows without limit as the smoother's trace nears n − 2; from here on along its
# tangent.
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
    r"""AIC_c = mean over targets of log σ̂² + (1 + tr L / n) / (1 − (tr L + 2) / n) (Hurvich, Simonoff, Tsai
    1998).

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


def loo_error(
    sample: Sample, weight: Array, y: Array, kernel: Kernel, query_scale: Array | None
) -> Criterion:
    """Leave-one-out squared error of local constant regression; see `loo_of_errors`."""
    scale = target_scale(y, weight)

    def criterion(log_bandwidth: Array) -> tuple[float, Array]:
        sums = _sums(sample, y, kernel, log_bandwidth, query_scale, exclude_self=True)
        mean, by_bandwidth = _means(sums)
        loss, by_error = loo_of_errors((y - mean) ** 2, weight, scale)
        return loss, -2.0 * np.einsum("np,np,ndp->d", by_error, y - mean, by_bandwidth)

    return criterion


def corrected_aic(
    sample: Sample, weight: Array, y: Array, kernel: Kernel, query_scale: Array | None
) -> Criterion:
    """AIC_c of local constant regression; see `aic_of_fit`."""
    scale = target_scale(y, weight)
    at_zero = float(values(kernel, np.zeros(())))

    def criterion(log_bandwidth: Array) -> tuple[float, Array]:
        sums = _sums(sample, y, kernel, log_bandwidth, query_scale, exclude_self=False)
        mean, by_bandwidth = _means(sums)
        leverage = leverages(sample, at_zero, sums)
        score, by_error, by_trace = aic_of_fit((y - mean) ** 2, float(leverage.sum()), weight, scale)
        mass_slope = sums.by_feature[:, :, 0] / sums.values[:, :1]
        gradient = -2.0 * np.einsum("np,np,ndp->d", by_error, y - mean, by_bandwidth)
        return score, gradient - by_trace * (leverage @ mass_slope)

    return criterion


def loo_likelihood(sample: Sample, weight: Array, kernel: Kernel) -> Criterion:
    """Minus the mean log-density of each point under the others, up to a constant (Habbema et al. 1974)."""

    def criterion(log_bandwidth: Array) -> tuple[float, Array]:
        sums = _sums(sample, np.zeros((len(weight), 0)), kernel, log_bandwidth, None, exclude_self=True)
        if np.isneginf(sums.log_scale[weight > 0]).any():
            # A point alone in a compact support has likelihood zero; smaller bandwidths are no better.
            return 1e10 - float(log_bandwidth.sum()), -np.ones(len(log_bandwidth))
        share = weight / weight.sum()
        log_mass = np.log(sums.values[:, 0]) + sums.log_scale
        by_bandwidth = sums.by_feature[:, :, 0] / sums.values[:, :1]
        varies = np.isfinite(log_bandwidth)
        return float(log_bandwidth[varies].sum() - share @ log_mass), varies - share @ by_bandwidth

    return criterion


def leverages(sample: Sample, at_zero: float, sums: PairSums) -> Array:
    """L_ii = s_i κ(0) / Z_i of local constants, (n,); 0 for points without weight."""
    counted = sample.weight > 0
    result = np.zeros(len(counted))
    log_mass = np.log(sums.values[counted, 0]) + sums.log_scale[counted]
    result[counted] = sample.weight[counted] * at_zero * np.exp(-log_mass)
    return result


def _sums(
    sample: Sample,
    y: Array,
    kernel: Kernel,
    log_bandwidth: Array,
    query_scale: Array | None,
    exclude_self: bool,
) -> PairSums:
    return sample.sums(
        None,
        y.T,
        kernel,
        np.exp(log_bandwidth),
        what="bandwidth",
        query_scale=query_scale,
        exclude_self=exclude_self,
    )


def _means(sums: PairSums) -> tuple[Array, Array]:
    """Predictions (n, p) and their derivatives by log bandwidth (n, d, p)."""
    mass = sums.values[:, :1]
    mean = sums.values[:, 1:] / mass
    slopes = (sums.by_feature[:, :, 1:] - mean[:, None] * sums.by_feature[:, :, :1]) / mass[:, None]
    return mean, slopes

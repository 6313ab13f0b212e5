"""What a bandwidth is judged by, and its gradient: leave-one-out error or likelihood, corrected AIC.

Each criterion is a function of the logarithms of the bandwidths. A prediction is a ratio of sums over pairs,
and the gradients of sums are sums as well.
"""

from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from nadaraya.regression.requests import Array, BandwidthGradients
from nadaraya.regression.smoother import Smoother


class Criterion(Protocol):
    """A function of (k,) logarithms: its value and its gradient (k,), which is zeros if not asked for."""

    def __call__(self, arguments: Array, with_gradient: bool = True, /) -> tuple[float, Array]: ...


_TINY = 1e-300
# The correction of AIC has a pole where the smoother's trace is n − 2; this near to it, its tangent.
_LEAST_ROOM = 1e-2


class Score(NamedTuple):
    """A criterion and its derivatives by the squared errors, (n, p), and by the smoother's trace."""

    value: float
    by_errors: Array
    by_trace: float


def loo_score(squared_errors: Array, trace: float, weight: Array, scale: Array) -> Score:
    """log of the mean over targets of mean squared error over variance; errors are leave-one-out.

    Args:
        squared_errors: (n, p).
        trace: of the smoother; no part of this score.
        weight: (n,) whose sum is the number of observations.
        scale: (p,) the targets' variances.
    """
    per_point = weight[:, None] / weight.sum() / (scale * len(scale))
    loss = float((per_point * squared_errors).sum()) + _TINY
    return Score(float(np.log(loss)), per_point / loss, 0.0)


def aic_score(squared_errors: Array, trace: float, weight: Array, scale: Array) -> Score:
    r"""AIC_c = mean of log σ̂² over targets + (1 + tr L / n) / (1 − (tr L + 2) / n) (Hurvich et al. 1998).

    Arguments as for `loo_score`; n is the sum of the weights, as many as there are observations.
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
    return Score(float(np.log(variance).mean() + correction), by_errors, slope / n)


SCORES = {"loo": loo_score, "aic": aic_score}


def target_scale(y: Array, weight: Array) -> Array:
    """(p,) weighted variances of the targets; 1 where a target does not vary."""
    variance = np.average((y - np.average(y, axis=0, weights=weight)) ** 2, axis=0, weights=weight)
    return np.where(variance > 0, variance, 1.0)


def regression_criterion(name: str, smoother: Smoother, targets: Array) -> Criterion:
    """The leave-one-out error ("loo") or AIC_c ("aic") of a smoother with other bandwidths.

    Args:
        name: a key of `SCORES`.
        smoother: all but the bandwidth.
        targets: (n, p), less their means.
    """
    weight = smoother.sample.counts
    scale, leave_one_out, peak = target_scale(targets, weight), name == "loo", smoother.peak()

    def criterion(log_bandwidth: Array, with_gradient: bool = True, /) -> tuple[float, Array]:
        trial = replace(smoother, bandwidth=np.exp(log_bandwidth))
        if with_gradient:
            fit, gradients = trial.fit_with_gradients(targets.T, leave_one_out)
        else:
            fit = trial.fit(None, targets.T, leave_one_out)
        errors = targets - fit.mean
        leverage = np.zeros(len(errors)) if leave_one_out else trial.leverage(fit, peak)
        score = SCORES[name](errors**2, float(leverage.sum()), weight, scale)
        if not with_gradient:
            return score.value, np.zeros(len(log_bandwidth))
        by_bandwidth = -2.0 * np.einsum("np,np,ndp->d", score.by_errors, errors, gradients[:, :, 1:])
        by_bandwidth -= score.by_trace * ((leverage / fit.row[:, 0]) @ gradients[:, :, 0])
        return score.value, by_bandwidth

    return criterion


def loo_likelihood(smoother: Smoother) -> Criterion:
    """Minus the mean log-density of each point under the others, up to a constant (Habbema et al. 1974)."""
    weight = smoother.sample.counts
    counted = weight > 0
    share = weight[counted] / weight.sum()

    def criterion(log_bandwidth: Array, with_gradient: bool = True, /) -> tuple[float, Array]:
        # Gradients cost little beside the sums of the likelihood, which have no targets.
        trial = replace(smoother, bandwidth=np.exp(log_bandwidth))
        request = trial.request(BandwidthGradients, None, np.zeros((0, len(weight))))
        sums = trial.compute(replace(request, exclude_self=True))
        if sums.no_support[counted].any():
            # A point alone in a compact support has likelihood zero; smaller bandwidths are no better.
            return 1e10 - float(log_bandwidth.sum()), -np.ones(len(log_bandwidth))
        log_mass = np.log(sums.values[counted, 0]) + sums.log_scale[counted]
        by_bandwidth = sums.gradients[counted, :, 0] / sums.values[counted, :1]
        varies = np.isfinite(log_bandwidth)
        return float(log_bandwidth[varies].sum() - share @ log_mass), varies - share @ by_bandwidth

    return criterion

"""Criteria of bandwidths, with gradients: leave-one-out error or likelihood, corrected AIC.

Each criterion is a function of the logarithms of the bandwidths. A prediction is a ratio of sums over pairs,
and the gradients of sums are sums as well.
"""

import copy
import math
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nadaraya.regression.requests import Array, Sums
from nadaraya.regression.smoother import Smoother, monomials, value_weights
from nadaraya.regression.torch_sums import Job, distances


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
    """log of the mean over targets of mean squared leave-one-out error (n, p) over variance (p,)."""
    per_point = weight[:, None] / weight.sum() / (scale * len(scale))
    loss = float((per_point * squared_errors).sum()) + _TINY
    return Score(float(np.log(loss)), per_point / loss, 0.0)


def aic_score(squared_errors: Array, trace: float, weight: Array, scale: Array) -> Score:
    r"""AIC_c = mean of log σ̂² over targets + (1 + tr L / n) / (1 − (tr L + 2) / n) (Hurvich et al. 1998).

    n is the sum of the weights, as many as there are observations.
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


def regression_criterion(name: str, smoother: Smoother, targets: Array, one_unit: bool = False) -> Criterion:
    """The leave-one-out error or AIC_c of a smoother with other bandwidths; targets (n, p) are centred.

    Errors are over each target's variance, or where all have one unit over the mean of these.
    """
    weight = smoother.sample.counts
    scale, leave_one_out, peak = target_scale(targets, weight), name == "loo", smoother.peak()
    scale = np.full_like(scale, scale.mean()) if one_unit else scale

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


class DifferentiableCriterion:
    """The criteria of a regression by automatic differentiation, for a kernel's own parameters too.

    Arguments are log h_1, …, log h_d, without a gradient unless `selects_bandwidth`, and the parameters of
    the kernel if `trains_kernel`. Blocks of queries are recomputed in the backward pass: memory stays O(n).
    """

    def __init__(
        self,
        name: str,
        smoother: Smoother,
        targets: Array,
        selects_bandwidth: bool = True,
        trains_kernel: bool = True,
    ) -> None:
        points = smoother.sample.x.astype(np.float64)
        request = replace(
            smoother.request(Sums, None, exclude_self=name == "loo"),
            query=points,
            points=points,
            kernel=copy.deepcopy(smoother.kernel).requires_grad_(trains_kernel),
        )
        self._score, self._selects_bandwidth = SCORES[name], selects_bandwidth
        self._job, self._degree = Job(request), smoother.degree
        self._trained = list(self._job.kernel.parameters()) if trains_kernel else []
        self._targets, self._weight = targets, smoother.sample.counts
        self._scale = target_scale(targets, self._weight)
        self._y = torch.tensor(targets, dtype=torch.float64, device=self._job.device)

    def __call__(self, arguments: Array, with_gradient: bool = True, /) -> tuple[float, Array]:
        """The criterion and its gradient at (log h_1, …, log h_d, the kernel's parameters)."""
        with torch.set_grad_enabled(with_gradient):
            return self._evaluated(arguments, with_gradient)

    def _evaluated(self, arguments: Array, with_gradient: bool) -> tuple[float, Array]:
        device, d = self._job.device, self._job.points.shape[1]
        vector = torch.tensor(arguments, dtype=torch.float64, device=device, requires_grad=True)
        if self._trained:
            with torch.no_grad():
                nn.utils.vector_to_parameters(vector[d:], self._trained)
        log_bandwidth = vector[:d] if self._selects_bandwidth else vector[:d].detach()
        parts = [
            checkpoint(self._smooth, rows, log_bandwidth, use_reentrant=False, preserve_rng_state=False)
            for rows in self._job.blocks(6 + 3 * math.comb(d + self._degree, d) * (self._degree > 0))
        ]
        mean, leverage = (torch.cat(part) for part in zip(*parts, strict=True))
        errors = self._targets - mean.detach().cpu().numpy()
        score = self._score(errors**2, float(leverage.detach().sum()), self._weight, self._scale)
        if not with_gradient:
            return score.value, np.zeros(len(arguments))
        by_mean = torch.tensor(-2.0 * score.by_errors * errors, device=device)
        loss = (by_mean * mean).sum() + score.by_trace * leverage.sum()
        gradients = torch.autograd.grad(
            loss, [vector, *self._trained], allow_unused=True, materialize_grads=True
        )
        slopes = gradients[0].clone()
        if self._trained:
            slopes[d:] += nn.utils.parameters_to_vector(gradients[1:])
        return score.value, slopes.cpu().numpy()

    def _smooth(self, rows: slice, log_bandwidth: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions (b, p) of the points in `rows`, and their leverages (b,); leave-one-out for "loo"."""
        job = self._job
        inverse = torch.exp(-log_bandwidth)
        r = distances(job.points[rows] * inverse, job.points * inverse) * job.shrink[rows, None]
        weights = job.shares(rows, r, job.kernel.log(r))
        if self._degree:
            offsets = job.points - job.points[rows, None]
            powers = monomials(offsets, self._degree) if self._degree > 1 else offsets
            weights = value_weights(weights, powers, self._degree)
        return weights @ self._y, weights[:, rows].diagonal()

"""The criteria of a regression by automatic differentiation, for the kernel's own parameters too."""

import copy
import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nadaraya.regression.criteria import SCORES, target_scale
from nadaraya.regression.polynomials import monomials, value_weights
from nadaraya.regression.requests import Array, Sums
from nadaraya.regression.smoother import Smoother
from nadaraya.regression.torch_sums import Job, distances


class DifferentiableCriterion:
    """A criterion as a function of the logarithms of the bandwidths and of the kernel's parameters.

    Blocks of queries are recomputed in the backward pass, so that memory stays O(n).

    Args:
        name: "loo" or "aic".
        smoother: what is fitted; its kernel is copied.
        targets: (n, p), less their means.
        selects_bandwidth: whether the arguments begin with log h_1, …, log h_d; else h is the smoother's.
        trains_kernel: whether they end with the parameters of the kernel. Default True.
    """

    def __init__(
        self,
        name: str,
        smoother: Smoother,
        targets: Array,
        selects_bandwidth: bool,
        trains_kernel: bool = True,
    ) -> None:
        points = smoother.sample.x.astype(np.float64)
        request = replace(
            smoother.request(Sums, None, np.zeros((0, len(points)))),
            query=points,
            points=points,
            kernel=copy.deepcopy(smoother.kernel).requires_grad_(trains_kernel),
            exclude_self=name == "loo",
        )
        self._score = SCORES[name]
        self._job, self._degree = Job(request), smoother.degree
        self._trained = list(self._job.kernel.parameters()) if trains_kernel else []
        self._num_parameters = sum(parameter.numel() for parameter in self._trained)
        self._targets, self._weight = targets, smoother.sample.counts
        self._scale = target_scale(targets, self._weight)
        self._y, log_bandwidth = (
            torch.tensor(array, dtype=torch.float64, device=self._job.device)
            for array in (targets, np.log(smoother.bandwidth))
        )
        self._fixed = None if selects_bandwidth else log_bandwidth

    def __call__(self, arguments: Array, with_gradient: bool = True, /) -> tuple[float, Array]:
        """The criterion and its gradient at (log h_1, …, log h_d, the kernel's parameters)."""
        with torch.set_grad_enabled(with_gradient):
            return self._evaluated(arguments, with_gradient)

    def _evaluated(self, arguments: Array, with_gradient: bool) -> tuple[float, Array]:
        device, d = self._job.device, self._job.points.shape[1]
        vector = torch.tensor(arguments, dtype=torch.float64, device=device, requires_grad=True)
        if self._trained:
            with torch.no_grad():
                nn.utils.vector_to_parameters(vector[-self._num_parameters :], self._trained)
        log_bandwidth = vector[:d] if self._fixed is None else self._fixed
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
            slopes[-self._num_parameters :] += nn.utils.parameters_to_vector(gradients[1:])
        return score.value, slopes.cpu().numpy()

    def _smooth(self, rows: slice, log_bandwidth: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions (b, p) of the points in `rows`, and their leverages (b,); leave-one-out for "loo"."""
        job = self._job
        inverse = torch.exp(-log_bandwidth)
        r = distances(job.points[rows] * inverse, job.points * inverse) * job.shrink[rows, None]
        weights = job.shares(rows, r, job.kernel.log(r))
        if self._degree:
            offsets = job.points - job.points[rows, None]
            weights = value_weights(
                weights, monomials(offsets, self._degree) if self._degree > 1 else offsets
            )
        return weights @ self._y, weights[:, rows].diagonal()

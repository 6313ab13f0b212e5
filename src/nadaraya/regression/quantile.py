"""`KernelQuantileRegressor`: quantiles of the target given x, where kernel regression gives its mean."""

import math
from dataclasses import KW_ONLY, dataclass, replace
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_pinball_score
from torch import Tensor

from nadaraya.kernels import Kernel
from nadaraya.regression.bandwidth import Selected, select_bandwidth, select_for_regression
from nadaraya.regression.checks import probabilities, real_number, whole_number
from nadaraya.regression.criteria import Criterion
from nadaraya.regression.estimator import SmoothingEstimator
from nadaraya.regression.requests import Array, Sums
from nadaraya.regression.selection import Search
from nadaraya.regression.smoother import Smoother
from nadaraya.regression.torch_sums import Job

_HELD = 1e-10  # weight of an artificial point, beside 1 of all others together
_MOST_TURNS = 100  # per coefficient


@dataclass(eq=False, repr=False)
class KernelQuantileRegressor(RegressorMixin, SmoothingEstimator):
    r"""Quantiles of y given x by kernel regression with the check loss.

        q_τ(x) = argmin_a min_b Σ_i s_i κ(‖(x − x_i) / h‖) ρ_τ(y_i − a − b · (x_i − x)),
        ρ_τ(r) = (τ − 1{r < 0}) r

    With `degree=0` there is no slope b, and q_τ is a weighted quantile of the targets: the least of them up
    to which a share τ of the weights lies. With `degree=1` it is the value of a line (Yu and Jones 1998),
    found exactly by the simplex method. O(n + m) memory; every pair is visited.

    Args:
        quantile: τ between 0 and 1. Default 0.5, the median.
        kernel: as in `NadarayaWatson`. Default "gaussian".
        bandwidth: a positive number, or (d,), one per feature; "scott" or "silverman", rules of thumb; "aic",
            those of the mean's corrected AIC times (τ(1 − τ) / φ(Φ⁻¹(τ))²)^(1 / (d + 4)), which makes them
            those of a quantile of normal noise (Yu and Jones 1998, section 2.2, for d = 1); or "loo", those
            with the least leave-one-out check loss. Default "aic".
        degree: 0, local constant; 1, local linear. Default 0.
        n_starts, device, random_state, verbose: as in `NadarayaWatson`. Default 7, None, None and 0.

    Attributes:
        bandwidth_: (d,) h; inf for a feature that does not vary.
        kernel_, selection_, sample_weight_, n_features_in_: as in `NadarayaWatson`.
        X_: (n, d) the points; y_: (n,) their targets.

    See Also:
        NadarayaWatsonConditionalDensity: the whole distribution.
        NadarayaWatson: the mean.

    >>> from nadaraya.regression import KernelQuantileRegressor
    >>> model = KernelQuantileRegressor(bandwidth=1.0).fit([[0.0], [0.1], [0.2]], [1.0, 2.0, 9.0])
    >>> model.predict([[0.1]]).tolist(), model.predict([[0.1]], quantile=[0.1, 0.9]).tolist()
    ([2.0], [[1.0, 9.0]])
    """

    quantile: float = 0.5
    kernel: str | Kernel = "gaussian"
    bandwidth: float | ArrayLike | str = "aic"
    _: KW_ONLY
    degree: int = 0

    _criteria = ("aic", "loo")

    def _selected(self, points: Array, targets: Array, counts: Array, search: Search) -> Selected:
        tau = real_number("quantile", self.quantile, "a number between 0 and 1", 0, 1)
        degree = whole_number("degree", self.degree, 0, 1)
        smoother = replace(self._first_smoother(points, counts), degree=degree)
        self._centre = float(np.median(targets[:, 0]))
        self._targets = targets[:, 0] - self._centre
        if self._selects_by("loo"):
            return select_bandwidth("loo", _check_criterion(smoother, self._targets, tau), smoother, search)
        selection = None
        if self._selects_by("aic"):
            smoother, selection = select_for_regression(
                "aic", smoother, self._targets[:, None], False, search
            )
            normal = NormalDist()
            ratio = tau * (1 - tau) / normal.pdf(normal.inv_cdf(tau)) ** 2
            wider = smoother.bandwidth * ratio ** (1 / (np.isfinite(smoother.bandwidth).sum() + 4))
            smoother = replace(smoother, bandwidth=wider)
        return smoother, selection

    def predict(self, X: ArrayLike, quantile: ArrayLike | None = None) -> Array:
        """q_τ(x).

        Args:
            X: (m, d) points.
            quantile: other τ than the estimator's, one or (k,), with the same bandwidths. Lines of different
                τ may cross; they are then put in order (Chernozhukov, Fernández-Val and Galichon 2010).

        Returns:
            (m,), or (m, k) for several τ.

        Raises:
            InputError: a τ is not between 0 and 1.

        See Also:
            NadarayaWatsonConditionalDensity.predict_quantiles: from a smooth distribution.

        >>> from nadaraya.regression import KernelQuantileRegressor
        >>> model = KernelQuantileRegressor(bandwidth=1.0).fit([[0.0], [0.1], [0.2]], [1.0, 2.0, 9.0])
        >>> model.predict([[0.1]]).tolist(), model.predict([[0.1]], quantile=[0.1, 0.9]).shape
        ([2.0], (1, 2))
        """
        query = self._validated(X)
        tau = probabilities("quantile", self.quantile if quantile is None else quantile)
        found = _smooth(self._smoother, query, self._targets, tau.reshape(-1)) + self._centre
        shaped = found[:, 0] if tau.ndim == 0 else found
        return shaped.astype(self.X_.dtype, copy=False)

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Share of the check loss of the constant quantile that is explained, at most 1.

        Args:
            X: (m, d) points.
            y: (m,) targets.
            sample_weight: (m,) weights. Default 1 each.

        Returns:
            `sklearn.metrics.d2_pinball_score` at the estimator's τ.

        See Also:
            KernelQuantileRegressor.predict: the quantiles.

        >>> from nadaraya.regression import KernelQuantileRegressor
        >>> model = KernelQuantileRegressor(bandwidth=1.0).fit([[0.0], [0.1], [0.2]], [1.0, 2.0, 9.0])
        >>> model.score([[0.0], [0.1], [0.2]], [1.0, 2.0, 9.0]) <= 1.0
        True
        """
        return float(d2_pinball_score(y, self.predict(X), sample_weight=sample_weight, alpha=self.quantile))


def _check_criterion(smoother: Smoother, targets: Array, tau: float) -> Criterion:
    """Mean leave-one-out check loss; a step function, and so without a gradient."""
    share = smoother.sample.counts / smoother.sample.counts.sum()

    def criterion(log_bandwidth: Array, with_gradient: bool = True, /) -> tuple[float, Array]:
        trial = replace(smoother, bandwidth=np.exp(log_bandwidth))
        errors = targets - _smooth(trial, None, targets, np.array([tau]))[:, 0]
        loss = np.maximum(tau * errors, (tau - 1) * errors)
        return float(share @ loss), np.zeros_like(log_bandwidth)

    return criterion


def _smooth(
    smoother: Smoother, X: Array | None, targets: Array, quantiles: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(m, k) quantiles of the targets (n,) at X; at the points, each left out, for None."""
    job = Job(smoother.request(Sums, X, targets[None], exclude_self=X is None))
    # Targets in ascending order make a cumulative distribution of every row of weights.
    order = torch.argsort(torch.from_numpy(targets)).to(job.device)
    y = torch.from_numpy(targets).to(job.device, job.points.dtype)
    tau = torch.from_numpy(quantiles).to(job.device, job.points.dtype)
    spread = torch.from_numpy(smoother.sample.spread).to(job.device, job.points.dtype)
    parts = []
    for rows in job.blocks(4 + 2 * smoother.degree * (len(spread) + 1)):
        weights = job.local_weights(rows)
        constant = _weighted_quantiles(weights[:, order], y[order], tau)
        if smoother.degree:
            offsets = (job.points - job.query[rows, None]) / spread
            lines = [
                _line_value(weights, offsets, y, t, start) for t, start in zip(tau, constant.T, strict=True)
            ]
            constant = torch.stack(lines, dim=1).sort(dim=1).values[:, tau.argsort().argsort()]
        parts.append(constant.double().cpu().numpy())
    return np.concatenate(parts)


def _weighted_quantiles(weights: Tensor, ascending: Tensor, tau: Tensor) -> Tensor:
    """(b, k): the least target up to which a share τ of the weights (b, n) lies."""
    share = weights.cumsum(dim=1)
    share = share / share[:, -1:].clamp_min(torch.finfo(share.dtype).tiny)
    # Rounding must not push a share that reaches τ exactly to the next target.
    levels = (tau - 4 * torch.finfo(share.dtype).eps * math.sqrt(len(ascending))).expand(len(share), -1)
    place = torch.searchsorted(share, levels.contiguous())
    return ascending[place.clamp_max(len(ascending) - 1)]


def _line_value(weights: Tensor, offsets: Tensor, y: Tensor, tau: Tensor, start: Tensor) -> Tensor:
    """(b,) values at the queries of the lines with the least check loss; offsets are (b, n, d).

    The simplex method with long steps (Barrodale and Roberts 1973, Koenker and d'Orey 1987) for all queries
    at once: a line goes through as many points as it has coefficients; while letting go of one of them lowers
    the loss, the line turns about the others to the best point on its way. It starts from the level line at
    `start`, which artificial points of next to no weight hold; they keep what the points leave undetermined.
    Targets that are equal would let it turn for ever: it goes through nearby ones that differ.
    """
    b, n, size = len(weights), len(y), offsets.shape[2] + 1
    identity = torch.eye(size, dtype=y.dtype, device=y.device).expand(b, -1, -1)
    held = torch.cat([start[:, None], torch.zeros_like(identity[:, 0, 1:])], dim=1)
    design = torch.cat([identity, torch.cat([torch.ones_like(offsets[..., :1]), offsets], dim=2)], dim=1)
    target = torch.cat([held, y.expand(b, n)], dim=1)
    noise = torch.rand(n, generator=torch.Generator().manual_seed(0), dtype=y.dtype).to(y.device)
    typical = torch.nan_to_num(y[y != 0].abs().median(), nan=1.0)
    noise *= typical * torch.finfo(y.dtype).eps ** 0.6
    apart = torch.cat([held, (y + noise).expand(b, n)], dim=1)
    weights = torch.cat([torch.full_like(held, _HELD), weights], dim=1)
    basis = torch.arange(size, device=y.device).repeat(b, 1)
    everyone = torch.arange(b, device=y.device)
    for _ in range(_MOST_TURNS * size):
        turns = torch.linalg.inv(design.gather(1, basis[..., None].expand(-1, -1, size)))
        line = (turns @ apart.gather(1, basis)[..., None])[..., 0]
        residual = (apart - torch.einsum("bnk,bk->bn", design, line)).scatter(1, basis, 0.0)
        change = design @ turns  # (b, size + n, size) of fitted values, for a unit at one point of the basis
        free = torch.ones_like(weights).scatter(1, basis, 0.0)
        pull = free * weights * torch.where(residual >= 0, tau, tau - 1)
        gradient = -torch.einsum("bn,bnk->bk", pull, change)
        of_basis = weights.gather(1, basis)
        slope, which = torch.cat([gradient + (1 - tau) * of_basis, tau * of_basis - gradient], dim=1).min(
            dim=1
        )
        rounding = (
            100 * torch.finfo(y.dtype).eps * torch.einsum("bn,bnk->bk", weights, change.abs()).amax(dim=1)
        )
        turning = slope < -rounding
        if not turning.any():
            break
        leaving = which % size
        along = change[everyone, :, leaving] * torch.where(which < size, 1.0, -1.0)[:, None]
        meets = (free > 0) & (torch.where(residual >= 0, along, -along) > 0)
        distance = torch.where(meets, residual / along, torch.inf)
        ascending, order = distance.sort(dim=1)
        slopes = slope[:, None] + (weights * along.abs()).gather(1, order).cumsum(dim=1)
        place = (slopes < 0).sum(dim=1).minimum(ascending.isfinite().sum(dim=1) - 1).clamp_min(0)
        entering = order[everyone, place]
        basis[everyone[turning], leaving[turning]] = entering[turning]
    return (turns @ target.gather(1, basis)[..., None])[:, 0, 0]

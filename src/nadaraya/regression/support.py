"""Densities on intervals by reflection: what a kernel puts beyond a bound comes back as in a mirror."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nadaraya.errors import InputError, must_be
from nadaraya.kernels import Kernel
from nadaraya.regression.criteria import Criterion
from nadaraya.regression.requests import Array, BandwidthGradients, Sums
from nadaraya.regression.rules import log_values
from nadaraya.regression.smoother import Smoother

# Against a kernel's value at 0: in densities, and in the criterion for their bandwidths.
_NEGLIGIBLE, _NEGLIGIBLE_IN_CRITERION = 1e-17, 1e-8
_MOST_IMAGES = 4096
_DISTANCES = np.append(0.0, 2.0 ** np.arange(-40.0, 60.0, 1 / 16))

Reflection = tuple[Array, Array]  # signs and offsets (d,): x ↦ sign · x + offset


@dataclass(frozen=True)
class Support:
    """An interval for each feature."""

    low: NDArray[np.float64]  # (d,) −inf where there is no bound
    high: NDArray[np.float64]  # (d,) inf where there is no bound

    @classmethod
    def of(cls, support: Any, X: Array) -> "Support | None":
        """From what the user gave: None, one pair, or a pair or None for each feature of X (n, d)."""
        if support is None:
            return None
        num_features = X.shape[1]
        accepted = (
            f"(low, high) with low < high, or {num_features} such pairs, one per feature, "
            "with None where there is no bound"
        )
        try:
            pairs = list(support)
            if len(pairs) == 2 and all(bound is None or np.ndim(bound) == 0 for bound in pairs):
                pairs = [pairs] * num_features
            bounds = [_bounds(pair) for pair in pairs]
        except (TypeError, ValueError) as error:
            raise must_be("support", accepted, support) from error
        if len(bounds) != num_features or not all(low < high for low, high in bounds):
            raise must_be("support", accepted, support)
        # Rounded as the points are, so that one on a bound is within.
        low, high = np.array(bounds, X.dtype).astype(np.float64).T
        return cls(low, high)

    def check(self, X: Array) -> None:
        """An InputError if any of the points (n, d) is outside."""
        outside = self.outside(X)
        if outside.any():
            row, feature = np.argwhere(outside)[0]
            raise must_be(
                f"feature {feature} of X",
                f"in its support [{self.low[feature]:g}, {self.high[feature]:g}]",
                float(X[row, feature]),
            )

    def outside(self, X: Array) -> NDArray[np.bool_]:
        """(m, d) which coordinates of points are beyond a bound."""
        return np.less(X, self.low) | np.greater(X, self.high)

    def folded(self, X: Array) -> Array:
        """Points (m, d) brought into the support by reflection at its bounds."""
        low, high = self.low, self.high
        length = high - low
        with np.errstate(invalid="ignore"):
            phase = np.mod(X - low, 2 * length)  # NaN where a bound is missing; replaced below
            both = low + np.minimum(phase, 2 * length - phase)
            one = np.where(np.isfinite(low), low + np.abs(X - low), high - np.abs(high - X))
        bounded = np.isfinite(low) | np.isfinite(high)
        return np.where(np.isfinite(length), np.clip(both, low, high), np.where(bounded, one, X))

    def within_reach(self, bandwidth: Array) -> NDArray[np.float64]:
        """The bandwidths (d,), none wider than the support: from there on the density is almost uniform."""
        return np.minimum(bandwidth, self.high - self.low)

    def reflections(
        self, kernel: Kernel, bandwidth: Array, negligible: float = _NEGLIGIBLE
    ) -> list[Reflection]:
        """The mirror images of a point that a kernel of these bandwidths can tell, the point itself first."""
        reach = _reach(kernel, negligible)
        with np.errstate(invalid="ignore"):
            orders = np.maximum(1.0, np.ceil(reach * bandwidth / (2 * (self.high - self.low))))
        if math.prod(np.where(np.isfinite(self.high - self.low), 4 * orders + 2, 2.0)) > _MOST_IMAGES:
            raise InputError(
                f"bandwidth {bandwidth.tolist()} is too wide for the support and this kernel: "
                "give a smaller one, or a kernel with lighter tails, such as 'gaussian'"
            )
        choices = [
            _reflections(low, high, order)
            for low, high, order in zip(self.low, self.high, orders, strict=True)
        ]
        return [
            (np.array([sign for sign, _ in choice]), np.array([offset for _, offset in choice]))
            for choice in itertools.product(*choices)
        ]


def log_mass(smoother: Smoother, support: Support | None, X: Array) -> Array:
    """log Σ κ s at queries X (m, d) and at their mirror images, (m,); by symmetry the points have none."""

    def at(X: Array) -> Array:
        sums = smoother.answer(Sums, X)
        with np.errstate(divide="ignore"):
            return np.log(sums.values[:, 0]) + sums.log_scale

    if support is None:
        return at(X)
    result = np.full(len(X), -np.inf)
    inside = ~support.outside(X).any(axis=1)
    bandwidth = smoother.bandwidth * smoother.sample.unit
    query, bound = X[inside].astype(np.float64), _bound(smoother)
    total = at(X[inside])
    for sign, offset in support.reflections(smoother.kernel, bandwidth)[1:]:
        image = sign * query + offset
        counts = bound(image, bandwidth) > math.log(_NEGLIGIBLE) + total
        if counts.any():
            total[counts] = np.logaddexp(total[counts], at(image[counts]))
    result[inside] = total
    return result


def likelihood(smoother: Smoother, support: Support | None = None, X: Array | None = None) -> Criterion:
    """Minus the mean log-density of each point under the others, up to a constant (Habbema et al. 1974).

    With a support each of the points X (n, d) is left out together with its images.
    """
    sample = smoother.sample
    counted = sample.weight > 0
    share = sample.counts[counted] / sample.counts.sum()
    bound = None if support is None else _bound(smoother)

    def criterion(log_bandwidth: Array, with_gradient: bool = True, /) -> tuple[float, Array]:
        # Gradients cost little beside the sums of the likelihood, which have no targets.
        trial, within = replace(smoother, bandwidth=np.exp(log_bandwidth)), np.ones(len(log_bandwidth), bool)
        reflections: list[Reflection] = []
        if support is not None:
            wanted = trial.bandwidth * sample.unit
            bandwidth = support.within_reach(wanted)
            within = bandwidth >= wanted
            trial = replace(smoother, bandwidth=bandwidth / sample.unit)
            try:
                reflections = support.reflections(smoother.kernel, bandwidth, _NEGLIGIBLE_IN_CRITERION)[1:]
            except InputError:  # narrower windows have fewer images
                return 1e10 + float(log_bandwidth.sum()), np.ones(len(log_bandwidth))
        direct = trial.answer(BandwidthGradients, None, exclude_self=True)
        if direct.no_support[counted].any():
            # A point alone in a compact support has likelihood zero; smaller bandwidths are no better.
            return 1e10 - float(log_bandwidth.sum()), -np.ones(len(log_bandwidth))
        least = direct.values[:, 0]
        mass, gradient = least.copy(), direct.gradients[:, :, 0].copy()
        for sign, offset in reflections:
            assert X is not None
            assert bound is not None
            image = sign * X + offset
            with np.errstate(divide="ignore"):
                log_negligible = np.log(least) + direct.log_scale + math.log(_NEGLIGIBLE_IN_CRITERION)
            near = np.flatnonzero(bound(image, bandwidth) > log_negligible)
            if len(near) == 0:
                continue
            sums = trial.answer(BandwidthGradients, image[near])
            scaled = (image[near] - X[near]) / bandwidth
            own, own_gradient = _own(smoother.kernel, sample.weight[near], scaled, sums.log_scale)
            others = sums.values[:, 0] - own
            # Images are no nearer to the other points than the point itself; what exceeds that is rounding.
            relative = np.exp(np.minimum(sums.log_scale - direct.log_scale[near], 600.0))
            added = others * relative
            mass[near] += np.clip(np.where(sums.no_support, 0.0, added), 0.0, least[near])
            valid = (added > 0) & (added < 2 * least[near]) & ~sums.no_support
            change = (sums.gradients[:, :, 0] - own_gradient) * relative[:, None]
            gradient[near] += np.where(valid[:, None], change, 0.0)
        log_likelihood = share @ (np.log(mass[counted]) + direct.log_scale[counted])
        by_bandwidth = share @ (gradient[counted] / mass[counted, None])
        varies = np.isfinite(trial.bandwidth)
        slope = np.where(within & varies, 1.0 - by_bandwidth, 0.0)
        return float(np.log(trial.bandwidth[varies]).sum() - log_likelihood), slope

    return criterion


def _bound(smoother: Smoother) -> Callable[[Array, Array], Array]:
    """(X, bandwidth) ↦ upper bounds (m,) of log Σ κ s at X (m, d), from the box of the points."""
    sample = smoother.sample
    points = ((sample.x + sample.centre) * sample.unit)[sample.weight > 0]
    low, high = points.min(axis=0), points.max(axis=0)
    logs = log_values(smoother.kernel, _DISTANCES)
    log_most = np.maximum.accumulate(logs[::-1])[::-1] + math.log(sample.weight.sum())

    def log_mass(X: Array, bandwidth: Array) -> Array:
        gap = np.maximum(np.maximum(low - X, X - high), 0.0) / bandwidth
        r = np.sqrt((gap**2).sum(axis=1))
        return log_most[np.searchsorted(_DISTANCES, r, side="right") - 1]

    return log_mass


def _own(kernel: Kernel, weight: Array, scaled: Array, log_scale: Array) -> tuple[Array, Array]:
    """Return the points' own images at z = scaled (n, d): s κ(‖z‖), and its gradient by log bandwidth.

    Both to be multiplied by exp(log_scale), (n,); weight are s, (n,).
    """
    r = np.sqrt((scaled**2).sum(axis=1))
    distance = torch.tensor(r, requires_grad=True)
    log_kernel = kernel.log(distance)
    (log_slope,) = torch.autograd.grad(log_kernel.sum(), distance)
    logs = log_kernel.detach().numpy()
    reached = np.isfinite(log_scale) & np.isfinite(logs)
    relative = np.where(reached, logs, 0.0) - np.where(reached, log_scale, 0.0)
    # Where the point has no weight its image has other neighbours, and perhaps much smaller ones.
    weight = np.where(reached, weight * np.exp(np.minimum(relative, 700.0)), 0.0)
    per_distance = np.divide(log_slope.numpy(), r, out=np.zeros_like(r), where=(r > 0) & (weight > 0))
    return weight, -(weight * per_distance)[:, None] * scaled**2


def _bounds(pair: Any) -> tuple[float, float]:
    low, high = (None, None) if pair is None else pair
    return -math.inf if low is None else float(low), math.inf if high is None else float(high)


def _reflections(low: float, high: float, order: float) -> list[tuple[float, float]]:
    """(sign, offset) of the images on one axis, the identity first."""
    if math.isinf(low) and math.isinf(high):
        return [(1.0, 0.0)]
    if math.isinf(low) or math.isinf(high):
        return [(1.0, 0.0), (-1.0, 2 * (low if math.isinf(high) else high))]
    shifts = [2 * k * (high - low) for k in sorted(range(-int(order), int(order) + 1), key=abs)]
    return [(1.0, shift) for shift in shifts] + [(-1.0, 2 * low + shift) for shift in shifts]


def _reach(kernel: Kernel, negligible: float) -> float:
    """A distance beyond which the kernel is negligible against its value at 0, within a factor of 1.05."""
    logs = log_values(kernel, _DISTANCES)
    counts = np.flatnonzero(logs > math.log(negligible) + logs[0])
    return float(_DISTANCES[min(counts[-1] + 1, len(_DISTANCES) - 1)])

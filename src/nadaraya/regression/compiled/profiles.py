"""The kernels that have compiled code, as functions of u = Σ_f ((x_f − z_f) / h_f)².

A profile gives κ(u), its derivative κ'(u) = dκ/du, log κ(u) and d log κ/du. The vector forms fill buffers and
are what sums are made of; the scalar forms serve the rare rows in which κ underflows.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from nadaraya.compiled.exponential import exp_nonpositive
from nadaraya.compiled.jit import compiled
from nadaraya.kernels import (
    Boxcar,
    Epanechnikov,
    ExponentialDecay,
    Gaussian,
    GaussianWithoutHalf,
    Kernel,
    Matern,
    Tricube,
)
from nadaraya.kernels.base import Scaled

GAUSSIAN, EXPONENTIAL, MATERN32, MATERN52, EPANECHNIKOV, TRICUBE, BOXCAR = range(7)
FIRST_COMPACT = EPANECHNIKOV
TILE = 256  # points of a tile: its buffers stay in the first-level cache

# Families of the kernels with a bandwidth, and that bandwidth over the profile's length.
_OF_BANDWIDTH: dict[type[Kernel], tuple[int, float]] = {
    Gaussian: (GAUSSIAN, 1.0),
    GaussianWithoutHalf: (GAUSSIAN, math.sqrt(2.0)),
    Epanechnikov: (EPANECHNIKOV, 1.0),
    Tricube: (TRICUBE, 1.0),
    Boxcar: (BOXCAR, 1.0),
}


@dataclass(frozen=True)
class Profile:
    """A kernel as compiled code sees it: κ(r) = factor · profile((r / length)²)."""

    family: int
    length: float
    log_factor: float = 0.0

    @property
    def compact(self) -> bool:
        return self.family >= FIRST_COMPACT


def profile_of(kernel: Kernel) -> Profile | None:
    """The compiled form of a kernel; None where there is none (sums, products, other kernels, banks)."""
    if kernel.batch_shape:
        return None
    if type(kernel) is Scaled:
        inner = profile_of(kernel.kernel)
        if inner is None:
            return None
        return Profile(inner.family, inner.length, inner.log_factor + _number(kernel.log_factor))
    if type(kernel) is ExponentialDecay:
        return Profile(EXPONENTIAL, _natural(kernel.log_length), 2 * _number(kernel.log_sigma))
    if type(kernel) is Matern:
        family = {0.5: EXPONENTIAL, 1.5: MATERN32, 2.5: MATERN52}[kernel.nu]
        return Profile(family, _natural(kernel.log_length))
    if type(kernel) in _OF_BANDWIDTH:
        family, units = _OF_BANDWIDTH[type(kernel)]
        return Profile(family, _natural(kernel.log_bandwidth) / units)
    return None


def _natural(log_parameter: Any) -> float:
    return math.exp(_number(log_parameter))


def _number(parameter: Any) -> float:
    return float(parameter.detach())


@compiled(fastmath=True)
def fill(family: int, u: Any, w: Any, v: Any, derivative: bool) -> None:
    """w = κ(u) and, if `derivative`, v = κ'(u), for a tile; u is overwritten."""
    zero, half, one = u.dtype.type(0.0), u.dtype.type(0.5), u.dtype.type(1.0)
    if family == GAUSSIAN:
        for j in range(TILE):
            w[j] = exp_nonpositive(-half * u[j])
        if derivative:
            for j in range(TILE):
                v[j] = -half * w[j]
    elif family == EXPONENTIAL:
        for j in range(TILE):
            u[j] = np.sqrt(u[j])
            w[j] = exp_nonpositive(-u[j])
        if derivative:
            for j in range(TILE):
                v[j] = -half * w[j] / u[j] if u[j] > zero else zero
    elif family == MATERN32:
        root = u.dtype.type(math.sqrt(3.0))
        for j in range(TILE):
            t = root * np.sqrt(u[j])
            e = exp_nonpositive(-t)
            w[j] = (one + t) * e
            v[j] = u.dtype.type(-1.5) * e
    elif family == MATERN52:
        root = u.dtype.type(math.sqrt(5.0))
        third = u.dtype.type(1.0 / 3.0)
        for j in range(TILE):
            t = root * np.sqrt(u[j])
            e = exp_nonpositive(-t)
            w[j] = (one + t + t * t * third) * e
            v[j] = u.dtype.type(-5.0 / 6.0) * (one + t) * e
    elif family == EPANECHNIKOV:
        for j in range(TILE):
            w[j] = max(one - u[j], zero)
            v[j] = -one if u[j] < one else zero
    elif family == TRICUBE:
        for j in range(TILE):
            s = np.sqrt(u[j])
            rest = max(one - s * u[j], zero)
            w[j] = rest * rest * rest
            v[j] = u.dtype.type(-4.5) * s * rest * rest
    else:
        # A distance of exactly the bandwidth belongs to the support, whatever the last digits say.
        edge = one + u.dtype.type(16.0) * np.finfo(u.dtype).eps
        for j in range(TILE):
            w[j] = one if u[j] <= edge else zero
            v[j] = zero


@compiled()
def log_profile(family: int, u: float) -> float:
    """log κ(u), for the kernels of unbounded support."""
    if family == GAUSSIAN:
        return -0.5 * u
    if family == EXPONENTIAL:
        return -math.sqrt(u)
    if family == MATERN32:
        t = math.sqrt(3.0 * u)
        return math.log1p(t) - t
    t = math.sqrt(5.0 * u)
    return math.log1p(t + t * t / 3.0) - t


@compiled()
def log_slope(family: int, u: float) -> float:
    """d log κ/du, for the kernels of unbounded support; 0 at the cusp of the exponential."""
    if family == GAUSSIAN:
        return -0.5
    if family == EXPONENTIAL:
        return -0.5 / math.sqrt(u) if u > 0 else 0.0
    if family == MATERN32:
        return -1.5 / (1.0 + math.sqrt(3.0 * u))
    t = math.sqrt(5.0 * u)
    return -(5.0 / 6.0) * (1.0 + t) / (1.0 + t + t * t / 3.0)


@compiled()
def upper_bound(family: int, u: float) -> float:
    """κ(u) to a few digits and not below it: what a pair at least that far apart can weigh."""
    if family < FIRST_COMPACT:
        return math.exp(log_profile(family, u)) * (1.0 + 1e-9)
    return 1.0 if u <= 1.0 + 1e-4 else 0.0

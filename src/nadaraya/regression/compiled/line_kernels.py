"""The kernels of sums on a line, as compiled code sees them: of distances u, or of 1 − u, what is left."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadaraya.regression.compiled.exponential import exp_nonpositive
from nadaraya.regression.compiled.jit import compiled
from nadaraya.regression.compiled.profiles import EPANECHNIKOV, GAUSSIAN, MATERN32, MATERN52, TRICUBE

Array = NDArray[np.float64]

EDGE = 8 * np.finfo(np.float64).eps  # how far beyond its bandwidth a boxcar reaches, relative to it


class LineKernel(NamedTuple):
    """κ(u) at u = |q − x| / length.

    Attributes:
        family: one of `profiles`.
        length: unit of distance, in units of x.
        squared: whether κ² takes the place of κ.
        slopes: whether ∂κ/∂log length is summed as well; not with κ².
    """

    family: int
    length: float
    squared: bool
    slopes: bool


@compiled()
def two_sum(a: float, b: float) -> tuple[float, float]:
    """a + b exactly: the rounded sum and its error (Knuth, The Art of Computer Programming 2, 4.2.2)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


@compiled(error_model="numpy", fastmath=True)
def weigh(kernel: LineKernel, count: int, z: Array, w: Array, slope: Array) -> None:
    """κ, Gaussian or compact, and with slopes ∂κ/∂log length at the first z.

    z is the distance u or, for compact kernels, 1 − u, negative outside.
    """
    family = kernel.family
    if family == GAUSSIAN:
        for j in range(count):
            w[j] = exp_nonpositive(-0.5 * z[j] * z[j])
            slope[j] = z[j] * z[j] * w[j]
    elif family == EPANECHNIKOV:
        for j in range(count):
            rest = max(z[j], 0.0)
            u = 1.0 - rest
            w[j] = rest * (1.0 + u)
            slope[j] = 2.0 * u * u if rest > 0.0 else 0.0
    elif family == TRICUBE:
        for j in range(count):
            rest = max(z[j], 0.0)
            u = 1.0 - rest
            rest *= 1.0 + u + u * u  # 1 − u³
            w[j] = rest * rest * rest
            slope[j] = 9.0 * u * u * u * rest * rest
    else:
        for j in range(count):
            w[j] = 1.0 if z[j] >= -EDGE else 0.0
            slope[j] = 0.0
    if kernel.squared:
        for j in range(count):
            w[j] *= w[j]


@compiled(error_model="numpy")
def log_kernel(kernel: LineKernel, u: float) -> float:
    """log κ(u) where the support is unbounded."""
    value = -u
    if kernel.family == GAUSSIAN:
        value = -0.5 * u * u
    elif kernel.family == MATERN32:
        value = math.log1p(u) - u
    elif kernel.family == MATERN52:
        value = math.log1p(u * (1.0 + u / 3.0)) - u
    return 2.0 * value if kernel.squared else value


@compiled(error_model="numpy")
def relative(kernel: LineKernel, near: float, excess: float) -> tuple[float, float]:
    """κ(near + excess) / κ(near) and ∂κ/∂log length over the same, where the support is unbounded."""
    u = near + excess
    weight, slope = math.exp(-excess), u
    if kernel.family == GAUSSIAN:
        weight, slope = math.exp(-0.5 * excess * (u + near)), u * u
    elif kernel.family == MATERN32:
        weight *= (1.0 + u) / (1.0 + near)
        slope = u * u / (1.0 + u)
    elif kernel.family == MATERN52:
        polynomial = 1.0 + u * (1.0 + u / 3.0)
        weight *= polynomial / (1.0 + near * (1.0 + near / 3.0))
        slope = u * u * (1.0 + u) / 3.0 / polynomial
    if kernel.squared:
        weight *= weight
    return weight, weight * slope

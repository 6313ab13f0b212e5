"""Draws from a kernel as a density on R^d: a direction, and a distance by the inverse of its distribution."""

import math

import numpy as np
from numpy.typing import NDArray

from nadaraya.kernels import Kernel
from nadaraya.regression.requests import Array
from nadaraya.regression.rules import edge_of, log_values

_CELLS_PER_OCTAVE, _OCTAVES = 64, 120
# Where the density ends in a zero, as at the edge of the tricube, Newton's method takes many steps.
_MOST_STEPS, _PRECISION = 60, 1e-13
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


def draws(kernel: Kernel, shape: tuple[int, int], random: np.random.RandomState) -> NDArray[np.float64]:
    """Independent draws z, with density κ(‖z‖) / ∫ κ.

    The direction is uniform; the distance has the density r^(d − 1) κ(r), whose distribution function is
    known to rounding from Gauss-Legendre quadrature, and is inverted by Newton's method.

    Args:
        kernel: κ(r), with a finite integral in d dimensions.
        shape: (n, d).
        random: source of the draws.

    Returns:
        (n, d).
    """
    direction = random.standard_normal(shape)
    direction /= np.sqrt((direction**2).sum(axis=1, keepdims=True))
    return direction * _distances(kernel, shape[1], random.random_sample(shape[0]))[:, None]


def _distances(kernel: Kernel, dimension: int, probability: Array) -> Array:
    """The quantiles (n,) of the distance from the origin."""
    edge = edge_of(kernel)
    exponents = np.arange(-_CELLS_PER_OCTAVE * _OCTAVES, 1) / _CELLS_PER_OCTAVE
    ends = np.append(0.0, (2.0 ** (_OCTAVES // 2) if math.isinf(edge) else edge) * 2.0**exponents)
    low, high = ends[:-1], ends[1:]
    largest = _log_density(kernel, dimension, high[:-1]).max()

    def mass(low: Array, high: Array) -> Array:
        half = (high - low)[:, None] / 2
        inner = low[:, None] + half * (1 + _NODES)
        return (half * np.exp(_log_density(kernel, dimension, inner) - largest)) @ _WEIGHTS

    cumulative = np.append(0.0, np.cumsum(mass(low, high)))
    wanted = probability * cumulative[-1]
    cell = np.clip(np.searchsorted(cumulative, wanted, side="right") - 1, 0, len(low) - 1)
    low, high, wanted = low[cell], high[cell], wanted - cumulative[cell]
    share = wanted / (cumulative[cell + 1] - cumulative[cell])
    r = low + (high - low) * np.clip(share, 0.0, 1.0)
    start, left = low.copy(), np.arange(len(r))
    for _ in range(_MOST_STEPS):
        before = r[left]
        excess = mass(start[left], before) - wanted[left]
        low[left] = np.where(excess > 0, low[left], before)
        high[left] = np.where(excess > 0, before, high[left])
        density = np.exp(_log_density(kernel, dimension, before) - largest)
        steep = density * (high[left] - low[left]) > np.abs(excess)  # the step stays near
        newton = before - np.divide(excess, density, out=np.full_like(before, np.inf), where=steep)
        inside = (newton > low[left]) & (newton < high[left])
        r[left] = np.where(inside, newton, (low[left] + high[left]) / 2)
        left = left[np.abs(r[left] - before) > _PRECISION * before]
        if len(left) == 0:
            break
    return r


def _log_density(kernel: Kernel, dimension: int, r: Array) -> Array:
    """(d − 1) log r + log κ(r)."""
    log_kernel = log_values(kernel, r)
    if dimension == 1:
        return log_kernel
    return (dimension - 1) * np.log(np.maximum(r, np.finfo(np.float64).tiny)) + log_kernel

"""Rules of thumb for bandwidths, and how wide a kernel of bandwidth 1 is."""

import math
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp

from nadaraya.kernels import Kernel
from nadaraya.regression.requests import Array

RULES = ("silverman", "scott")


def rule_of_thumb(rule: str, x: Array, weight: Array, kernel: Kernel) -> NDArray[np.float64]:
    """Bandwidths by feature, for the Gaussian c(d) σ_f n^(−1/(d + 4)).

    c(d) is 1 (Scott 1992) or (4 / (d + 2))^(1/(d + 4)) (Silverman 1986); n is the sum of the weights, at
    least 1, d the number of features that vary and σ_f their weighted standard deviation. For another kernel
    the result is divided by the kernel's standard deviation on the line, so that it smooths as much as the
    Gaussian (Marron and Nolan 1988).

    Args:
        rule: "silverman" or "scott".
        x: (n, d) points.
        weight: (n,) weights ≥ 0, in number of observations.
        kernel: κ(r).

    Returns:
        (d,) bandwidths, inf for a feature that does not vary.
    """
    spread = standard_deviations(x, weight)
    d, n = int((spread > 0).sum()), max(1.0, float(weight.sum()))
    constant = (4.0 / (d + 2.0)) ** (1.0 / (d + 4.0)) if rule == "silverman" else 1.0
    factor = constant * n ** (-1.0 / (d + 4.0)) / spread_of_kernel(kernel) if d else 1.0
    return np.where(spread > 0, factor * spread, np.inf)


def standard_deviations(x: Array, weight: Array) -> NDArray[np.float64]:
    """(d,) weighted standard deviations of the features; 0 where the weighted points are all equal.

    NaN are left out, each for its feature.
    """
    missing = np.isnan(x)
    if missing.any():
        columns = zip(x.T, ~missing.T, strict=True)
        deviations = [standard_deviations(column[known, None], weight[known]) for column, known in columns]
        return np.concatenate(deviations)
    if not (weight > 0).any():
        return np.zeros(x.shape[1])
    weighted = x[weight > 0].astype(np.float64)
    varies = (weighted != weighted[0]).any(axis=0)
    mean = np.average(weighted, axis=0, weights=weight[weight > 0])
    variance = np.average((weighted - mean) ** 2, axis=0, weights=weight[weight > 0])
    return np.where(varies, np.sqrt(variance), 0.0)


def spread_of_kernel(kernel: Kernel) -> float:
    """√(∫ r² κ / ∫ κ), the standard deviation of the kernel on the line; 1 for a kernel with heavy tails."""
    mass, second = log_radial_moment(kernel, 0), log_radial_moment(kernel, 2)
    return math.exp((second - mass) / 2) if math.isfinite(second) else 1.0


def log_radial_moment(kernel: Kernel, order: int) -> float:
    """log ∫_0^∞ r^order κ(r) dr; inf if it does not converge.

    By Gauss-Legendre quadrature in intervals of one ratio, nearer to 1 for a high order with its narrow peak.
    They go up to the edge of a compact kernel, which is found first, or else to 2^60 widths, with what is
    beyond below 1e-12 of the whole. Of logarithms, so that neither r^order overflows nor κ underflows.
    """
    width, edge = _width(kernel), edge_of(kernel)
    endless = math.isinf(edge)
    nodes, weights = _quadrature()
    octaves, step = 92.0 if endless else 32.0, 1.0 if order < 32 else 0.125
    edges = (2.0**60 * width if endless else edge) * 2.0 ** -np.arange(0.0, octaves, step)
    low, high = np.append(edges[1:], 0.0)[:, None], edges[:, None]
    r = (low + high) / 2 + (high - low) / 2 * nodes
    log_integrand = log_values(kernel, r) + order * np.log(r)
    logs = logsumexp(log_integrand + np.log((high - low) / 2 * weights), axis=1)
    total = float(logsumexp(logs))
    return math.inf if endless and not logs[: int(1 / step)].max() <= math.log(1e-12) + total else total


def values(kernel: Kernel, r: Array) -> NDArray[np.float64]:
    """κ(r) in float64, without gradients."""
    with torch.no_grad():
        return kernel(torch.tensor(r, dtype=torch.float64)).numpy()


def log_values(kernel: Kernel, r: Array) -> NDArray[np.float64]:
    """log κ(r) in float64, without gradients."""
    with torch.no_grad():
        return kernel.log(torch.tensor(r, dtype=torch.float64)).numpy()


@cache
def _quadrature() -> tuple[Array, Array]:
    """Nodes and weights, which take longer to find than a small fit."""
    return np.polynomial.legendre.leggauss(64)


def _width(kernel: Kernel) -> float:
    """The greatest power of two where κ is not far below κ(0)."""
    grid = 2.0 ** np.arange(-300, 301)
    near = np.flatnonzero(log_values(kernel, grid) >= log_values(kernel, np.zeros(1)) - 1.0)
    return float(grid[near[-1]]) if len(near) else 1.0


def edge_of(kernel: Kernel) -> float:
    """Where κ becomes exactly 0 and stays so; inf if nowhere."""
    grid = _width(kernel) * 2.0 ** np.arange(61)
    positive = np.flatnonzero(log_values(kernel, grid) > -np.inf)
    if len(positive) == 0 or positive[-1] == len(grid) - 1:
        return math.inf
    inside, outside = grid[positive[-1]], grid[positive[-1] + 1]
    while (middle := (inside + outside) / 2) not in (inside, outside):
        inside, outside = (middle, outside) if log_values(kernel, middle) > -np.inf else (inside, middle)
    return float(outside)

"""Bandwidths without a criterion, and how wide a kernel of bandwidth 1 is.

Rules of thumb, and plug-ins on the line: Sheather and Jones (1991); Botev, Grotowski and Kroese (2010).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.fft import rfft
from scipy.optimize import brentq
from scipy.special import logsumexp

from nadaraya.errors import InputError
from nadaraya.kernels import Kernel
from nadaraya.regression.requests import Array

RULES = ("silverman", "scott")


def rule_of_thumb(rule: str, x: Array, weight: Array, kernel: Kernel) -> NDArray[np.float64]:
    """(d,) bandwidths, for the Gaussian c(d) σ_f n^(−1/(d + 4)); inf for a feature that does not vary.

    c(d) is 1 (Scott 1992) or (4 / (d + 2))^(1/(d + 4)) (Silverman 1986); n is the sum of the weights, at
    least 1, d the number of features that vary and σ_f their weighted standard deviation. For another kernel
    the result is divided by the kernel's standard deviation on the line, so that it smooths as much as the
    Gaussian (Marron and Nolan 1988).
    """
    spread = standard_deviations(x, weight)
    d, n = int((spread > 0).sum()), max(1.0, float(weight.sum()))
    constant = (4.0 / (d + 2.0)) ** (1.0 / (d + 4.0)) if rule == "silverman" else 1.0
    factor = constant * n ** (-1.0 / (d + 4.0)) / spread_of_kernel(kernel) if d else 1.0
    return np.where(spread > 0, factor * spread, np.inf)


def standard_deviations(x: Array, weight: Array) -> NDArray[np.float64]:
    """(d,) weighted standard deviations of the features without NaN; 0 where all are equal."""
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

    By Gauss-Legendre quadrature of logarithms in intervals of one ratio, up to the edge of a compact kernel,
    or else to 2^60 widths, with what is beyond below 1e-12 of the whole.
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
    """Return the distance from which κ is exactly 0; inf if there is none."""
    grid = _width(kernel) * 2.0 ** np.arange(61)
    positive = np.flatnonzero(log_values(kernel, grid) > -np.inf)
    if len(positive) == 0 or positive[-1] == len(grid) - 1:
        return math.inf
    inside, outside = grid[positive[-1]], grid[positive[-1] + 1]
    while (middle := (inside + outside) / 2) not in (inside, outside):
        inside, outside = (middle, outside) if log_values(kernel, middle) > -np.inf else (inside, middle)
    return float(outside)


# Numbers of bins to try, until the bandwidth is at least so many of them.
_BINS, _RESOLVED = (2**14, 2**17, 2**20), 200
# Gaps wider than this, in units of the scale, are made this wide: no pair across one counts.
_WIDEST_GAP = 40.0
_QUARTILES_OF_NORMAL = 1.3489795003921634
_STEP = 1.1


@dataclass(frozen=True)
class _Spectrum:
    """A sample by its characteristic function φ: frequencies ω > 0, their spacing, |φ(ω)|², and n."""

    frequency: Array
    spacing: float
    power: Array
    n: float

    @classmethod
    def of(cls, x: Array, counts: Array, bins: int) -> tuple["_Spectrum", float]:
        """From the sample by linear binning (Jones and Lotwick 1984), and the width of a bin."""
        period = float(x.max() - x.min()) + _WIDEST_GAP
        width = period / bins
        position = (x - x.min()) / width
        left = position.astype(np.intp)
        right_share = counts * (position - left)
        binned = np.bincount(left, counts - right_share, bins) + np.bincount(left + 1, right_share, bins)
        n, spacing = float(counts.sum()), 2 * math.pi / period
        power = np.abs(rfft(binned)[1:] / n) ** 2
        return cls(spacing * np.arange(1, len(power) + 1), spacing, power, n), width

    def roughness(self, order: int, variance: float) -> float:
        """∫ (f^(order))² of the density estimate f with a Gaussian kernel of this variance (Parseval)."""
        count = int(np.searchsorted(self.frequency, 14.0 / math.sqrt(variance)))
        square, power = self.frequency[:count] ** 2, self.power[:count]
        return float((square**order * power * np.exp(-variance * square)).sum()) * self.spacing / math.pi


def _sheather_jones(spectrum: _Spectrum) -> Callable[[float], float]:
    """h ↦ [1 / (2 √π n S(α(h)))]^(1/5), with S and α of Sheather and Jones (1991); scale 1."""
    n = spectrum.n

    def functional(order: int, bandwidth: float) -> float:
        return spectrum.roughness(order, bandwidth**2 / 2) * n / (n - 1)

    # Pilot bandwidths that are right for a normal density of standard deviation 1.
    fourth = functional(2, (16 * math.sqrt(2) / (5 * n)) ** (1 / 7))
    sixth = functional(3, (480 * math.sqrt(2) / (105 * n)) ** (1 / 9))
    ratio = (6 * math.sqrt(2) * fourth / sixth) ** (1 / 7)

    def improved(h: float) -> float:
        return float((2 * math.sqrt(math.pi) * n * functional(2, ratio * h ** (5 / 7))) ** (-1 / 5))

    return improved


def _improved_sheather_jones(spectrum: _Spectrum) -> Callable[[float], float]:
    """h ↦ √(ξ γ^[5](h²)), Botev, Grotowski and Kroese (2010), Algorithm 1: from ‖f^(7)‖² down to ‖f″‖²."""
    n = spectrum.n

    def improved(h: float) -> float:
        rough = spectrum.roughness(7, h**2)
        for order in range(6, 1, -1):
            constant = (1 + 0.5 ** (order + 0.5)) / 3 * math.prod(range(1, 2 * order, 2))
            variance = (2 * constant / (math.sqrt(2 * math.pi) * n * rough)) ** (2 / (3 + 2 * order))
            rough = spectrum.roughness(order, variance)
        return float((2 * math.sqrt(math.pi) * n * rough) ** (-1 / 5))

    return improved


PLUG_INS = {"sheather-jones": _sheather_jones, "improved-sheather-jones": _improved_sheather_jones}


def plug_in(rule: str, x: Array, counts: Array) -> float:
    """The bandwidth of a Gaussian kernel density estimate of points (n,) that solves the rule's equation.

    Both estimate the bandwidth of least asymptotic mean integrated squared error, h⁵ = 1 / (2 √π n ∫ f″²),
    with ∫ f″² from pilot estimates of the density: one whose bandwidth follows from h as it would for a
    normal density, or a cascade of five that presumes no shape. Of several solutions the largest is taken.
    O(n log n) for sorting and O(n) for binning; the bins are fine against the bandwidth.
    """
    order = np.argsort(x)
    order = order[counts[order] > 0]
    x, counts = x[order].astype(np.float64), counts[order]
    if counts.sum() < 3:
        raise InputError(
            f"bandwidth={rule!r} needs at least 3 observations, got weights with the sum {counts.sum():g}"
        )
    scale = _scale(x, counts)
    x = np.append(0.0, np.cumsum(np.minimum(np.diff(x) / scale, _WIDEST_GAP)))
    first = 1.144 * counts.sum() ** (-1 / 5)
    for bins in _BINS:
        spectrum, width = _Spectrum.of(x, counts, bins)
        found = _largest_solution(PLUG_INS[rule](spectrum), first, 5 * width)
        if found is not None and found >= _RESOLVED * width:
            break
    if found is None:
        raise InputError(
            f"bandwidth={rule!r} has no solution for these {counts.sum():.0f} points: "
            "give a number, 'scott' or 'loo'"
        )
    return found * scale


def _largest_solution(improved: Callable[[float], float], start: float, least: float) -> float | None:
    """The largest h ≥ least with improved(h) = h; None if there is none."""
    upper = start
    while improved(upper) >= upper:
        upper *= _STEP
        if upper > _WIDEST_GAP:
            return None
    lower = upper / _STEP
    while improved(lower) < lower:
        lower, upper = lower / _STEP, lower
        if upper < least:
            return None
    return brentq(lambda h: improved(h) - h, lower, upper, rtol=1e-10)


def _scale(x: Array, counts: Array) -> float:
    """The standard deviation of sorted points, or if less their quartiles' distance over the normal's."""
    deviation = float(standard_deviations(x[:, None], counts)[0])
    ends = np.cumsum(counts)
    place = np.array([0.25, 0.75]) * (ends[-1] - 1)
    # As of the sample with every point repeated as its weight says.
    below, above = (
        x[np.minimum(np.searchsorted(ends, index, side="right"), len(x) - 1)]
        for index in (np.floor(place), np.floor(place) + 1)
    )
    low, high = below + (place % 1) * (above - below)
    return min(deviation, float(high - low) / _QUARTILES_OF_NORMAL) if high > low else deviation

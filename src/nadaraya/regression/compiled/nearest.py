"""Queries whose every weight underflows or is zero: a second look, relative to the nearest point."""

import math
from typing import Any

import numpy as np

from nadaraya.regression.compiled.jit import compiled
from nadaraya.regression.compiled.modes import BY_BANDWIDTH, BY_POSITION, LINES, MOMENTS, VALUES
from nadaraya.regression.compiled.order import TILE
from nadaraya.regression.compiled.profiles import FIRST_COMPACT, log_profile, log_slope


@compiled()
def _distance(q: Any, i: int, tile: Any, j: int) -> float:
    """The squared distance of one pair, in float64."""
    u = 0.0
    for f in range(tile.shape[0]):
        t = float(q[f, i]) - float(tile[f, j])
        u += t * t
    return u


@compiled()
def _nearest(
    q: Any, i: int, x: Any, columns: Any, self_at: int, scale: float, bounds: Any, nearest_first: Any
) -> float:
    """The least squared distance from query i to a point that has weight; infinite if there is none."""
    best = np.inf
    for t in nearest_first:
        if bounds[t] > best * scale:
            break
        for j in range(TILE):
            if columns[t, 0, j] > 0 and t * TILE + j != self_at:
                best = min(best, _distance(q, i, x[t], j))
    return best


@compiled()
def _add_features(
    mode: int,
    q: Any,
    i: int,
    x: Any,
    columns: Any,
    j: int,
    weight: float,
    slope: float,
    by_feature: Any,
    second: Any,
) -> None:
    """Adds the pair (i, j) to the derivatives or moments of query i."""
    for f in range(x.shape[0]):
        t = float(q[f, i]) - float(x[f, j])
        if mode == BY_BANDWIDTH:
            factor = weight * slope * t * t
        elif mode == BY_POSITION:
            factor = weight * slope * t
        else:
            factor = weight * t
            for g in range(f + 1):
                second[i, f, g] += factor * (float(q[g, i]) - float(x[g, j])) * columns[0, j]
        for c in range(columns.shape[0]):
            by_feature[i, f, c] += factor * columns[c, j]


@compiled()
def _add_line(
    q: Any,
    i: int,
    x: Any,
    columns: Any,
    j: int,
    change: float,
    row: Any,
    coefficients: Any,
    by_feature: Any,
) -> None:
    """Adds the pair (i, j), whose weight has derivative `change`, to the derivatives of a local line."""
    leaning = row[i, 0]
    for f in range(x.shape[0]):
        leaning += row[i, 1 + f] * (float(x[f, j]) - float(q[f, i]))
    for c in range(columns.shape[0]):
        line = leaning if c == 0 else coefficients[i, 0, c]
        if c > 0:
            for f in range(x.shape[0]):
                line += coefficients[i, 1 + f, c] * (float(x[f, j]) - float(q[f, i]))
        residual = columns[0, j] * line if c == 0 else columns[c, j] - columns[0, j] * line
        for f in range(x.shape[0]):
            t = float(q[f, i]) - float(x[f, j])
            by_feature[i, f, c] += change * leaning * residual * t * t


@compiled()
def add_from_nearest(
    mode: int,
    family: int,
    power: int,
    q: Any,
    i: int,
    x: Any,
    columns: Any,
    self_at: int,
    scale: float,
    bounds: Any,
    nearest_first: Any,
    row: Any,
    coefficients: Any,
    out: Any,
    by_feature: Any,
    second: Any,
) -> float:
    """Sums of query i with weights relative to its nearest point's; returns the logarithm of that weight.

    Beyond the support of a compact kernel, −∞, and the sums are those of the nearest points.
    """
    out[i, :] = 0.0
    if mode != VALUES:
        by_feature[i] = 0.0
    if mode == MOMENTS:
        second[i] = 0.0
    nearest = _nearest(q, i, x, columns, self_at, scale, bounds, nearest_first)
    if nearest == np.inf:
        return -np.inf
    compact = family >= FIRST_COMPACT
    top = 0.0 if compact else log_profile(family, nearest * scale)
    # All points together, each below exp(negligible), stay below the last digit of the nearest one's weight
    # 1.
    negligible = -45.0 - math.log(x.shape[0] * TILE)
    for t in nearest_first:
        if compact:
            if bounds[t] > nearest * scale:
                break
        elif log_profile(family, bounds[t]) - top < negligible:
            break
        for j in range(TILE):
            if columns[t, 0, j] == 0.0 or t * TILE + j == self_at:
                continue
            u = _distance(q, i, x[t], j)
            weight, slope = 1.0, 0.0
            if not compact:
                weight = math.exp(power * (log_profile(family, u * scale) - top))
                slope = log_slope(family, u * scale)
            elif u > nearest * (1.0 + 1e-12):
                continue
            for c in range(columns.shape[1]):
                out[i, c] += weight * columns[t, c, j]
            if mode == LINES:
                _add_line(q, i, x[t], columns[t], j, weight * slope, row, coefficients, by_feature)
            elif mode != VALUES:
                _add_features(mode, q, i, x[t], columns[t], j, weight, slope, by_feature, second)
    return -np.inf if compact else power * top

"""Sums over pairs for arrays in any order: prepares, calls the compiled loops, puts results back in order."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nadaraya.regression.compiled.order import TILE, spatial_order
from nadaraya.regression.compiled.pairs import (
    BY_BANDWIDTH,
    BY_POSITION,
    MOMENTS,
    NOT_A_POINT,
    VALUES,
    accumulate,
)
from nadaraya.regression.compiled.profiles import Profile

Array = NDArray[np.floating]

# Weight that may be left out, relative to the whole; derivatives weigh far pairs by their squared distance.
_TOLERANCE = {np.dtype(np.float64): (1e-17, 1e-19), np.dtype(np.float32): (1e-9, 1e-11)}
# Below these, sums may consist of underflow; they are made again relative to the nearest point.
_TINY = {np.dtype(np.float64): 1e-280, np.dtype(np.float32): 1e-25}


@dataclass(frozen=True)
class OrderedPoints:
    """Points in spatial order.

    Attributes:
        x: (d, n) coordinates, contiguous by feature.
        permutation: (n,) which point stands where.
    """

    x: Array
    permutation: NDArray[np.int64]

    @classmethod
    def of(cls, points: Array, unit: Array) -> "OrderedPoints":
        """Orders points.

        Args:
            points: (n, d), float32 or float64.
            unit: (d,) for each feature the difference that counts as one; any positive numbers are correct.
        """
        x = np.ascontiguousarray(points.T)
        permutation = spatial_order(x / unit[:, None].astype(x.dtype), TILE)
        return cls(np.ascontiguousarray(x[:, permutation]), permutation)


class PairSums(NamedTuple):
    """Sums over the points, for every query; each is to be multiplied by exp(log_scale).

    Attributes:
        values: (m, c) Σ_j κ C_cj.
        by_feature: (m, d, c) with derivative "bandwidth" ∂/∂log h_f of the same, with "position" ∂/∂q_f of the
            same, with moments Σ_j κ (q_f − x_jf) C_cj.
        second: (m, d, d) with moments Σ_j κ (q_f − x_jf) (q_g − x_jg) C_0j.
        log_scale: (m,) 0, except where weights underflow: then sums are relative to the nearest point's weight,
            and −inf where every weight is exactly zero; the sums are then those of the nearest points alone.
    """

    values: Array
    by_feature: Array
    second: Array
    log_scale: Array


_MODES = {"values": VALUES, "bandwidth": BY_BANDWIDTH, "position": BY_POSITION, "moments": MOMENTS}


def pair_sums(
    query: OrderedPoints,
    points: OrderedPoints,
    columns: Array,
    profile: Profile,
    bandwidth: Array,
    *,
    what: str = "values",
    power: int = 1,
    query_scale: Array | None = None,
    exclude_self: bool = False,
) -> PairSums:
    """Sums over all pairs of queries and points, O(n + m) memory, on all threads.

    Args:
        query: m points; with exclude_self, the object `points` itself.
        points: n points.
        columns: (c, n) in the order in which the points were given; columns[0] ≥ 0 are their weights, not above
            1, and bound the others up to a common factor.
        profile: the kernel.
        bandwidth: (d,), inf for a feature that plays no part.
        what: "values"; "bandwidth" or "position" for derivatives too; "moments" for local regression.
        power: 2 for sums with κ², of "values" only.
        query_scale: (m,) bandwidths of the queries relative to `bandwidth`; default all 1.
        exclude_self: query i does not see point i.

    Returns:
        The sums, float64, in the order in which the queries were given.
    """
    dtype = points.x.dtype
    d, m = query.x.shape
    inverse = 1.0 / (np.asarray(bandwidth, np.float64) * profile.length)
    q = query.x * inverse[:, None].astype(dtype)
    x = _tiles(points.x * inverse[:, None].astype(dtype), "edge")
    tiled_columns = _tiles(columns[:, points.permutation].astype(dtype), "constant")
    shrink = np.ones(m) if query_scale is None else query_scale[query.permutation] ** -2.0
    c = len(columns)
    mode = _MODES[what]
    values, log_scale = np.zeros((m, c)), np.zeros(m)
    by_feature = np.zeros((m, d, c) if mode != VALUES else (0, d, c))
    second = np.zeros((m, d, d) if mode == MOMENTS else (0, d, d))
    accumulate(
        mode,
        profile.family,
        power,
        q,
        x,
        tiled_columns,
        x.min(axis=2).T,
        x.max(axis=2).T,
        tiled_columns[:, 0].sum(axis=1, dtype=np.float64),
        shrink,
        np.arange(m) if exclude_self else np.full(m, NOT_A_POINT),
        _TOLERANCE[dtype][0 if what == "values" else 1],
        0.0 if profile.compact else _TINY[dtype],
        values,
        by_feature,
        second,
        log_scale,
    )
    if mode == BY_BANDWIDTH:  # ∂u/∂log h_f = −2 (Δ_f / h_f)²
        by_feature *= -2.0 * shrink[:, None, None]
    elif mode == BY_POSITION:  # ∂u/∂q_f = 2 Δ_f / h_f²
        by_feature *= 2.0 * shrink[:, None, None] * inverse[:, None]
    elif mode == MOMENTS:  # differences were in units of the bandwidth
        h = np.where(inverse > 0, 1.0 / np.where(inverse > 0, inverse, 1.0), 1.0)
        by_feature *= h[:, None]
        second += np.tril(second, -1).transpose(0, 2, 1)
        second *= h[:, None] * h
    log_scale += power * profile.log_factor
    back = np.empty_like(query.permutation)
    back[query.permutation] = np.arange(m)
    return PairSums(
        values[back],
        by_feature[back] if len(by_feature) else by_feature,
        second[back] if len(second) else second,
        log_scale[back],
    )


def _tiles(rows: Array, padding: Literal["edge", "constant"]) -> Array:
    """(k, n) as (T, k, TILE), the last tile filled up with its last entry or with zeros."""
    k, n = rows.shape
    padded = np.pad(rows, ((0, 0), (0, -n % TILE)), mode=padding)
    return np.ascontiguousarray(padded.reshape(k, -1, TILE).transpose(1, 0, 2))

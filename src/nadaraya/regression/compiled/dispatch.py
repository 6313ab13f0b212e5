"""Which compiled way can serve a call of `nadaraya.regression.sums`, and the arrays it takes."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nadaraya.kernels import Kernel
from nadaraya.regression.compiled import one_dimension
from nadaraya.regression.compiled.modes import BY_BANDWIDTH, BY_POSITION, LINES, MOMENTS, VALUES
from nadaraya.regression.compiled.order import TILE, spatial_order
from nadaraya.regression.compiled.pairs import NOT_A_POINT, accumulate
from nadaraya.regression.compiled.profiles import Profile, profile_of
from nadaraya.regression.sums import PairSums

Array = NDArray[np.floating]

# Weight that may be left out, relative to the whole; derivatives weigh far pairs by their squared distance.
_TOLERANCE = {np.dtype(np.float64): (1e-17, 1e-19), np.dtype(np.float32): (1e-9, 1e-11)}
# Below these, sums may consist of underflow; they are made again relative to the nearest point.
_TINY = {np.dtype(np.float64): 1e-280, np.dtype(np.float32): 1e-25}
_MODES = {
    "values": VALUES,
    "bandwidth": BY_BANDWIDTH,
    "position": BY_POSITION,
    "moments": MOMENTS,
    "lines": LINES,
}
# From so many pairs on sorting costs less than visiting them.
_PAIRS_WORTH_SORTING = 2**20


def pair_sums(
    query: Array,
    points: Array,
    columns: Array,
    kernel: Kernel,
    bandwidth: Array,
    what: str,
    power: int,
    query_scale: Array | None,
    exclude_self: bool,
    lines: tuple[Array, Array] | None,
) -> PairSums | None:
    """The sums of `nadaraya.regression.sums.pair_sums`; None for kernels that are not compiled."""
    profile = profile_of(kernel)
    if profile is None:
        return None
    if (
        points.shape[1] == 1
        and what in ("values", "bandwidth")
        and query_scale is None
        and np.isfinite(bandwidth[0])
        and len(query) * len(points) >= _PAIRS_WORTH_SORTING
        and one_dimension.can_sort(profile)
    ):
        return one_dimension.pair_sums(
            query, points, columns, profile, float(bandwidth[0]), what, power, exclude_self
        )
    unit = np.where(np.isfinite(bandwidth), bandwidth, np.inf)
    ordered = _Ordered.of(points, unit)
    ordered_query = ordered if exclude_self or query is points else _Ordered.of(query, unit)
    return _over_tiles(
        ordered_query, ordered, columns, profile, bandwidth, what, power, query_scale, exclude_self, lines
    )


@dataclass(frozen=True)
class _Ordered:
    """Points in spatial order: x (d, n), and permutation (n,), which point stands where."""

    x: Array
    permutation: NDArray[np.int64]

    @classmethod
    def of(cls, points: Array, unit: Array) -> "_Ordered":
        x = np.ascontiguousarray(points.T)
        permutation = spatial_order(x * (1.0 / unit[:, None]).astype(x.dtype), TILE)
        return cls(np.ascontiguousarray(x[:, permutation]), permutation)


def _over_tiles(
    query: _Ordered,
    points: _Ordered,
    columns: Array,
    profile: Profile,
    bandwidth: Array,
    what: str,
    power: int,
    query_scale: Array | None,
    exclude_self: bool,
    lines: tuple[Array, Array] | None,
) -> PairSums:
    dtype = points.x.dtype
    d, m = query.x.shape
    inverse = 1.0 / (np.asarray(bandwidth, np.float64) * profile.length)
    q = query.x * inverse[:, None].astype(dtype)
    x = _tiles(points.x * inverse[:, None].astype(dtype), "edge")
    tiled_columns = _tiles(columns[:, points.permutation].astype(dtype), "constant")
    shrink = np.ones(m) if query_scale is None else query_scale[query.permutation] ** -2.0
    mode, c = _MODES[what], len(columns)
    values, log_scale = np.zeros((m, c)), np.zeros(m)
    by_feature = np.zeros((m, d, c) if mode != VALUES else (0, d, c))
    second = np.zeros((m, d, d) if mode == MOMENTS else (0, d, d))
    unit = np.divide(1.0, inverse, out=np.zeros(d), where=inverse > 0)
    row, coefficients = _scaled_lines(lines, query.permutation, unit, dtype, c)
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
        _TOLERANCE[dtype][0 if mode == VALUES else 1],
        0.0 if profile.compact else _TINY[dtype],
        row,
        coefficients,
        values,
        by_feature,
        second,
        log_scale,
    )
    if mode in (BY_BANDWIDTH, LINES):  # ∂u/∂log h_f = −2 (Δ_f / h_f)²
        by_feature *= -2.0 * shrink[:, None, None]
    elif mode == BY_POSITION:  # ∂u/∂q_f = 2 Δ_f / h_f²
        by_feature *= 2.0 * shrink[:, None, None] * inverse[:, None]
    elif mode == MOMENTS:  # differences were in units of the bandwidth
        by_feature *= unit[:, None]
        second += np.tril(second, -1).transpose(0, 2, 1)
        second *= unit[:, None] * unit
    log_scale += power * profile.log_factor
    back = np.empty_like(query.permutation)
    back[query.permutation] = np.arange(m)
    return PairSums(
        values[back],
        by_feature[back] if mode != VALUES else by_feature,
        second[back] if mode == MOMENTS else second,
        log_scale[back],
    )


def _scaled_lines(
    lines: tuple[Array, Array] | None,
    permutation: NDArray[np.int64],
    unit: Array,
    dtype: Any,
    num_columns: int,
) -> tuple[Array, Array]:
    """Rows (m, d + 1) and coefficients (m, d + 1, c) in the order and the units of the compiled loops."""
    d = len(unit)
    if lines is None:
        return np.zeros((0, d + 1), dtype), np.zeros((0, d + 1, num_columns), dtype)
    scale = np.append(1.0, unit)
    row = lines[0][permutation] * scale
    coefficients = np.zeros((len(permutation), d + 1, num_columns))
    coefficients[:, :, 1:] = lines[1][permutation] * scale[:, None]
    return row.astype(dtype), coefficients.astype(dtype)


def _tiles(rows: Array, padding: Literal["edge", "constant"]) -> Array:
    """(k, n) as (T, k, TILE), the last tile filled up with its last entry or with zeros."""
    k, n = rows.shape
    padded = np.pad(rows, ((0, 0), (0, -n % TILE)), mode=padding)
    return np.ascontiguousarray(padded.reshape(k, -1, TILE).transpose(1, 0, 2))

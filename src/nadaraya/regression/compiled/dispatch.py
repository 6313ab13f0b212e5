"""Which compiled way serves a request for sums, and the arrays it takes."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nadaraya.regression.compiled import one_dimension
from nadaraya.regression.compiled.modes import BY_BANDWIDTH, BY_POSITION, LINES, MOMENTS, VALUES
from nadaraya.regression.compiled.order import TILE, spatial_order
from nadaraya.regression.compiled.pairs import NOT_A_POINT, Law, Queries, Tiles, Totals, accumulate
from nadaraya.regression.compiled.profiles import Profile, profile_of
from nadaraya.regression.requests import (
    Array,
    BandwidthGradients,
    LineGradients,
    Lines,
    Moments,
    PositionGradients,
    Request,
    Sums,
)

# Weight that may be left out, relative to the whole; derivatives weigh far pairs by their squared distance.
_TOLERANCE = {np.dtype(np.float64): (1e-17, 1e-19), np.dtype(np.float32): (1e-9, 1e-11)}
# Below these, sums may consist of underflow; they are made again relative to the nearest point.
_TINY = {np.dtype(np.float64): 1e-280, np.dtype(np.float32): 1e-25}
_MODES = {
    Sums: VALUES,
    BandwidthGradients: BY_BANDWIDTH,
    PositionGradients: BY_POSITION,
    Moments: MOMENTS,
    LineGradients: LINES,
}
# From so many pairs on sorting costs less than visiting them.
_PAIRS_WORTH_SORTING = 2**20


def can_serve(request: Request[Any]) -> bool:
    """Whether the kernel is compiled, and the device the processor."""
    on_cpu = request.device is None or request.device.type == "cpu"
    return on_cpu and profile_of(request.kernel) is not None


def compute(request: Request[Any]) -> Any:
    """The answer to a request of `nadaraya.regression.sums` that `can_serve`."""
    profile = profile_of(request.kernel)
    assert profile is not None
    if (
        request.points.shape[1] == 1
        and request.quantity in (Sums, BandwidthGradients)
        and request.query_scale is None
        and np.isfinite(request.bandwidth[0])
        and len(request.query) * len(request.points) >= _PAIRS_WORTH_SORTING
    ):
        return one_dimension.compute(request, profile)
    return _over_tiles(request, profile)


def _over_tiles(request: Request[Any], profile: Profile) -> Any:
    dtype, d, m = request.points.dtype, request.points.shape[1], len(request.query)
    mode, c = _MODES[request.quantity], len(request.columns)
    order = _order(request.points, request.bandwidth)
    same = request.exclude_self or request.query is request.points
    query_order = order if same else _order(request.query, request.bandwidth)
    inverse = 1.0 / (np.asarray(request.bandwidth, np.float64) * profile.length)
    unit = np.divide(1.0, inverse, out=np.zeros(d), where=inverse > 0)
    scale = np.ones(m) if request.query_scale is None else request.query_scale[query_order] ** -2.0
    x = _tiles(_scaled(request.points, order, inverse).T, "edge")
    columns = _tiles(request.columns[:, order].astype(dtype), "zeros")
    totals = Totals(
        np.zeros((m, c)),
        np.zeros(m),
        np.zeros((m, d, c) if mode != VALUES else (0, d, c)),
        np.zeros((m, d, d) if mode == MOMENTS else (0, d, d)),
    )
    accumulate(
        mode,
        Law(
            profile.family,
            request.power,
            _TOLERANCE[dtype][0 if mode == VALUES else 1],
            0.0 if profile.compact else _TINY[dtype],
        ),
        Queries(
            _scaled(request.query, query_order, inverse),
            scale,
            np.arange(m) if request.exclude_self else np.full(m, NOT_A_POINT),
            *_scaled_lines(request.lines, query_order, unit, x.dtype),
        ),
        Tiles(
            x,
            columns,
            np.ascontiguousarray(x.min(axis=2).T),  # of one layout, however few the tiles: one compilation
            np.ascontiguousarray(x.max(axis=2).T),
            columns[:, 0].sum(axis=1, dtype=np.float64),
        ),
        totals,
    )
    values, log_scale, by_feature, second = totals
    log_scale += request.power * profile.log_factor
    back = np.empty_like(query_order)
    back[query_order] = np.arange(m)
    values, log_scale = values[back], log_scale[back]
    if mode == VALUES:
        return Sums(values, log_scale)
    if mode == MOMENTS:  # differences were in units of the bandwidth
        second += np.tril(second, -1).transpose(0, 2, 1)
        by_feature *= unit[:, None]
        second *= unit[:, None] * unit
        return Moments(values, log_scale, by_feature[back], second[back])
    if mode == BY_POSITION:  # ∂u/∂q_f = 2 Δ_f / h_f²
        by_feature *= 2.0 * scale[:, None, None] * inverse[:, None]
    else:  # ∂u/∂log h_f = −2 (Δ_f / h_f)²
        by_feature *= -2.0 * scale[:, None, None]
    return request.quantity(values, log_scale, by_feature[back])


def _order(points: Array, bandwidth: Array) -> NDArray[np.int64]:
    """Points (n, d) in spatial order: (n,) which point stands where."""
    return spatial_order(points.T * (1.0 / bandwidth[:, None]).astype(points.dtype), TILE)


def _scaled(points: Array, order: NDArray[np.int64], inverse: Array) -> Array:
    """Points (n, d) in their order and in units of the bandwidth."""
    return points[order] * inverse.astype(points.dtype)


def _scaled_lines(
    lines: Lines | None, order: NDArray[np.int64], unit: Array, dtype: Any
) -> tuple[Array, Array]:
    """Rows (m, d + 1) and coefficients (m, d + 1, c − 1) in the order and the units of the compiled loops."""
    d = len(unit)
    if lines is None:
        return np.zeros((0, d + 1), dtype), np.zeros((0, d + 1, 0), dtype)
    scale = np.append(1.0, unit)
    row, coefficients = lines.row[order] * scale, lines.coefficients[order] * scale[:, None]
    return row.astype(dtype), coefficients.astype(dtype)


def _tiles(rows: Array, padding: Literal["edge", "zeros"]) -> Array:
    """(k, n) as (T, k, TILE), the last tile filled up with its last entry or with zeros."""
    k, n = rows.shape
    padded = np.zeros((k, n + -n % TILE), rows.dtype)
    padded[:, :n] = rows
    if padding == "edge":
        padded[:, n:] = rows[:, -1:]
    return np.ascontiguousarray(padded.reshape(k, -1, TILE).transpose(1, 0, 2))

"""Choice of the compiled way that serves a request for sums, and its arrays."""

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from nadaraya.compiled.jit import compiled_types
from nadaraya.kernels import ExponentialDecay, Gaussian, Kernel
from nadaraya.regression.compiled import fourier, line_sums, one_dimension
from nadaraya.regression.compiled.pairs import (
    BY_BANDWIDTH,
    BY_POSITION,
    LINES,
    MOMENTS,
    NOT_A_POINT,
    VALUES,
    Law,
    Queries,
    Tiles,
    Totals,
    accumulate,
)
from nadaraya.regression.compiled.profiles import EXPONENTIAL, GAUSSIAN, TILE, Profile, profile_of
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
# From so many pairs on sorting costs less than visiting them, and is worth being compiled.
_PAIRS_WORTH_SORTING = 2**20
_PAIRS_WORTH_COMPILING = 2**27
_READY: set[tuple[Any, np.dtype[Any]]] = set()


def can_serve(request: Request[Any]) -> bool:
    """Return whether the kernel is compiled, and the device the processor."""
    on_cpu = request.device is None or request.device.type == "cpu"
    return on_cpu and profile_of(request.kernel) is not None


def compute(request: Request[Any]) -> Any:
    """The answer to a request of `nadaraya.regression.sums` that `can_serve`."""
    profile = profile_of(request.kernel)
    assert profile is not None
    if _sorts(request, profile):
        return one_dimension.compute(request, profile)
    grid = grid_of(request)
    if grid is not None:
        return fourier.compute(request, grid, profile.log_factor, partial(_over_tiles, request, profile))
    return _over_tiles(request, profile)


def grid_of(request: Request[Any]) -> fourier.Grid | None:
    """The grid of a request where Fourier transforms can serve it and pay; None otherwise."""
    profile, pairs = profile_of(request.kernel), len(request.query) * len(request.points)
    if profile is None or not can_serve(request) or pairs < max(1, _PAIRS_WORTH_COMPILING):
        return None
    grid = fourier.Grid.of(request, profile)
    return grid if grid is not None and grid.pays(request) else None


def is_ready(request: Request[Any]) -> bool:
    """Return whether the code for a request that `can_serve` is loaded, or in the cache on disk."""
    profile = profile_of(request.kernel)
    assert profile is not None
    if _sorts(request, profile):
        return _sorting_is_ready(profile)
    ready = _is_compiled(accumulate, request.points.dtype)
    return ready and (grid_of(request) is None or _is_compiled(fourier.interpolate, np.dtype(np.float64)))


def compile_all() -> None:
    """Compiles, or loads from the cache on disk, what any request may need."""
    for dtype in (np.float64, np.float32):
        _over_tiles(_small_request(Sums, np.zeros((1, 2), dtype), Gaussian(1.0)), Profile(GAUSSIAN, 1.0))
    points = np.array([[0.0], [1e3]])
    profile = Profile(GAUSSIAN, 1.0)
    for kernel, sorting in ((Gaussian(1.0), profile), (ExponentialDecay(1.0), Profile(EXPONENTIAL, 1.0))):
        request = replace(_small_request(BandwidthGradients, points[:1], kernel), query=points)
        one_dimension.compute(request, sorting)
    request = _small_request(Sums, np.zeros((1, 2)), Gaussian(1.0))
    grid = fourier.Grid.of(request, profile)
    assert grid is not None
    fourier.compute(request, grid, 0.0, partial(_over_tiles, request, profile))


def _small_request(quantity: Any, points: Array, kernel: Kernel) -> Request[Any]:
    return Request(quantity, points, points, np.ones((1, len(points))), kernel, np.ones(points.shape[1]))


def _sorts(request: Request[Any], profile: Profile) -> bool:
    """Return whether the sums are made in order, in one dimension, rather than over tiles."""
    pairs = len(request.query) * len(request.points)
    return (
        request.points.shape[1] == 1
        and request.quantity in (Sums, BandwidthGradients)
        and request.query_scale is None
        and bool(np.isfinite(request.bandwidth[0]))
        and pairs >= _PAIRS_WORTH_SORTING
        and (pairs >= _PAIRS_WORTH_COMPILING or _sorting_is_ready(profile))
    )


def _sorting_is_ready(profile: Profile) -> bool:
    take = one_dimension.walks if profile.family in one_dimension.RECURRENT else line_sums.meet_all
    return _is_compiled(take, np.dtype(np.float64))


def _is_compiled(function: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether a function need not be compiled for points of a type, which does not change back."""
    if (function, dtype) not in _READY:
        single = dtype == np.float32
        if any(("float32" in types) == single for types in compiled_types(function)):
            _READY.add((function, dtype))
    return (function, dtype) in _READY


def _over_tiles(request: Request[Any], profile: Profile, rows: NDArray[np.int64] | None = None) -> Any:
    """The sums for all queries, or for those at some rows."""
    dtype, d = request.points.dtype, request.points.shape[1]
    mode, c = _MODES[request.quantity], len(request.columns)
    order = _order(request.points, request.bandwidth)
    same = rows is None and (request.exclude_self or request.query is request.points)
    query = request.query if rows is None else request.query[rows]
    query_order, m = order if same else _order(query, request.bandwidth), len(query)
    own = np.full(m, NOT_A_POINT)
    if request.exclude_self:
        own = np.argsort(order)[query_order if rows is None else rows[query_order]]
    inverse = 1.0 / (np.asarray(request.bandwidth, np.float64) * profile.length)
    unit = np.divide(1.0, inverse, out=np.zeros(d), where=inverse > 0)
    scale = np.ones(m) if request.query_scale is None else request.query_scale[query_order] ** -2.0
    x = _tiles(_scaled(request.points, order, inverse).T, "edge")
    columns = _tiles(request.columns[:, order].astype(dtype), "constant")
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
            _scaled(query, query_order, inverse),
            scale,
            own,
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


def _tiles(rows: Array, padding: Literal["edge", "constant"]) -> Array:
    """(k, n) as (T, k, TILE), the last tile filled up with its last entry or with zeros."""
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % TILE)), padding)
    return np.ascontiguousarray(padded.reshape(len(rows), -1, TILE).transpose(1, 0, 2))


def spatial_order(x: NDArray[np.floating], run: int) -> NDArray[np.int64]:
    """(n,) an order of points (d, n) in which runs of so many are small in space."""
    n = x.shape[1]
    permutation = np.arange(n)
    pieces = [(0, n)]
    while pieces:
        first, last = pieces.pop()
        count = last - first
        if count <= run:
            continue
        members = permutation[first:last]
        part = x[:, members]
        widest = part[np.argmax(part.max(axis=1) - part.min(axis=1))]
        if count <= 8 * run:
            permutation[first:last] = members[np.argsort(widest)]
            if count <= 2 * run:
                continue
            half = (count // run + 1) // 2 * run
        else:
            half = count // run // 2 * run
            permutation[first:last] = members[np.argpartition(widest, half)]
        pieces += [(first, first + half), (first + half, last)]
    return permutation

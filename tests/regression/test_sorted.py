"""Sums over sorted points: the same as over all pairs to 1e-12, wherever the points are."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from grids import covering
from hypothesis import given, settings
from hypothesis import strategies as st
from pair_sums import pair_sums

from nadaraya.kernels import (
    Boxcar,
    Epanechnikov,
    ExponentialDecay,
    Gaussian,
    GaussianWithoutHalf,
    Matern,
    Tricube,
)
from nadaraya.regression import NadarayaWatson

pytest.importorskip("numba")
from nadaraya.regression.compiled import dispatch, profiles
from nadaraya.regression.compiled.line_sums import LineKernel
from nadaraya.regression.compiled.one_dimension import sorted_sums

FAMILIES = {
    name: getattr(profiles, name.upper())
    for name in ("gaussian", "exponential", "matern32", "matern52", "epanechnikov", "tricube", "boxcar")
}
COMPACT = ("epanechnikov", "tricube", "boxcar")
VANISHING = ("epanechnikov", "tricube")
EPS = np.finfo(np.float64).eps


def kernel_of(name, length, squared=False, slopes=False):
    return LineKernel(FAMILIES[name], float(length), squared, slopes)


def lines(n, seed=0):
    random = np.random.default_rng(seed)
    return {
        "uniform": random.random(n),
        "normal": random.normal(size=n),
        "clusters": np.concatenate([1e-7 * random.normal(size=n // 2), 3 + random.random(n - n // 2)]),
        "duplicates": random.integers(0, 7, n) / 4,
        "all equal": np.full(n, 2.5),
        "far apart": np.sort(random.normal(size=n)) * 10.0 ** random.integers(-3, 12, n),
        "far from zero": 1e6 + random.normal(size=n),
        "descending": -np.arange(n) / 64,
    }


def problem(line, n=400, m=80, columns=2, seed=1):
    """Queries at, among and beyond the points; weights in the first column, the others signed."""
    random = np.random.default_rng(seed)
    points = lines(n)[line]
    within = points.min() + np.ptp(points) * random.random(m - m // 2 - 4)
    outside = np.array([points.min() - 0.9, points.max() + 0.9, points.min() - 50.0, points.max() + 1e3])
    query = np.concatenate([random.choice(points, m // 2), within, outside])
    weights = random.random((1, n)) + 0.01
    return query, points, np.concatenate([weights, weights * random.normal(size=(columns - 1, n))])


def compact_and_slope(name, u):
    """κ(u) and ∂κ/∂log length, written down apart from the package."""
    inside = np.maximum(1 - u, 0)
    if name == "boxcar":
        return (u <= 1).astype(u.dtype), 0 * u
    if name == "epanechnikov":
        return inside * (1 + u), np.where(inside > 0, 2 * u**2, 0)
    rest = inside * (1 + u + u**2)
    return rest**3, 9 * u**3 * rest**2


def polynomial_and_slope(name, u):
    """p(u) of κ = p(u) exp(−u), and what takes its place in ∂κ/∂log length."""
    third = u**2 / 3
    return {
        "exponential": (1 + 0 * u, u),
        "matern32": (1 + u, u**2),
        "matern52": (1 + u + third, third * (1 + u)),
    }[name]


def log_kernel(name, u):
    """log κ(u) and ∂log κ/∂log length of the kernels without an end."""
    if name == "gaussian":
        return -(u**2) / 2, u**2
    polynomial, slope = polynomial_and_slope(name, u)
    return np.log(polynomial) - u, slope / polynomial


def log_ratio(name, u, nearest, excess):
    """log κ(u) − log κ(nearest) for an excess, u − nearest, known to more digits than u."""
    if name == "gaussian":
        return -excess / 2 * (u + nearest)
    return np.log(polynomial_and_slope(name, u)[0] / polynomial_and_slope(name, nearest)[0]) - excess


def assert_are_sums_over_all_pairs(name, length, query, points, columns, exclude_self=False, squared=False):
    """Compares with the definition in extended precision, relative to the sums of the terms' magnitudes.

    What rounding u = |q − x| / length leaves of κ(u) comes on top: the sums have that error where log_scale
    is 0, and log_scale has it elsewhere.
    """
    kernel = kernel_of(name, length, squared, slopes=not squared)
    values, slopes, log_scale = sorted_sums(kernel, query, points, columns, exclude_self)
    q, x = np.longdouble(query)[:, None], np.longdouble(points)
    u = np.abs(q - x) / np.longdouble(length)
    power = 2 if squared else 1
    counts = np.broadcast_to(columns[0] > 0, u.shape).copy()
    if exclude_self:
        np.fill_diagonal(counts, False)
    nothing = ~counts.any(axis=1)
    masked = np.where(counts, u, np.inf)
    nearest = np.where(nothing, 0, masked.min(axis=1))[:, None]
    far = ~nothing & (log_scale != 0)
    rounding = np.zeros_like(nearest)
    if name in COMPACT:
        weight, slope = (counts * part for part in compact_and_slope(name, u))
        weight = weight**power
        np.testing.assert_array_equal(far, (weight @ columns[0] == 0) & ~nothing)
        assert np.isneginf(log_scale[far | nothing]).all()
        weight[far], slope[far] = (counts & (u <= nearest * (1 + 1e-12)))[far], 0
    else:
        to = x[masked.argmin(axis=1)][:, None]
        same_side = (x >= q) == (to >= q)  # then how much farther does not depend on q
        one_side, other = np.where(x >= q, x - to, to - x), np.where(x >= q, 1, -1) * (x - q - q + to)
        excess = np.where(same_side, one_side, other) / np.longdouble(length)
        logs, elasticity = log_kernel(name, u)
        logs = np.where(far[:, None], log_ratio(name, u, nearest, excess), logs)
        weight = counts * np.exp(power * np.where(counts, logs, 0))
        slope = weight * elasticity
        top = power * np.float64(log_kernel(name, nearest[:, 0])[0])
        np.testing.assert_allclose(log_scale[far], top[far], rtol=1e-14)
        np.testing.assert_array_equal(np.isneginf(log_scale), nothing)
        assert (top[far] < -600).all()
        assert (top[~far] > -660).all()
        rounding = np.where(far[:, None], 0, 2 * EPS * power * log_kernel(name, nearest)[1])
    allowed = 1e-12 + rounding
    magnitude = weight @ np.abs(columns).T
    assert (np.abs(values - weight @ columns.T) <= allowed * magnitude).all()
    if not squared:
        magnitude += slope @ np.abs(columns).T
        assert (np.abs(slopes - slope @ columns.T) <= allowed * magnitude).all()


@pytest.mark.parametrize(
    ("name", "line", "length"),
    covering(list(FAMILIES), list(lines(4)), [1e-6, 0.003, 0.0371, 0.4999, 2.0, 40.0, 1e5]),
)
def test_sums_are_those_over_all_pairs(name, line, length):
    query, points, columns = problem(line)
    assert_are_sums_over_all_pairs(name, length, query, points, columns)
    assert_are_sums_over_all_pairs(name, length, points, points, columns, exclude_self=True)
    assert_are_sums_over_all_pairs(name, length, query, points, columns, squared=True)


@pytest.mark.parametrize("examples", [20, pytest.param(300, marks=pytest.mark.slow)])
def test_any_line(examples):
    @settings(max_examples=examples, deadline=None)
    @given(
        seed=st.integers(0, 2**32 - 1),
        n=st.integers(1, 300),
        m=st.integers(0, 80),
        decimals=st.integers(0, 6),
        columns=st.integers(1, 4),
        length=st.floats(-4, 3).map(lambda power: math.pi * 10.0**power),  # no lag is near it
        weightless=st.sampled_from([0.0, 0.3, 0.95]),
        name=st.sampled_from(sorted(FAMILIES)),
        exclude_self=st.booleans(),
        squared=st.booleans(),
    )
    def check(seed, n, m, decimals, columns, length, weightless, name, exclude_self, squared):
        random = np.random.default_rng(seed)
        points = random.normal(size=n).round(decimals)
        query = points if exclude_self else (2 * random.normal(size=m)).round(decimals)
        c = random.normal(size=(columns, n)) * (random.random(n) >= weightless)
        c[0] = np.abs(c[0])
        c[1:] *= c[0]
        assert_are_sums_over_all_pairs(name, length, query, points, c, exclude_self, squared)

    check()


def rationally(name, query, points, columns):
    """(m, c) the sums of a kernel of length 1 without any rounding until the end."""
    sums = np.zeros((len(query), len(columns)))
    for i, q in enumerate(query.tolist()):
        u = [abs(Fraction(q) - Fraction(x)) for x in points.tolist()]
        weight = [(1 - v**2 if name == "epanechnikov" else (1 - v**3) ** 3) if v < 1 else 0 for v in u]
        for r, column in enumerate(columns.tolist()):
            sums[i, r] = sum(w * Fraction(c) for w, c in zip(weight, column, strict=True) if w)
    return sums


@pytest.mark.parametrize("name", VANISHING)
@pytest.mark.parametrize(("depth", "count"), [(1e-8, 60), (1e-5, 800), (2e-3, 60), (1e-12, 800)])
def test_windows_with_points_at_the_edge_only_keep_their_digits(name, depth, count):
    random = np.random.default_rng(2)
    edge = 1 - depth * (1 + random.random(count))
    points = np.concatenate([edge, -random.random(1000) / 4 + 1.3])  # a cell with much weight beside them
    query = np.array([0.0, 1e-13, 0.0])
    columns = np.stack([np.ones(len(points)), random.random(len(points))])
    values, _, _ = sorted_sums(kernel_of(name, 1.0), query, points, columns)
    np.testing.assert_allclose(values, rationally(name, query, points, columns), rtol=1e-12)


@pytest.mark.parametrize("name", VANISHING)
def test_small_windows_beside_heavy_cells_keep_their_digits(name):
    random = np.random.default_rng(3)
    points = np.concatenate([random.random(50_000) * 0.5, 1 - 0.01 * random.random(2000)])
    query = 1.98 + 0.01 * random.random(700)
    values, _, _ = sorted_sums(kernel_of(name, 1.0), query, points, np.ones((1, len(points))))
    near = points > 0.9
    want = rationally(name, query[:3], points[near], np.ones((1, near.sum())))
    np.testing.assert_allclose(values[:3], want, rtol=1e-12)


@pytest.mark.parametrize("name", VANISHING)
def test_a_crowd_a_rounding_beyond_the_edge_counts_nothing(name):
    points = np.append(np.full(2000, 1 + 1e-13), 0.5)
    values, _, _ = sorted_sums(kernel_of(name, 1.0), np.zeros(1), points, np.ones((1, 2001)))
    np.testing.assert_allclose(
        values, rationally(name, np.zeros(1), np.array([0.5]), np.ones((1, 1))), rtol=1e-15
    )


@pytest.mark.parametrize("count", [1, 7, 2000])
def test_a_lag_of_exactly_the_bandwidth(count):
    points = np.append(np.full(count, 3.0), 100.0)
    query, columns = np.array([2.0, 4.0, np.nextafter(4, 5), 4.001]), np.ones((1, count + 1))
    values, _, log_scale = sorted_sums(kernel_of("boxcar", 1.0), query, points, columns)
    assert values[:3, 0].tolist() == [count] * 3
    assert np.isneginf(log_scale).tolist() == [False, False, False, True]
    for name in VANISHING:
        values, _, log_scale = sorted_sums(kernel_of(name, 1.0), query, points, columns)
        assert np.isneginf(log_scale).all()
        assert values[:, 0].tolist() == [count] * 4  # the nearest points


def test_without_support_the_nearest_points_on_both_sides_count():
    points = np.array([0.0, 2.0, 2.0, 6.0, 9.0])
    columns = np.array([[1.0, 0.5, 0.25, 1.0, 0.0], [10.0, 20.0, 30.0, 40.0, 0.0]])
    query = np.array([-5.0, 1.0, 4.0, 5.0, 8.9, 50.0])
    for name in COMPACT:
        values, slopes, log_scale = sorted_sums(kernel_of(name, 0.01, slopes=True), query, points, columns)
        assert values[:, 0].tolist() == [1.0, 1.75, 1.75, 1.0, 1.0, 1.0]
        assert values[:, 1].tolist() == [10.0, 60.0, 90.0, 40.0, 40.0, 40.0]
        assert (slopes == 0).all()
        assert np.isneginf(log_scale).all()
        values, _, log_scale = sorted_sums(kernel_of(name, 0.01), points, points, columns, exclude_self=True)
        assert values[:, 0].tolist() == [0.75, 0.25, 0.5, 0.75, 1.0]
        assert np.isneginf(log_scale).tolist() == [True, False, False, True, True]


@pytest.mark.parametrize("name", ["exponential", "matern52", "gaussian", "tricube"])
def test_rounding_does_not_add_up_over_many_points(name):
    n, step = 200_000, 2.0**-20
    grid = np.arange(n) * step
    u = np.longdouble(grid[-1] - grid)
    kernel = compact_and_slope(name, u)[0] if name in COMPACT else np.exp(log_kernel(name, u)[0])
    values, _, _ = sorted_sums(kernel_of(name, 1.0), grid[-1:], grid, np.full((1, n), 0.1))
    np.testing.assert_allclose(values[0, 0], float(np.longdouble(0.1) * kernel.sum()), rtol=1e-13)
    values, _, _ = sorted_sums(kernel_of(name, 1.0), np.ones(1), np.ones(n), np.full((1, n), 0.1))
    np.testing.assert_allclose(values[0, 0], float(np.longdouble(0.1) * n), rtol=1e-13)


@pytest.mark.parametrize("name", ["gaussian", "matern32", "tricube", "boxcar"])
@pytest.mark.parametrize("width", [0.0, 1e-3, 1.0])
def test_many_points_close_together(name, width):
    random = np.random.default_rng(3)
    n = 20_000
    points = np.append(1e6 + width * random.random(n), 1e6 + 0.5 + np.array([-3.0, 4.0, 60.0]))
    weights = np.full(n + 3, 0.1)
    columns = np.stack([weights, weights * random.normal(size=n + 3)])
    query = 1e6 + np.append(np.linspace(0.4, 0.45, 20), [-45.0, -30.0, -11.0, 0.0, 0.3, 5.0, 36.0, 58.0])
    assert_are_sums_over_all_pairs(name, 1.01, query, points, columns)

    values, _, _ = sorted_sums(kernel_of(name, 1.01), points, points, columns, exclude_self=True)
    some = np.append(random.choice(n, 3), n)
    u = np.abs(np.longdouble(points[some])[:, None] - np.longdouble(points)) / np.longdouble(1.01)
    kernel = compact_and_slope(name, u)[0] if name in COMPACT else np.exp(log_kernel(name, u)[0])
    kernel[np.arange(4), some] = 0
    seen = np.isfinite(values[some, 0]) & (kernel @ weights > 0)
    assert seen[:3].all()
    error = np.abs(values[some] - kernel @ columns.T)
    assert (error <= 1e-12 * (kernel @ np.abs(columns).T))[seen].all()


@pytest.mark.parametrize("name", ["gaussian", "exponential", "tricube"])
@pytest.mark.parametrize("spread", [1e6, 1e12])
def test_points_far_apart_against_the_bandwidth(name, spread):
    random = np.random.default_rng(2)
    points = spread * random.random(300)
    query = np.concatenate([points[::7] + random.normal(size=43), spread * random.random(40)])
    columns = np.stack([np.ones(300), random.normal(size=300)])
    assert_are_sums_over_all_pairs(name, 1.0, query, points, columns)
    assert_are_sums_over_all_pairs(name, 1.0, points, points, columns, exclude_self=True)


@pytest.mark.parametrize("name", ["gaussian", "matern32"])
def test_gaps_and_light_points_beside_heavy_ones(name):
    random = np.random.default_rng(4)
    points = np.concatenate([random.normal(size=200), 30 + random.normal(size=200), [15.0]])
    columns = np.stack([np.ones(401), random.normal(size=401)])
    columns[:, -1] *= 1e-60
    places = np.array([-13.4, 12.0, 15.0, 17.5, 50.0, 67.0])
    query = (places[:, None] + np.linspace(0, 0.1, 120)).ravel()
    for length in (1.0, 0.3, 0.05):
        assert_are_sums_over_all_pairs(name, length, query, points, columns)


@pytest.mark.parametrize("name", ["gaussian", "exponential", "epanechnikov"])
@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("own", [1e3, 1e30])
def test_leaving_out_a_heavy_point_keeps_the_digits_of_the_others(name, column, own):
    random = np.random.default_rng(5)
    points = 0.1 * random.random(300)
    columns = np.stack([random.random(300) + 0.5, random.normal(size=300)])
    columns[column, 17] = own
    columns[:, 40] = 0.0
    assert_are_sums_over_all_pairs(name, 1.0, points, points, columns, exclude_self=True)


def test_points_without_weight_do_not_set_the_scale():
    points = np.array([-2000.0, 0.0, 1.0, 2.0, 3000.0])
    columns = np.array([[1.0, 0, 0, 0, 1], [3.0, 0, 0, 0, 1]])
    values, _, log_scale = sorted_sums(kernel_of("gaussian", 1.0), points, points, columns)
    np.testing.assert_allclose(log_scale, [0, -2000000, -0.5 * 2001**2, -0.5 * 2002**2, 0], rtol=1e-15)
    np.testing.assert_allclose(values, [[1, 3]] * 4 + [[1, 1]], rtol=1e-15)


def test_far_queries_weigh_points_by_their_differences():
    d = 2.0**20
    points = np.array([0.0, 0.125 / d, 2 * d, 2 * d + 0.5 / d])
    columns = np.array([[1.0, 2.0, 4.0, 8.0]])
    values, slopes, log_scale = sorted_sums(
        kernel_of("gaussian", 1.0, slopes=True), np.array([-d, d]), points, columns
    )
    left = 1 + 2 * math.exp(-0.125)
    among = math.exp(-0.125) + 2 + 4 * math.exp(-0.125) + 8 * math.exp(-0.625)
    np.testing.assert_allclose(values, [[left], [among]], rtol=1e-12)
    np.testing.assert_allclose(slopes, d**2 * values, rtol=1e-11)
    np.testing.assert_allclose(log_scale, [-(d**2) / 2, 0.125 - d**2 / 2], rtol=1e-15)


KERNELS = {
    "gaussian": Gaussian,
    "exponential": ExponentialDecay,
    "matern32": lambda h: Matern(h, nu=1.5),
    "matern52": lambda h: Matern(h, nu=2.5),
    "epanechnikov": Epanechnikov,
    "tricube": Tricube,
    "boxcar": Boxcar,
}


@pytest.mark.parametrize("name", KERNELS)
def test_the_kernels_of_the_package_on_a_grid_with_lags_of_exactly_the_bandwidth(name):
    kernel = KERNELS[name](torch.tensor(0.3, dtype=torch.float64))
    points = np.arange(1100) * 0.1  # 0.3 is met as 0.3 and as 0.30000000000000004
    columns = np.random.default_rng(4).random((3, 1100))
    with torch.no_grad():
        weight = kernel.matrix(torch.from_numpy(points)).numpy()
    sums = pair_sums(points[:, None].copy(), points[:, None], columns, kernel, np.ones(1))
    np.testing.assert_allclose(sums.values * np.exp(sums.log_scale)[:, None], weight @ columns.T, rtol=1e-12)


@pytest.mark.parametrize("name", ["gaussian", "matern52", "tricube"])
@pytest.mark.parametrize("line", ["normal", "duplicates", "clusters"])
def test_order_unit_and_direction_of_the_line_do_not_matter(name, line):
    query, points, columns = problem(line, m=200)
    columns = np.abs(columns)
    shuffled = np.random.default_rng(6).permutation(len(points))
    kernel = kernel_of(name, 0.2)
    want, _, want_scale = sorted_sums(kernel, query, points, columns)
    for values, _, log_scale in (
        sorted_sums(kernel, query, points[shuffled], columns[:, shuffled]),
        sorted_sums(kernel_of(name, 64 * 0.2), 64 * query, 64 * points, columns),
        sorted_sums(kernel, -query, -points, columns),
        [part[::-1] for part in sorted_sums(kernel, query[::-1].copy(), points, columns)],
    ):
        np.testing.assert_allclose(values, want, rtol=1e-12)
        np.testing.assert_allclose(log_scale, want_scale, rtol=1e-14)


@pytest.mark.parametrize("length", [1e-200, 1e-3, 1e200])
@pytest.mark.parametrize("name", FAMILIES)
def test_one_point(name, length):
    point, column = np.array([5.0]), np.array([[2.0], [-3.0]])
    values, slopes, log_scale = sorted_sums(kernel_of(name, length, slopes=True), point, point, column)
    assert values.tolist() == [[2, -3]]
    assert slopes.tolist() == [[0, 0]]
    assert log_scale.tolist() == [0]
    values, slopes, log_scale = sorted_sums(kernel_of(name, length), point, point, column, exclude_self=True)
    assert values.tolist() == [[0, 0]]
    assert slopes.shape == (1, 0)
    assert log_scale.tolist() == [-math.inf]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_spread_that_dwarfs_the_bandwidth(name):
    points = np.array([-1e300, -1.0, 0.0, 1e-4, 1e300])
    columns = np.array([[1.0, 2.0, 3.0, 4.0, 5.0]])
    kernel = kernel_of(name, 1e-6, slopes=True)
    values, slopes, log_scale = sorted_sums(kernel, points, points, columns)
    np.testing.assert_allclose(values[:, 0], columns[0], rtol=1e-15)
    assert np.isfinite(slopes).all()
    assert (log_scale == 0).all()
    values, _, log_scale = sorted_sums(kernel, points, points, columns, exclude_self=True)
    assert np.isneginf(log_scale).all() == (name in COMPACT)
    assert (values > 0).all()  # some point has weight, however far


@pytest.mark.parametrize("name", FAMILIES)
def test_no_query_and_no_weight(name):
    points = np.arange(9.0)
    kernel = kernel_of(name, 1.0, slopes=True)
    values, slopes, log_scale = sorted_sums(kernel, np.empty(0), points, np.ones((3, 9)))
    assert values.shape == slopes.shape == (0, 3)
    assert log_scale.shape == (0,)
    values, _, log_scale = sorted_sums(kernel, points, points, np.zeros((3, 9)))
    assert (values == 0).all()
    assert np.isneginf(log_scale).all()


def test_inputs_may_be_read_only_and_stay_as_they_are():
    arrays = problem("normal")
    copies = [array.copy() for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    sorted_sums(kernel_of("gaussian", 0.5), *arrays)
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.fixture
def tiles(monkeypatch):
    """Calls a function with the loops over pairs of tiles in the place of the sorted sums."""

    def call(function):
        with monkeypatch.context() as patch:
            patch.setattr(dispatch, "_PAIRS_WORTH_SORTING", math.inf)
            return function()

    return call


@pytest.mark.parametrize(
    ("what", "power", "exclude_self"),
    [("values", 1, False), ("values", 1, True), ("values", 2, False), ("bandwidth", 1, True)],
)
@pytest.mark.parametrize(
    "kernel",
    [Gaussian(1.5), GaussianWithoutHalf(0.7), Matern(0.8, nu=1.5), 2.0 * Tricube(1.3)],
    ids=lambda kernel: type(kernel).__name__,
)
def test_tiles_give_the_same_sums(kernel, what, power, exclude_self, tiles):
    random = np.random.default_rng(7)
    points = random.standard_t(2, size=(1100, 1))
    query = points if exclude_self else 3 * random.standard_t(2, size=(1000, 1))
    columns = np.stack([random.random(1100), random.random(1100)])
    columns[1] *= columns[0]

    def sums():
        options = {"what": what, "power": power, "exclude_self": exclude_self}
        return pair_sums(query, points, columns, kernel.double(), np.array([0.3]), **options)

    ours, theirs = sums(), tiles(sums)
    nearest_only = np.isneginf(theirs.log_scale)
    np.testing.assert_array_equal(np.isneginf(ours.log_scale), nearest_only)
    scale = np.where(nearest_only, 0, theirs.log_scale)
    factor = np.exp(np.where(nearest_only, 0, ours.log_scale) - scale)[:, None]
    allowed = 1e-11 + 4 * EPS * np.abs(scale)[:, None]
    # Tiles lose digits where a window has points at its edge only.
    assert (np.abs(ours.values * factor - theirs.values) <= allowed * theirs.values + 1e-15).all()
    if what == "bandwidth":
        slopes, tiled = ours.by_feature[:, 0] * factor, theirs.by_feature[:, 0]
        assert (np.abs(slopes - tiled) <= allowed * (theirs.values + tiled)).all()


def test_tiles_give_the_same_predictions(tiles):
    random = np.random.default_rng(8)
    x = random.normal(size=(3000, 1))
    y = np.sin(3 * x[:, 0]) + random.normal(size=3000)
    grid = np.linspace(-6, 6, 1000)[:, None]

    def fitted():
        model = NadarayaWatson(bandwidth=0.05).fit(x, y)
        return model.predict(grid), model.loo_predictions(), model.predict(grid, return_std=True)[1]

    for ours, theirs in zip(fitted(), tiles(fitted), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-11)
    chosen = [NadarayaWatson(bandwidth="loo").fit(x, y).bandwidth_]
    chosen.append(tiles(lambda: NadarayaWatson(bandwidth="loo").fit(x, y).bandwidth_))
    np.testing.assert_allclose(*chosen, rtol=1e-6)

"""Gaussian sums over sorted points: the same as over all pairs to rounding, wherever the points are."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pair_sums import pair_sums

from nadaraya.kernels import Gaussian, GaussianWithoutHalf
from nadaraya.regression import NadarayaWatson

pytest.importorskip("numba")
from nadaraya.regression.compiled import dispatch
from nadaraya.regression.compiled.sorted_gaussian import gaussian_sums


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


def assert_are_sums_over_all_pairs(query, points, columns, sigma, exclude_self=False, tolerance=1e-13):
    """Compares with the definition in extended precision, relative to the sums of the terms' magnitudes.

    u² eps is what float64 leaves of exp(−u² / 2): the sums have it where log_scale is 0, and where it is not
    log_scale has it.
    """
    got, slopes, log_scale = gaussian_sums(
        query, points, columns, sigma, exclude_self=exclude_self, derivative=True
    )
    q, x, scale = np.longdouble(query)[:, None], np.longdouble(points), np.longdouble(sigma)
    u = np.abs(q - x) / scale
    counts = np.broadcast_to(columns[0] > 0, u.shape).copy()
    if exclude_self:
        np.fill_diagonal(counts, False)
    alone = ~counts.any(axis=1)
    masked = np.where(counts, u, np.inf)
    nearest = np.where(alone, 0, masked.min(axis=1))
    relative = log_scale != 0
    to = x[masked.argmin(axis=1)][:, None]
    same_side = (x >= q) == (to >= q)  # then how much farther does not depend on q
    excess = np.where(same_side, np.where(x >= q, x - to, to - x), np.where(x >= q, 1, -1) * (x - q - q + to))
    exponent = np.where(relative[:, None], excess / scale * (u + nearest[:, None]), u**2) / 2
    kernel = counts * np.exp(-np.where(counts, exponent, 0))
    square = u**2
    allowed = tolerance + np.where(relative, 0, 2 * np.finfo(float).eps * np.minimum(nearest, 40) ** 2)
    for value, weight, size in (
        (got, kernel, kernel),
        (slopes, kernel * square, kernel * np.maximum(square, 1)),
    ):
        difference = np.abs(value - columns @ weight.T)
        assert (difference <= allowed * (np.abs(columns) @ size.T)).all()
    assert (np.isneginf(log_scale) == alone).all()
    far = relative & ~alone
    np.testing.assert_allclose(log_scale[far], np.float64(-(nearest[far] ** 2) / 2), rtol=1e-14)
    assert (nearest[~relative] < 38.6).all()
    assert (nearest[far] > 30).all()


@pytest.mark.parametrize("line", lines(4))
@pytest.mark.parametrize("sigma", [1e-6, 0.003, 0.04, 1.0, 1e5])
def test_sums_are_those_over_all_pairs(line, sigma):
    query, points, columns = problem(line, columns=3)
    assert_are_sums_over_all_pairs(query, points, columns, sigma)
    assert_are_sums_over_all_pairs(points, points, columns, sigma, exclude_self=True)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 150),
    m=st.integers(0, 60),
    decimals=st.integers(0, 6),
    columns=st.integers(1, 5),
    scale=st.floats(-4, 3).map(lambda power: 10.0**power),
    weightless=st.sampled_from([0.0, 0.3, 0.95]),
    exclude_self=st.booleans(),
)
def test_any_line(seed, n, m, decimals, columns, scale, weightless, exclude_self):
    random = np.random.default_rng(seed)
    points = random.normal(size=n).round(decimals)
    query = points if exclude_self else (2 * random.normal(size=m)).round(decimals)
    c = random.normal(size=(columns, n)) * (random.random(n) >= weightless)
    c[0] = np.abs(c[0])
    c[1:] *= c[0]
    assert_are_sums_over_all_pairs(query, points, c, scale, exclude_self)


@pytest.mark.parametrize("spread", [1e6, 1e12])
def test_points_far_apart_against_sigma(spread):
    random = np.random.default_rng(2)
    points = spread * random.random(300)
    query = np.concatenate([points[::7] + random.normal(size=43), spread * random.random(40)])
    columns = np.stack([np.ones(300), random.normal(size=300)])
    assert_are_sums_over_all_pairs(query, points, columns, 1.0)
    assert_are_sums_over_all_pairs(points, points, columns, 1.0, exclude_self=True)


@pytest.mark.parametrize("width", [0.0, 1e-3, 1.0])
def test_many_points_close_together(width):
    random = np.random.default_rng(3)
    n = 100_000
    crowd = 1e6 + width * random.random(n)
    points = np.append(crowd, 1e6 + 0.5 + np.array([-3.0, 4.0, 60.0]))
    columns = np.stack([np.full(n + 3, 0.1), random.normal(size=n + 3)])
    query = 1e6 + np.array([-45.0, -30.0, -11.0, 0.0, 0.3, 5.0, 36.0, 58.0])
    assert_are_sums_over_all_pairs(query, points, columns, 1.0)
    grid = 1e6 + np.linspace(0.4, 0.45, 20)  # enough queries to be interpolated
    assert_are_sums_over_all_pairs(grid, points, columns, 1.0)

    sums, _, _ = gaussian_sums(points, points, columns, 1.0, exclude_self=True)
    some = np.append(random.choice(n, 5), n)
    e = np.exp(-((np.longdouble(points[some])[:, None] - np.longdouble(points)) ** 2) / 2)
    e[np.arange(6), some] = 0
    assert (np.abs(sums[:, some] - columns @ e.T) <= 1e-13 * (np.abs(columns) @ e.T)).all()


def test_gaps_and_light_points_beside_heavy_ones_are_not_interpolated_from_afar():
    random = np.random.default_rng(4)
    points = np.concatenate([random.normal(size=200), 30 + random.normal(size=200), [15.0]])
    columns = np.stack([np.ones(401), random.normal(size=401)])
    columns[:, -1] *= 1e-60
    places = np.array([-13.4, 12.0, 15.0, 17.5, 50.0, 67.0])
    query = (places[:, None] + np.linspace(0, 0.1, 120)).ravel()
    assert_are_sums_over_all_pairs(query, points, columns, 1.0)
    assert_are_sums_over_all_pairs(query, points, columns, 0.3)


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("own", [1e3, 1e30])
def test_leaving_out_a_heavy_point_keeps_the_digits_of_the_others(column, own):
    random = np.random.default_rng(5)
    points = 0.1 * random.random(300)
    columns = np.stack([random.random(300) + 0.5, random.normal(size=300)])
    columns[column, 17] = own
    columns[:, 40] = 0.0
    assert_are_sums_over_all_pairs(points, points, columns, 1.0, exclude_self=True)


def test_points_without_weight_do_not_set_the_scale():
    points = np.array([-2000.0, 0.0, 1.0, 2.0, 3000.0])
    columns = np.array([[1.0, 0, 0, 0, 1], [3.0, 0, 0, 0, 1]])
    sums, _, log_scale = gaussian_sums(points, points, columns, 1.0)
    np.testing.assert_allclose(log_scale, [0, -2000000, -0.5 * 2001**2, -0.5 * 2002**2, 0], rtol=1e-15)
    np.testing.assert_allclose(sums, [[1, 1, 1, 1, 1], [3, 3, 3, 3, 1]], rtol=1e-15)


def test_far_queries_weigh_points_by_their_differences():
    d = 2.0**20
    points = np.array([0.0, 0.125 / d, 2 * d, 2 * d + 0.5 / d])
    columns = np.array([[1.0, 2.0, 4.0, 8.0]])
    sums, slopes, log_scale = gaussian_sums(np.array([-d, d]), points, columns, 1.0, derivative=True)
    left = 1 + 2 * math.exp(-0.125)
    among = math.exp(-0.125) + 2 + 4 * math.exp(-0.125) + 8 * math.exp(-0.625)
    np.testing.assert_allclose(sums, [[left, among]], rtol=1e-12)
    np.testing.assert_allclose(slopes, d**2 * sums, rtol=1e-11)
    np.testing.assert_allclose(log_scale, [-(d**2) / 2, 0.125 - d**2 / 2], rtol=1e-15)


@pytest.mark.parametrize("line", ["normal", "duplicates", "clusters"])
def test_order_unit_and_direction_of_the_line_do_not_matter(line):
    query, points, columns = problem(line, m=200)
    columns = np.abs(columns)
    shuffled = np.random.default_rng(6).permutation(len(points))
    want, _, want_scale = gaussian_sums(query, points, columns, 0.2)
    for sums, _, log_scale in (
        gaussian_sums(query, points[shuffled], columns[:, shuffled], 0.2),
        gaussian_sums(64 * query, 64 * points, columns, 64 * 0.2),
        gaussian_sums(-query, -points, columns, 0.2),
        [part[..., ::-1] for part in gaussian_sums(query[::-1].copy(), points, columns, 0.2)],
    ):
        np.testing.assert_allclose(sums, want, rtol=4e-13)
        np.testing.assert_allclose(log_scale, want_scale, rtol=1e-14)


@pytest.mark.parametrize("sigma", [1e-200, 1e-3, 1e200])
def test_one_point(sigma):
    point, column = np.array([5.0]), np.array([[2.0], [-3.0]])
    sums, slopes, log_scale = gaussian_sums(point, point, column, sigma, derivative=True)
    assert sums.tolist() == [[2], [-3]]
    assert slopes.tolist() == [[0], [0]]
    assert log_scale.tolist() == [0]
    sums, slopes, log_scale = gaussian_sums(point, point, column, sigma, exclude_self=True)
    assert sums.tolist() == [[0], [0]]
    assert slopes.shape == (0, 1)
    assert log_scale.tolist() == [-math.inf]


def test_a_spread_that_dwarfs_sigma():
    points = np.array([-1e300, -1.0, 0.0, 1e-4, 1e300])
    columns = np.array([[1.0, 2.0, 3.0, 4.0, 5.0]])
    sums, slopes, log_scale = gaussian_sums(points, points, columns, 1e-5, derivative=True)
    np.testing.assert_allclose(sums, [[1, 2, 3 + 4 * math.exp(-50), 4 + 3 * math.exp(-50), 5]], rtol=1e-15)
    assert np.isfinite(slopes).all()
    sums, _, log_scale = gaussian_sums(points, points, columns, 1e-5, exclude_self=True)
    assert np.isfinite(log_scale).all()  # some point has weight, however far
    assert (sums > 0).all()


def test_no_query_and_no_weight():
    points = np.arange(9.0)
    sums, slopes, log_scale = gaussian_sums(np.empty(0), points, np.ones((3, 9)), 1.0, derivative=True)
    assert sums.shape == slopes.shape == (3, 0)
    assert log_scale.shape == (0,)
    sums, _, log_scale = gaussian_sums(points, points, np.zeros((3, 9)), 1.0)
    assert (sums == 0).all()
    assert np.isneginf(log_scale).all()


def test_inputs_may_be_read_only_and_stay_as_they_are():
    arrays = problem("normal")
    copies = [array.copy() for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    gaussian_sums(*arrays, 0.5)
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.fixture
def tiles(monkeypatch):
    """Calls a function with the loops over pairs of tiles in the place of the sorted sums."""

    def call(function):
        with monkeypatch.context() as patch:
            patch.setattr(dispatch.one_dimension, "can_sort", lambda profile: False)
            return function()

    return call


@pytest.mark.parametrize("kernel", [Gaussian(1.5), GaussianWithoutHalf(0.7)], ids=lambda k: type(k).__name__)
@pytest.mark.parametrize(
    ("what", "power", "exclude_self"),
    [("values", 1, False), ("values", 1, True), ("values", 2, False), ("bandwidth", 1, True)],
)
def test_tiles_give_the_same_sums(kernel, what, power, exclude_self, tiles):
    random = np.random.default_rng(7)
    points = random.standard_t(2, size=(1100, 1))
    query = points if exclude_self else 3 * random.standard_t(2, size=(1000, 1))
    columns = np.stack([random.random(1100), random.random(1100)])
    columns[1] *= columns[0]

    def sums():
        return pair_sums(
            query,
            points,
            columns,
            kernel.double(),
            np.array([0.3]),
            what=what,
            power=power,
            exclude_self=exclude_self,
        )

    ours, theirs = sums(), tiles(sums)
    factor = np.exp(ours.log_scale - theirs.log_scale)[:, None]
    allowed = 1e-11 + 4 * np.finfo(float).eps * np.abs(theirs.log_scale)[:, None]
    assert (np.abs(ours.values * factor - theirs.values) <= allowed * theirs.values).all()
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

"""Sums over sorted points: the same as over all pairs, to nearly all digits, wherever the points are."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nadaraya.kernels import Boxcar, Epanechnikov, ExponentialDecay, Matern, Tricube

pytest.importorskip("numba")
from nadaraya.regression.compiled.sorted import compact_sums, exponential_sums

EXPONENTIAL = {
    "exponential": [1.0],
    "matern32": [1.0, 1.0],
    "matern52": [1.0, 1.0, 1 / 3],
    "matern32, slope in log length": [0.0, 0.0, 1.0],
    "matern52, slope in log length": [0.0, 0.0, 1 / 3, 1 / 3],
    "signed": [1.0, -2.0, 0.5, 0.0, -0.125],
}
COMPACT = {
    "boxcar": [1.0],
    "epanechnikov": [1.0, 0.0, -1.0],
    "tricube": [1.0, 0, 0, -3, 0, 0, 3, 0, 0, -1],
    "triangle": [1.0, -1.0],
    "epanechnikov, slope in log h": [0.0, 0.0, 2.0],
    "tricube, slope in log h": [0.0, 0, 0, 9, 0, 0, -18, 0, 0, 9],
    "signed": [0.5, -2.0, 0.25, 1.0],
}
VANISHING = ("epanechnikov", "tricube", "triangle", "tricube, slope in log h")


def lines(n, seed=0):
    random = np.random.default_rng(seed)
    return {
        "normal": random.normal(size=n),
        "clusters": np.concatenate([1e-7 * random.normal(size=n // 2), 3 + random.random(n - n // 2)]),
        "duplicates": random.integers(0, 7, n) / 4,
        "all equal": np.full(n, 2.5),
        "far apart": np.sort(random.normal(size=n)) * 10.0 ** random.integers(-3, 12, n),
        "far from zero": 1e6 + random.normal(size=n),
        "descending": -np.arange(n) / 64,
    }


def problem(name, n=300, m=60, columns=2, seed=1):
    random = np.random.default_rng(seed)
    points = lines(n)[name]
    within = points.min() + np.ptp(points) * random.random(m - m // 2 - 4)
    outside = np.array([points.min() - 0.9, points.max() + 0.9, points.min() - 50.0, points.max() + 1e3])
    query = np.concatenate([random.choice(points, m // 2), within, outside])
    return query, points, random.random((columns, n)) + 0.01


def lags(query, points, scale):
    return np.abs(np.longdouble(query)[:, None] - np.longdouble(points)) / np.longdouble(scale)


def over_all_pairs(u, decay, columns, a):
    """(c, m) the sums, and the same of the magnitudes of their terms."""
    weight, magnitude = np.zeros_like(u), np.zeros_like(u)
    for coefficient in reversed(a):
        weight, magnitude = weight * u + coefficient, magnitude * u + abs(coefficient)
    return columns @ (weight * decay).T, abs(columns) @ (magnitude * decay).T


def exponential_over_all_pairs(query, points, columns, length, a, exclude_self=False):
    u = lags(query, points, length)
    others = ~np.eye(len(u), dtype=bool) if exclude_self else np.ones_like(u, dtype=bool)
    nearest = u.min(axis=1, where=others, initial=np.inf)
    decay = np.where(others, np.exp(nearest[:, None] - np.where(others, u, np.inf)), 0)
    return *over_all_pairs(u, decay, columns, a), -nearest


def compact_over_all_pairs(query, points, columns, bandwidth, a, exclude_self=False):
    u = lags(query, points, bandwidth)
    inside = u <= 1
    if exclude_self:
        np.fill_diagonal(inside, False)
    return over_all_pairs(u, inside, columns, a)


def rationally(query, points, columns, bandwidth, a):
    """(c, m) the compact sums without any rounding until the end."""
    sums = np.zeros((len(columns), len(query)))
    for i, q in enumerate(query.tolist()):
        u = [abs(Fraction(q) - Fraction(x)) / Fraction(bandwidth) for x in points.tolist()]
        weight = [sum(Fraction(c) * v**k for k, c in enumerate(a) if c) if v <= 1 else Fraction(0) for v in u]
        for r, column in enumerate(columns.tolist()):
            sums[r, i] = sum(w * Fraction(c) for w, c in zip(weight, column, strict=True) if w)
    return sums


def assert_close(got, want, magnitude, tolerance):
    assert got.shape == want.shape
    allowed = tolerance * magnitude + 1e-300  # below which float64 has no digits to keep
    assert (np.abs(got - want) <= allowed).all(), np.max(np.abs(got - want) / allowed)


@pytest.mark.parametrize("line", lines(4))
@pytest.mark.parametrize("family", EXPONENTIAL)
def test_exponential_sums_are_those_over_all_pairs(family, line):
    query, points, columns = problem(line)
    a = EXPONENTIAL[family]
    for length in (0.03, 2.0):
        sums, log_scale = exponential_sums(query, points, columns, length, a)
        want, magnitude, want_scale = exponential_over_all_pairs(query, points, columns, length, a)
        assert_close(sums, want, magnitude, 1e-13)
        np.testing.assert_allclose(log_scale, np.float64(want_scale), rtol=1e-15)

        sums, log_scale = exponential_sums(points, points, columns, length, a, exclude_self=True)
        want, magnitude, want_scale = exponential_over_all_pairs(points, points, columns, length, a, True)
        assert_close(sums, want, magnitude, 1e-13)
        np.testing.assert_allclose(log_scale, np.float64(want_scale), rtol=1e-15)


@pytest.mark.parametrize("line", lines(4))
@pytest.mark.parametrize("family", COMPACT)
def test_compact_sums_are_those_over_all_pairs(family, line):
    query, points, columns = problem(line)
    a = COMPACT[family]
    for bandwidth in (0.0371, 0.5, 40.0):
        sums = compact_sums(query, points, columns, bandwidth, a)
        assert_close(sums, *compact_over_all_pairs(query, points, columns, bandwidth, a), 1e-14)
        sums = compact_sums(points, points, columns, bandwidth, a, exclude_self=True)
        assert_close(sums, *compact_over_all_pairs(points, points, columns, bandwidth, a, True), 1e-14)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 400),
    m=st.integers(1, 60),
    decimals=st.integers(0, 6),
    columns=st.integers(1, 4),
    scale=st.floats(-2, 2).map(lambda power: 10.0**power),
    compact=st.sampled_from(sorted(COMPACT)),
    exponential=st.sampled_from(sorted(EXPONENTIAL)),
    exclude_self=st.booleans(),
)
def test_any_line(seed, n, m, decimals, columns, scale, compact, exponential, exclude_self):
    random = np.random.default_rng(seed)
    points = random.normal(size=n).round(decimals)
    query = points if exclude_self else (2 * random.normal(size=m)).round(decimals)
    c = random.normal(size=(columns, n))  # signed, as targets are

    a = COMPACT[compact]
    # Lags within rounding of the bandwidth are for the tests of the edge.
    u = lags(query, points, scale)
    if compact in VANISHING or (np.abs(u - 1) > 1e-14).all():
        sums = compact_sums(query, points, c, scale, a, exclude_self=exclude_self)
        want, magnitude = compact_over_all_pairs(query, points, c, scale, a, exclude_self)
        assert_close(sums, want, magnitude + 1e-12, 1e-13)

    if n > 1 or not exclude_self:
        a = EXPONENTIAL[exponential]
        sums, log_scale = exponential_sums(query, points, c, scale, a, exclude_self=exclude_self)
        want, magnitude, want_scale = exponential_over_all_pairs(query, points, c, scale, a, exclude_self)
        assert_close(sums, want, magnitude, 1e-13)
        np.testing.assert_allclose(log_scale, np.float64(want_scale), rtol=1e-15)


@pytest.mark.parametrize("family", VANISHING)
@pytest.mark.parametrize("depth", [1e-8, 1e-5, 2e-3])
def test_windows_with_points_at_the_edge_only_keep_their_digits(family, depth):
    random = np.random.default_rng(2)
    edge = 1 - depth * (1 + random.random(60))
    points = np.concatenate([edge, -random.random(100) / 4 + 1.3])  # a cell with much weight beside them
    query = np.array([0.0, 1e-12, 0.0])
    columns = np.stack([np.ones(160), random.random(160)])
    sums = compact_sums(query, points, columns, 1.0, COMPACT[family])
    want = rationally(query, points, columns, 1.0, COMPACT[family])
    np.testing.assert_allclose(sums, want, rtol=1e-12)


@pytest.mark.parametrize("family", VANISHING)
def test_a_crowd_a_rounding_beyond_the_edge_counts_nothing(family):
    points = np.append(np.full(2000, 1 + 1e-13), 0.5)
    sums = compact_sums(np.zeros(1), points, np.ones((1, 2001)), 1.0, COMPACT[family])
    want = sum(a * 0.5**k for k, a in enumerate(COMPACT[family]))
    np.testing.assert_allclose(sums, [[want]], rtol=1e-15)


def test_prefix_sums_keep_the_digits_of_small_windows_in_heavy_cells():
    random = np.random.default_rng(3)
    points = np.concatenate([random.random(50_000) * 0.5, 1 - 0.01 * random.random(80)])
    columns = np.ones((1, len(points)))
    query = np.array([1.985, 1.98])
    near = points > 0.9
    sums = compact_sums(query, points, columns, 1.0, COMPACT["tricube"])
    want = rationally(query, points[near], columns[:, near], 1.0, COMPACT["tricube"])
    np.testing.assert_allclose(sums, want, rtol=1e-12)


@pytest.mark.parametrize("family", EXPONENTIAL)
def test_many_short_steps_do_not_add_up_their_rounding(family):
    n, step = 200_000, 2.0**-20
    grid = np.arange(n) * step
    last = grid[-1:]
    sums, log_scale = exponential_sums(last, grid, np.ones((1, n)), 1.0, EXPONENTIAL[family])
    u = np.longdouble(last - grid)
    terms = sum(c * u**k for k, c in enumerate(EXPONENTIAL[family])) * np.exp(-u)
    np.testing.assert_allclose(sums[0, 0], float(terms.sum()), rtol=2e-15)
    assert log_scale[0] == 0


def test_far_queries_weigh_points_by_their_differences():
    points = np.array([0.0, 0.5, 2e6, 2e6 + 3])
    columns = np.array([[1.0, 2.0, 4.0, 8.0]])
    sums, log_scale = exponential_sums(np.array([-1e6, 1e6, 3e6]), points, columns, 1.0, [1.0])
    want = [1 + 2 * math.exp(-0.5), math.exp(-0.5) + 2 + 4 * math.exp(-0.5), 8 + 4 * math.exp(-3)]
    want[1] = 2 + math.exp(-0.5) + 4 * math.exp(-0.5) + 8 * math.exp(-3.5)
    np.testing.assert_allclose(sums[0], want, rtol=1e-15)
    np.testing.assert_allclose(log_scale, [-1e6, 0.5 - 1e6, 3 - 1e6], rtol=1e-16)


def test_points_without_weight_do_not_set_the_scale():
    points = np.array([-2000.0, 0.0, 1.0, 2.0, 3000.0])
    columns = np.array([[1.0, 0, 0, 0, 1], [3.0, 0, 0, 0, 1]])
    sums, log_scale = exponential_sums(points, points, columns, 1.0, [1.0, 1.0])
    np.testing.assert_allclose(log_scale, [0, -2000, -2001, -2002, 0])
    np.testing.assert_allclose(sums[:, 1], [2001, 3 * 2001])


def kernels_and_coefficients():
    h = torch.tensor(0.3, dtype=torch.float64)
    u = math.sqrt(3), math.sqrt(5)
    yield ExponentialDecay(h), exponential_sums, 0.3, EXPONENTIAL["exponential"]
    yield Matern(h, nu=1.5), exponential_sums, 0.3 / u[0], EXPONENTIAL["matern32"]
    yield Matern(h, nu=2.5), exponential_sums, 0.3 / u[1], EXPONENTIAL["matern52"]
    yield Boxcar(h), compact_sums, 0.3, COMPACT["boxcar"]
    yield Epanechnikov(h), compact_sums, 0.3, COMPACT["epanechnikov"]
    yield Tricube(h), compact_sums, 0.3, COMPACT["tricube"]


@pytest.mark.parametrize(
    ("kernel", "function", "scale", "a"),
    list(kernels_and_coefficients()),
    ids=lambda value: type(value).__name__,
)
def test_the_kernels_of_the_package_on_a_grid_with_lags_of_exactly_the_bandwidth(kernel, function, scale, a):
    points = np.arange(300) * 0.1  # 0.3 is met as 0.3 and as 0.30000000000000004
    columns = np.random.default_rng(4).random((3, 300))
    with torch.no_grad():
        weight = kernel.matrix(torch.from_numpy(points)).numpy()
    sums = function(points, points, columns, scale, a)
    if function is exponential_sums:
        sums = sums[0] * np.exp(sums[1])
    np.testing.assert_allclose(sums, columns @ weight, rtol=1e-13)


@pytest.mark.parametrize("count", [1, 7, 200])
def test_a_lag_of_exactly_the_bandwidth(count):
    points = np.full(count, 3.0)
    query, columns = np.array([2.0, 4.0, np.nextafter(4, 5), 4.001]), np.ones((1, count))
    assert compact_sums(query, points, columns, 1.0, [1.0]).tolist() == [[count, count, count, 0]]
    for family in VANISHING:
        assert (compact_sums(query, points, columns, 1.0, COMPACT[family]) == 0).all()


@pytest.mark.parametrize("line", lines(4))
def test_leaving_a_point_out_is_what_it_says(line):
    _, points, columns = problem(line)
    with_itself = compact_sums(points, points, columns, 0.4, COMPACT["tricube"])
    without = compact_sums(points, points, columns, 0.4, COMPACT["tricube"], exclude_self=True)
    np.testing.assert_allclose(without + columns, with_itself, rtol=1e-13)

    everything, scale = exponential_sums(points, points, columns, 0.4, [1.0])
    without, scale_without = exponential_sums(points, points, columns, 0.4, [1.0], exclude_self=True)
    assert (scale == 0).all()
    np.testing.assert_allclose(without * np.exp(scale_without) + columns, everything, rtol=1e-13)


@pytest.mark.parametrize("line", ["normal", "duplicates", "clusters"])
def test_order_unit_and_direction_of_the_line_do_not_matter(line):
    query, points, columns = problem(line, m=200)
    shuffled = np.random.default_rng(5).permutation(len(points))
    for function, a in ((exponential_sums, EXPONENTIAL["matern52"]), (compact_sums, COMPACT["tricube"])):
        want = np.atleast_2d(function(query, points, columns, 0.2, a)[0])
        for changed in (
            function(query, points[shuffled], columns[:, shuffled], 0.2, a),
            function(64 * query, 64 * points, columns, 64 * 0.2, a),
            function(-query, -points, columns, 0.2, a),
            [part[..., ::-1] for part in function(query[::-1].copy(), points, columns, 0.2, a)],
        ):
            np.testing.assert_allclose(np.atleast_2d(changed[0]), want, rtol=1e-13)


def test_one_point():
    point, column = np.array([5.0]), np.array([[2.0], [-3.0]])
    assert compact_sums(np.array([5.0, 7.0]), point, column, 1.0, [1.0, -1.0]).tolist() == [[2, 0], [-3, 0]]
    assert compact_sums(point, point, column, 1.0, [1.0], exclude_self=True).tolist() == [[0], [0]]
    sums, log_scale = exponential_sums(np.array([5.0, 7.0]), point, column, 0.5, [1.0])
    assert sums.tolist() == [[2, 2], [-3, -3]]
    assert log_scale.tolist() == [0, -4]
    sums, log_scale = exponential_sums(point, point, column, 0.5, [1.0], exclude_self=True)
    assert sums.tolist() == [[0], [0]]
    assert log_scale.tolist() == [-math.inf]


def test_no_query():
    points, columns = np.arange(9.0), np.ones((3, 9))
    assert compact_sums(np.empty(0), points, columns, 1.0, [1.0]).shape == (3, 0)
    sums, log_scale = exponential_sums(np.empty(0), points, columns, 1.0, [1.0])
    assert sums.shape == (3, 0)
    assert log_scale.shape == (0,)


def test_the_zero_polynomial():
    query, points, columns = problem("normal")
    assert (compact_sums(query, points, columns, 0.5, [0.0, 0.0]) == 0).all()
    assert (exponential_sums(query, points, columns, 0.5, [0.0, 0.0])[0] == 0).all()


def test_inputs_may_be_read_only_and_stay_as_they_are():
    arrays = problem("normal")
    copies = [array.copy() for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    compact_sums(*arrays, 0.5, COMPACT["tricube"])
    exponential_sums(*arrays, 0.5, [1.0])
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_a_spread_that_dwarfs_the_bandwidth():
    points = np.array([-1e300, -1.0, 0.0, 1e-4, 1e300])
    columns = np.array([[1.0, 2.0, 3.0, 4.0, 5.0]])
    assert compact_sums(points, points, columns, 1e-3, [1.0]).tolist() == [[1, 2, 7, 7, 5]]

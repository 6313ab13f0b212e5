"""Sums over pairs: compiled loops, PyTorch's blocks and the definition give the same."""

import numpy as np
import pytest
import torch
from grids import covering
from hypothesis import given, settings
from hypothesis import strategies as st
from pair_sums import PairSums, pair_sums

from nadaraya.kernels import (
    Boxcar,
    Epanechnikov,
    ExponentialDecay,
    Gaussian,
    GaussianWithoutHalf,
    Matern,
    Periodic,
    RationalQuadratic,
    Tricube,
)
from nadaraya.kernels.base import Sum
from nadaraya.regression import torch_sums
from nadaraya.regression.requests import Means, Request
from nadaraya.regression.sums import attention_means, compute, is_attention

numba = pytest.importorskip("numba")


@pytest.fixture
def all_cores():
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    yield
    numba.set_num_threads(1)


def over(r):
    """1/r, and 0 at the cusp."""
    return np.divide(1.0, r, out=np.zeros_like(r), where=r > 0)


def exact(value):
    """A parameter of a kernel in all digits of float64."""
    return torch.tensor(value, dtype=torch.float64)


# log κ(r) and d log κ/dr · 1/r, written down apart from the package; −inf and anything where κ is 0.
FORMULAS = {
    "gaussian": (Gaussian(exact(1.3)), lambda r: -0.5 * r**2 / 1.69, lambda r: np.full_like(r, -1 / 1.69)),
    "without half": (
        GaussianWithoutHalf(exact(0.9)),
        lambda r: -((r / 0.9) ** 2),
        lambda r: np.full_like(r, -2 / 0.81),
    ),
    "exponential": (ExponentialDecay(exact(0.7)), lambda r: -r / 0.7, lambda r: -over(0.7 * r)),
    "matern12": (Matern(exact(1.2), 0.5), lambda r: -r / 1.2, lambda r: -over(1.2 * r)),
    "matern32": (
        Matern(1.0, 1.5),
        lambda r: np.log1p(np.sqrt(3) * r) - np.sqrt(3) * r,
        lambda r: -3 / (1 + np.sqrt(3) * r),
    ),
    "matern52": (
        Matern(1.0, 2.5),
        lambda r: np.log1p(np.sqrt(5) * r + 5 / 3 * r**2) - np.sqrt(5) * r,
        lambda r: -(5 / 3) * (1 + np.sqrt(5) * r) / (1 + np.sqrt(5) * r + 5 / 3 * r**2),
    ),
    "epanechnikov": (
        Epanechnikov(exact(1.4)),
        lambda r: np.log(np.maximum(1 - (r / 1.4) ** 2, 0)),
        lambda r: -2 / 1.96 / np.where(r < 1.4, 1 - (r / 1.4) ** 2, np.inf),
    ),
    "tricube": (
        Tricube(1.0),
        lambda r: 3 * np.log(np.maximum(1 - r**3, 0)),
        lambda r: -9 * r / np.where(r < 1, 1 - r**3, np.inf),
    ),
    "boxcar": (Boxcar(exact(1.1)), lambda r: np.where(r <= 1.1, 0.0, -np.inf), np.zeros_like),
    "scaled": (
        exact(2.0) * Matern(1.0, 1.5),
        lambda r: np.log(2) + np.log1p(np.sqrt(3) * r) - np.sqrt(3) * r,
        lambda r: -3 / (1 + np.sqrt(3) * r),
    ),
}
KERNELS = {name: entry[0].double() for name, entry in FORMULAS.items()}
COMPACT = ("epanechnikov", "tricube", "boxcar")
WHAT = ("values", "bandwidth", "position", "moments")


def blocked_sums(query, points, columns, kernel, bandwidth, **arguments):
    """Sums of kernels have no compiled loops, not even a sum of one."""
    return pair_sums(query, points, columns, Sum(kernel), bandwidth, **arguments)


def by_definition(
    query, points, columns, name, h, what="values", power=1, query_scale=None, exclude_self=False, lines=None
):
    """Everything at once, relative to the largest weight of each query."""
    _, log_kernel, log_slope = FORMULAS[name]
    q, x, c = (np.asarray(array, np.float64) for array in (query, points, columns))
    shrink = np.ones(len(q)) if query_scale is None else 1 / query_scale
    difference = q[:, None] - x
    r = np.sqrt(((difference / h) ** 2).sum(axis=2)) * shrink[:, None]
    hidden = np.broadcast_to(c[0] == 0, r.shape).copy()
    if exclude_self:
        np.fill_diagonal(hidden, True)
    with np.errstate(divide="ignore"):
        log_weights = np.where(hidden, -np.inf, power * log_kernel(r))
    top = log_weights.max(axis=1)
    empty = np.isneginf(top)
    reach = np.where(hidden, np.inf, r)
    nearest = (reach <= reach.min(axis=1)[:, None] * (1 + 1e-12)) & ~hidden
    weights = np.exp(log_weights - np.where(empty, 0, top)[:, None])
    weights = np.where(empty[:, None], nearest, weights)
    values, by_feature, second = weights @ c.T, np.zeros(0), np.zeros(0)
    if what in ("bandwidth", "position"):
        slopes = np.where(empty[:, None], 0, weights * log_slope(r)) * shrink[:, None] ** 2
        factor = -((difference / h) ** 2) if what == "bandwidth" else difference / h**2
        by_feature = np.einsum("mn,mnd,cn->mdc", slopes, factor, c, optimize=True)
    if what == "moments":
        by_feature = np.einsum("mn,mnd,cn->mdc", weights, difference, c, optimize=True)
        second = np.einsum(
            "mnd,mne->mde", (weights * c[0])[..., None] * difference, difference, optimize=True
        )
    if what == "lines":
        a, coefficients = lines
        z = np.concatenate([np.ones_like(difference[..., :1]), -difference], axis=2)
        slopes = -np.where(empty[:, None], 0, weights * log_slope(r)) * shrink[:, None] ** 2
        residual = c[1:] - c[0] * np.einsum("mzp,mnz->mpn", coefficients, z)
        leaning = np.einsum("mz,mnz->mn", a, z)
        ends = np.concatenate([(c[0] * leaning)[:, None], residual], axis=1)
        by_feature = np.einsum("mn,mnd,mcn->mdc", slopes * leaning, (difference / h) ** 2, ends)
    return PairSums(values, by_feature, second, top)


def assert_same(sums, expected, tolerance):
    """Equal log mass, and equal means over the weights, to a part of the spread of what is averaged."""
    empty = np.isneginf(expected.log_scale)
    np.testing.assert_array_equal(np.isneginf(sums.log_scale), empty)
    mass, expected_mass = sums.values[:, 0], expected.values[:, 0]
    some = expected_mass > 0
    assert (mass[~some] == 0).all()
    if not some.any():
        return
    log_mass = np.log(mass[some]) + np.where(empty, 0, sums.log_scale)[some]
    expected_log_mass = np.log(expected_mass[some]) + np.where(empty, 0, expected.log_scale)[some]
    np.testing.assert_allclose(log_mass, expected_log_mass, rtol=tolerance, atol=tolerance)
    for got, wanted in zip(sums[:3], expected[:3], strict=True):
        if wanted.size == 0:
            assert got.size == 0
            continue
        unit = expected_mass[some].reshape(-1, *[1] * (wanted.ndim - 1))
        ratio = got[some] / mass[some].reshape(unit.shape)
        scale = max(1.0, np.abs(wanted[some] / unit).max())
        np.testing.assert_allclose(ratio, wanted[some] / unit, rtol=tolerance, atol=tolerance * scale)


def problem(n, m, d, dtype=np.float64, seed=0, columns=3, zeros=True):
    random = np.random.default_rng(seed)
    points, query = random.normal(size=(n, d)).astype(dtype), random.normal(size=(m, d)).astype(dtype)
    weight = random.random(n) * (random.random(n) > 0.2 if zeros else 1)
    return query, points, weight * np.concatenate([np.ones((1, n)), random.normal(size=(columns - 1, n))])


@pytest.mark.parametrize(
    ("name", "d", "dtype"), covering(list(FORMULAS), [1, 3, 8], [np.float64, np.float32])
)
def test_definition(name, d, dtype):
    query, points, columns = problem(n=300, m=45, d=d, dtype=dtype)
    h = np.linspace(0.8, 1.3, d) * (0.5 if d < 8 else 3.0)
    scale = np.random.default_rng(1).uniform(0.6, 1.7, len(query))
    tolerance = 1e-11 if dtype == np.float64 else 3e-4 if name in COMPACT else 2e-5
    columns = columns.astype(dtype)
    random = np.random.default_rng(2)
    lines = random.normal(size=(len(query), 1 + d)), random.normal(size=(len(query), 1 + d, 2))
    for what in (*WHAT, "lines"):
        for power, query_scale in ((1, scale), (1, None) if what == "bandwidth" else (2, None)):
            if power == 2 and what in ("position", "lines"):
                continue
            arguments = {"what": what, "power": power, "query_scale": query_scale}
            if what == "lines":
                arguments["lines"] = lines
            expected = by_definition(query, points, columns, name, h, **arguments)
            result = pair_sums(query, points, columns, KERNELS[name], h, **arguments)
            assert_same(result, expected, tolerance)
            if dtype == np.float64:
                result = blocked_sums(query, points, columns, KERNELS[name], h, **arguments)
                assert_same(result, expected, 1e-11)


@pytest.mark.parametrize(("name", "what"), [(name, what) for name in FORMULAS for what in WHAT])
def test_exclude_self(name, what):
    for n, d in ((300, 2), (2, 3), (33, 1)):
        _, points, columns = problem(n=n, m=1, d=d, zeros=n > 2)
        points[-2:] = points[0] if n > 2 else points[-2:]  # copies of a point still see each other
        scale = np.random.default_rng(1).uniform(0.6, 1.7, n)
        h = np.full(d, 0.3)
        arguments = {"what": what, "exclude_self": True, "query_scale": scale}
        expected = by_definition(points, points, columns, name, h, **arguments)
        for sums in (pair_sums, blocked_sums):
            assert_same(sums(points, points, columns, KERNELS[name], h, **arguments), expected, 1e-11)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_sorted_in_one_dimension(name, dtype):
    query, points, columns = problem(n=1100, m=1000, d=1, dtype=dtype)
    query[:5, 0] = (-9.0, 9.0, 40.0, -300.0, 5.0)
    columns = columns.astype(dtype)
    for h in (1e-3, 0.2, 50.0):
        for what, power in (("values", 1), ("values", 2), ("bandwidth", 1)):
            arguments = {"what": what, "power": power}
            expected = by_definition(query, points, columns, name, np.array([h]), **arguments)
            result = pair_sums(query, points, columns, KERNELS[name], np.array([h]), **arguments)
            # Tiles of float32 compute in float32: coordinates over h have its relative rounding.
            double = dtype == np.float64 or name not in ("gaussian", "without half")
            assert_same(result, expected, 1e-9 if double else 2e-2 if h < 0.1 else 2e-5)


@pytest.mark.parametrize(
    ("name", "what", "bandwidth"),
    covering(
        ["gaussian", "exponential", "matern32", "matern52", "tricube", "boxcar"], WHAT, [1e-2, 0.3, 1e3]
    ),
)
@pytest.mark.usefixtures("all_cores")
def test_far_tiles_do_not_count(name, what, bandwidth):
    """Clusters far apart: some tiles are skipped, some must not be."""
    random = np.random.default_rng(3)
    centres = 40 * random.normal(size=(9, 2))
    points = centres[random.integers(0, 9, 1500)] + random.normal(size=(1500, 2))
    query = np.concatenate([points[:150:3] + 0.01, centres + 0.1, 200 * random.normal(size=(20, 2))])
    columns = np.stack([random.random(1500), random.normal(size=1500)])
    columns[1] *= columns[0]
    expected = by_definition(query, points, columns, name, np.full(2, bandwidth), what=what)
    result = pair_sums(query, points, columns, KERNELS[name], np.full(2, bandwidth), what=what)
    # log κ of a pair u away is rounded to u · 2⁻⁵³, in the definition as here.
    assert_same(result, expected, 1e-11 if bandwidth > 0.1 else 1e-7)


@pytest.mark.parametrize(
    ("name", "reach", "dtype"), covering(list(FORMULAS), [1e3, 1e6], [np.float64, np.float32])
)
def test_underflow_gives_the_nearest_point(name, reach, dtype):
    """Queries so many bandwidths from their nearest point, the next one much farther."""
    random = np.random.default_rng(0)
    points = np.stack(np.meshgrid(np.arange(24.0), np.arange(20.0)), axis=-1).reshape(-1, 2)
    nearest = random.integers(0, len(points), 50)
    query = (points[nearest] + [0.25, -0.125]).astype(dtype)
    distance = np.hypot(0.25, 0.125)
    value = random.normal(size=len(points))
    columns = np.stack([np.full(len(points), 0.5), 0.5 * value]).astype(dtype)
    h = np.full(2, distance / reach)
    rounding = 1e-9 if dtype == np.float64 else 3e-5
    for sums in (pair_sums, blocked_sums):
        result = sums(query, points.astype(dtype), columns, KERNELS[name], h)
        mean = result.values[:, 1] / result.values[:, 0]
        np.testing.assert_allclose(mean, value[nearest], rtol=1e-6 if dtype == np.float32 else 1e-13)
        with np.errstate(divide="ignore"):
            log_mass = np.log(0.5) + FORMULAS[name][1](np.array(reach))
        if name in COMPACT:
            assert np.isneginf(result.log_scale).all()
        else:
            got = np.log(result.values[:, 0]) + result.log_scale
            np.testing.assert_allclose(got, np.full(50, log_mass), rtol=rounding)


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("name", [name for name in FORMULAS if name not in COMPACT])
def test_derivatives_and_moments_under_underflow(name, what):
    """Far queries: derivatives and moments of the weights relative to the nearest point's."""
    query, points, columns = problem(n=300, m=20, d=2)
    query = query + 1e3
    expected = by_definition(query, points, columns, name, np.full(2, 0.9), what=what)
    for sums in (pair_sums, blocked_sums):
        result = sums(query, points, columns, KERNELS[name], np.full(2, 0.9), what=what)
        assert_same(result, expected, 1e-8)


ANY_SUMS = given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(2, 600),
    m=st.integers(1, 70),
    d=st.sampled_from([1, 2, 3, 8]),
    name=st.sampled_from(list(FORMULAS)),
    scale=st.floats(-2.0, 2.0),
    lattice=st.booleans(),
    what=st.sampled_from(WHAT),
    power=st.sampled_from([1, 2]),
    exclude_self=st.booleans(),
    zeros=st.booleans(),
)


@settings(max_examples=30, deadline=None)
@ANY_SUMS
def test_compiled_is_blocked(**case):
    check_compiled_is_blocked(**case)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@ANY_SUMS
def test_compiled_is_blocked_in_many_cases(**case):
    check_compiled_is_blocked(**case)


def check_compiled_is_blocked(seed, n, m, d, name, scale, lattice, what, power, exclude_self, zeros):
    query, points, columns = problem(n, m, d, seed=seed, zeros=zeros)
    if lattice:  # copies and ties; π keeps every distance away from the edge of a support
        points, query = np.round(4 * points) / 4, np.round(2 * query) / 2
    query = points if exclude_self else query
    query_scale = np.random.default_rng(seed).uniform(0.5, 2.0, len(query)) if seed % 2 else None
    arguments = {
        "what": what,
        "power": power if what in ("values", "moments") else 1,
        "query_scale": query_scale,
        "exclude_self": exclude_self,
    }
    h = np.full(d, 10.0**scale * np.pi / 3)
    expected = blocked_sums(query, points, columns, KERNELS[name], h, **arguments)
    assert_same(pair_sums(query, points, columns, KERNELS[name], h, **arguments), expected, 1e-8)


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("name", ["gaussian", "exponential", "tricube"])
def test_few_points(name, what):
    query, points, columns = problem(n=1, m=5, d=2, zeros=False)
    h = np.ones(2)
    for sums in (pair_sums, blocked_sums):
        result = sums(query, points, columns, KERNELS[name], h, what=what)
        assert_same(result, by_definition(query, points, columns, name, h, what=what), 1e-12)
        nobody = sums(query[:0], points, columns, KERNELS[name], h, what=what)
        assert nobody.values.shape == (0, 3)
        assert nobody.log_scale.shape == (0,)
        if what != "values":
            assert nobody.by_feature.shape == (0, 2, 3)
        if what == "moments":
            assert nobody.second.shape == (0, 2, 2)
        alone = sums(points, points, columns, KERNELS[name], h, what=what, exclude_self=True)
        assert (alone.values == 0).all()
        assert np.isneginf(alone.log_scale).all()


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("name", FORMULAS)
def test_an_infinite_bandwidth_leaves_a_feature_out(name, what):
    query, points, columns = problem(n=300, m=40, d=3)
    h = np.array([0.5, np.inf, 0.8])
    without = by_definition(query[:, ::2], points[:, ::2], columns, name, h[::2], what=what)
    for sums in (pair_sums, blocked_sums):
        result = sums(query, points, columns, KERNELS[name], h, what=what)
        if what in ("bandwidth", "position"):
            assert (result.by_feature[:, 1] == 0).all()
        by_feature = result.by_feature[:, ::2] if what != "values" else result.by_feature
        second = result.second[:, ::2, ::2] if what == "moments" else result.second
        assert_same(PairSums(result.values, by_feature, second, result.log_scale), without, 1e-11)


def test_read_only_arrays():
    query, points, columns = problem(n=300, m=40, d=2)
    h, scale = np.ones(2), np.ones(40)
    for array in (query, points, columns, h, scale):
        array.flags.writeable = False
    for what in WHAT:
        for sums in (pair_sums, blocked_sums):
            result = sums(query, points, columns, KERNELS["gaussian"], h, what=what, query_scale=scale)
            assert_same(result, by_definition(query, points, columns, "gaussian", h, what=what), 1e-11)


def test_kernels_of_the_algebra(monkeypatch):
    query, points, columns = problem(n=50, m=9, d=1)
    h = np.ones(1)
    kernel = (Periodic(0.7, 0.4) * Gaussian(2.0) + 0.5 * RationalQuadratic(1.0, 0.5)).double()
    r = torch.tensor(np.abs(query - points.T))
    expected = kernel(r).detach().numpy() @ columns.T
    result = pair_sums(query, points, columns, kernel, h)
    np.testing.assert_allclose(
        result.values * np.exp(result.log_scale)[:, None], expected, rtol=1e-11, atol=1e-12
    )
    monkeypatch.setattr(torch_sums, "_PAIRS_CPU", 1)  # one query a block
    one_by_one = blocked_sums(query, points, columns, kernel, h, what="moments")
    np.testing.assert_allclose(one_by_one.values, result.values, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", ["gaussian", "without half"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_attention_gives_the_same_means(name, dtype):
    """What GPUs compute, here on the CPU."""
    query, points, columns = problem(n=300, m=40, d=3, dtype=dtype)
    h = np.array([0.5, np.inf, 0.8])
    request = Request(Means, query, points, columns, KERNELS[name], h, device=torch.device("cpu"))
    expected = by_definition(query, points, columns, name, h).values
    assert not is_attention(request)
    for means in (attention_means(request), compute(request)):
        rounding = 1e-11 if dtype == np.float64 else 2e-5
        np.testing.assert_allclose(means.values, expected[:, 1:] / expected[:, :1], atol=rounding)
        assert not means.no_support.any()

"""Sums by Fourier transforms agree with sums over pairs, for every query and whatever the data."""

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from nadaraya.kernels import Gaussian, GaussianWithoutHalf, Tricube
from nadaraya.regression import NadarayaWatson, sums
from nadaraya.regression.compiled import dispatch, fourier
from nadaraya.regression.requests import BandwidthGradients, Moments, Request, Sums


def problem(d, dtype=np.float64, n=3000):
    """Points in a cluster, copies, points far away and points without weight; several targets."""
    random = np.random.default_rng(0)
    x = random.normal(size=(n, d))
    x[: n // 6] *= 0.01
    x[n // 6 : n // 5] = x[0]
    x[n // 5 : n // 5 + 5] *= 5
    weight = random.random(n) * (random.random(n) < 0.8)
    rare = random.random(n) < 0.01
    y = np.stack([np.sin(3 * x[:, 0]), 100 * x[:, 1], random.normal(size=n), rare])
    query = np.concatenate([x[:600] + 0.01, 3 * random.normal(size=(150, d)), 1e3 + np.zeros((3, d))])
    return query.astype(dtype), x.astype(dtype), np.concatenate([weight[None], weight * y])


def by_transforms(request):
    """The sums of a request, and how many queries were left to pairs."""
    profile = dispatch.profile_of(request.kernel)
    left = []

    def pairs(rows):
        left.extend(rows)
        return dispatch._over_tiles(request, profile, rows)

    grid = fourier.Grid.of(request, profile)
    return fourier.compute(request, grid, profile.log_factor, pairs), len(left)


def by_definition(request):
    """Sums and their gradients, in float64, relative to each query's greatest weight."""
    q, x = (array.astype(np.float64) / request.bandwidth for array in (request.query, request.points))
    square = (q[:, None] - x) ** 2
    log_weight = -0.5 * request.power * square.sum(axis=2)
    hidden = np.broadcast_to(request.columns[0] == 0, log_weight.shape).copy()
    if request.exclude_self:
        np.fill_diagonal(hidden, True)
    log_weight[hidden] = -np.inf
    top = log_weight.max(axis=1)
    weight = np.exp(log_weight - top[:, None])
    gradients = np.stack([(weight * square[:, :, f]) @ request.columns.T for f in range(x.shape[1])], axis=1)
    return weight @ request.columns.T, top, gradients


def assert_agrees(found, request, tolerance):
    values, top, gradients = by_definition(request)
    mass, exact_mass = found.values[:, :1], values[:, :1]
    log_mass, exact_log = np.log(mass[:, 0]) + found.log_scale, np.log(exact_mass[:, 0]) + top
    np.testing.assert_allclose(log_mass, exact_log, rtol=tolerance, atol=tolerance)
    columns, mean, exact_mean = request.columns, found.values / mass, values / exact_mass
    squares = np.divide(columns**2, columns[0], out=np.zeros_like(columns), where=columns[0] > 0).sum(axis=1)
    unit = np.sqrt(squares / columns[0].sum())
    assert np.abs((mean - exact_mean) / unit).max() < tolerance
    if request.quantity is BandwidthGradients:
        difference = found.gradients / mass[:, None] - gradients / exact_mass[:, None]
        assert np.abs(difference / unit).max() < tolerance * max(1.0, np.abs(gradients / unit).max())


@pytest.mark.parametrize("exclude_self", [False, True])
@pytest.mark.parametrize(("d", "h"), [(2, 0.05), (2, 0.5), (2, 1e4), (3, 0.7), (3, 2.0), (3, 1e4)])
def test_every_query_has_the_promised_accuracy(d, h, exclude_self):
    query, x, columns = problem(d)
    query = x if exclude_self else query
    bandwidth = np.linspace(h, 1.3 * h, d)
    request = Request(
        BandwidthGradients, query, x, columns, Gaussian(1.0), bandwidth, exclude_self=exclude_self
    )
    found, left = by_transforms(request)
    assert left < 0.6 * len(query)
    assert_agrees(found, request, 1e-9)


@pytest.mark.parametrize("d", [2, 3])
def test_float32(d):
    query, x, columns = problem(d, np.float32)
    request = Request(Sums, query, x, columns, Gaussian(1.0), np.full(d, 0.5))
    assert_agrees(by_transforms(request)[0], request, 2e-5)


def test_squares_of_weights_features_left_out_and_factors():
    query, x, columns = problem(3)
    h = np.array([0.5, np.inf, 0.8])
    two = torch.tensor(2.0, dtype=torch.float64)
    for kernel, power in ((Gaussian(1.0), 2), (two * GaussianWithoutHalf(two.sqrt()), 1)):
        request = Request(Sums, query, x, columns, kernel, h, power=power)
        found = by_transforms(request)[0]
        log_two = 0.0 if power == 2 else np.log(2.0)
        assert_agrees(Sums(found.values, found.log_scale - log_two), request, 1e-9)


def test_requests_that_have_no_grid():
    query, x, columns = problem(2)
    of = fourier.Grid.of

    def grid(quantity=Sums, kernel=None, h=0.5, **options):
        kernel = kernel or Gaussian(1.0)
        request = Request(quantity, query, x, columns, kernel, np.full(2, h), **options)
        return of(request, dispatch.profile_of(kernel))

    assert grid() is not None
    assert grid(Moments) is None
    assert grid(kernel=Tricube(1.0)) is None
    assert grid(h=1e-7) is None  # too many cells
    assert grid(query_scale=np.ones(len(query))) is None


def test_transforms_are_taken_where_they_pay(monkeypatch):
    """Of few points pairs are sooner visited, and of distant ones hardly any; a search takes both ways."""
    random = np.random.default_rng(0)
    x = random.random((12_000, 2)) - 0.5
    columns = np.ones((1, len(x)))

    def pays(x, h):
        return dispatch.grid_of(Request(Sums, x, x, columns, Gaussian(1.0), np.full(2, h))) is not None

    assert pays(x, 0.2)
    assert not pays(x, 0.001)
    assert not pays(x[:200], 0.2)
    y = np.sin(6 * x[:, 0])
    model, lines = NadarayaWatson(bandwidth=0.2, verbose=1).fit(x, y), []
    transforms, left_out = model.predict(x[:9000]), model.loo_predictions()
    monkeypatch.setattr(sums, "_PAIRS_PER_REPORT", 2**24)
    monkeypatch.setattr(type(model), "_report", lambda self, line: lines.append(line))
    np.testing.assert_array_equal(model.predict(x[:9000]), transforms)
    assert not lines  # all queries at once
    monkeypatch.setattr(fourier.Grid, "pays", lambda self, request: False)
    np.testing.assert_allclose(model.predict(x[:9000]), transforms, rtol=0, atol=1e-9)
    np.testing.assert_allclose(model.loo_predictions(), left_out, rtol=0, atol=1e-9)
    assert (model.predict(x[:9000]) != transforms).any()

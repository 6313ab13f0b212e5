"""Masked training: its loss is cross-validation, its gradients are exact, its bandwidths sensible."""

import numpy as np
import pytest
import torch

from nadaraya.errors import InputError
from nadaraya.kernels import (
    Boxcar,
    Epanechnikov,
    ExponentialDecay,
    Gaussian,
    GaussianWithoutHalf,
    Matern,
    Tricube,
)
from nadaraya.regression.masked import masked_training, smooth


def paper_data(seed, n=150):
    """The heteroskedastic data of Czyż (2024), with NumPy's noise."""
    x = np.linspace(-3, 3, n)
    noise = np.random.default_rng(seed).standard_normal(n)
    return x[:, None], 0.5 * np.sin(x) - np.sin(3 * x) + 0.2 * x**2 + (0.2 + 0.05 * np.abs(x)) * noise


def random_data(n=40, d=1, p=None, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=n if p is None else (n, p))


def regression(kappa, x, points, values):
    """Kernel regression at one point by its formula."""
    weights = np.array([kappa(np.linalg.norm(x - point)) for point in points])
    return weights @ values / weights.sum()


def held_out_error(kappa, X, y, held):
    seen = np.setdiff1d(np.arange(len(X)), held)
    return [np.square(regression(kappa, X[i], X[seen], y[seen]) - y[i]) for i in held]


@pytest.mark.parametrize("p", [None, 3])
def test_all_single_hold_outs_together_are_the_leave_one_out_score(p):
    X, y = random_data(d=2, p=p)
    found = masked_training(0.7, X, y, n_splits=len(X), n_steps=3, learning_rate=1e-300, random_state=0)

    kernel = np.exp(-np.sum((X[:, None] - X) ** 2, axis=-1) / 0.7**2)
    smoother = kernel / kernel.sum(axis=1, keepdims=True)
    own = np.diag(smoother).reshape(-1, *[1] * (y.ndim - 1))
    closed_form = np.mean(((y - smoother @ y) / (1 - own)) ** 2)
    np.testing.assert_allclose(found.losses, closed_form, rtol=1e-12)


def test_single_hold_outs_have_the_leave_one_out_score_as_their_mean():
    X, y = random_data(n=12)
    kappa = lambda r: np.exp(-((r / 0.5) ** 2))  # noqa: E731
    scores = np.array([held_out_error(kappa, X, y, [i])[0] for i in range(12)])
    found = masked_training(0.5, X, y, n_splits=1, n_steps=300, learning_rate=1e-300, random_state=0)
    drawn = np.abs(found.losses[:, None] - scores).argmin(axis=1)
    np.testing.assert_allclose(found.losses, scores[drawn], rtol=1e-10)
    assert set(drawn) == set(range(12))  # every point is held out
    assert abs(found.losses.mean() - scores.mean()) < 4 * scores.std() / 300**0.5


def test_splits_that_share_no_point_are_cross_validation():
    X, y = random_data(n=30)
    found = masked_training(
        0.4, X, y, kernel=Matern(1.0, nu=1.5), hold_out=5, n_splits=6, n_steps=1, random_state=3
    )
    order = np.random.RandomState(3).permutation(30)
    kappa = lambda r: (1 + 3**0.5 * r / 0.4) * np.exp(-(3**0.5) * r / 0.4)  # noqa: E731
    errors = [held_out_error(kappa, X, y, fold) for fold in order.reshape(6, 5)]
    np.testing.assert_allclose(found.losses, np.mean(errors), rtol=1e-6)  # √3 of the kernel, float32


def test_fraction_is_that_share_of_the_points():
    X, y = random_data(n=50)
    a = masked_training(1.0, X, y, hold_out=0.8, n_steps=5, random_state=0)
    b = masked_training(1.0, X, y, hold_out=40, n_steps=5, random_state=0)
    np.testing.assert_array_equal(a.losses, b.losses)
    np.testing.assert_array_equal(a.bandwidths, b.bandwidths)


@pytest.mark.parametrize(
    "kernel",
    [
        GaussianWithoutHalf(1.0),
        Gaussian(0.8),
        ExponentialDecay(1.0),
        Matern(1.0, nu=2.5),
        Epanechnikov(1.0),
        Tricube(1.5),
    ],
)
@pytest.mark.parametrize("per_feature", [False, True])
def test_gradients_agree_with_finite_differences(kernel, per_feature):
    generator = torch.Generator().manual_seed(0)
    kernel = kernel.double().requires_grad_(False)
    points, values = (torch.randn(9, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    queries = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    queries[0] = points[0]  # a distance of zero
    queries[1] = 50.0  # no neighbour in a compact support
    log_bandwidths = torch.randn(3, 2 if per_feature else 1, generator=generator, dtype=torch.float64).mul(
        0.3
    )
    log_bandwidths.requires_grad_()
    weight = torch.linspace(0.5, 2.0, 9, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda z: smooth(kernel, z.exp(), queries, points, values, weight)[0], log_bandwidths, atol=1e-6
    )


def test_far_query_takes_its_nearest_neighbour():
    points = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    values = torch.tensor([[5.0], [6.0], [7.0]], dtype=torch.float64)
    bandwidths = torch.tensor([[1e-3]], dtype=torch.float64)
    for kernel in (GaussianWithoutHalf(1.0), Epanechnikov(1.0)):
        queries = torch.tensor([[40.0], [0.51], [-1e8]], dtype=torch.float64)
        prediction, no_support = smooth(kernel, bandwidths, queries, points, values, torch.ones(3))
        assert prediction.flatten().tolist() == pytest.approx([7.0, 6.0, 5.0], abs=1e-3)
        assert no_support.all() == isinstance(kernel, Epanechnikov)


def test_points_without_neighbours_take_no_part():
    X, y = random_data(n=20)
    far = np.array([[1e3], [2e3]])
    options = {"kernel": Epanechnikov(1.0), "n_steps": 1, "random_state": 0}
    alone = masked_training(4.0, X, y, n_splits=20, **options)
    together = masked_training(4.0, np.vstack([X, far]), np.append(y, [1e9, -1e9]), n_splits=22, **options)
    np.testing.assert_allclose(together.losses, alone.losses, rtol=1e-12)
    np.testing.assert_allclose(together.bandwidths, alone.bandwidths, rtol=1e-12)


def test_steps_without_any_neighbour_change_nothing():
    found = masked_training(0.1, np.arange(10.0)[:, None], np.arange(10.0), kernel=Tricube(1.0), n_steps=4)
    assert np.isnan(found.losses).all()
    np.testing.assert_allclose(found.bandwidths, 0.1, rtol=1e-12)


@pytest.mark.parametrize("kernel", [Epanechnikov(1.0), Tricube(1.0), Boxcar(1.0)])
def test_compact_kernels_train_to_finite_numbers(kernel):
    X, y = paper_data(0, n=60)
    found = masked_training([0.05, 0.5], X, y, kernel=kernel, n_steps=100, random_state=0)
    assert np.isfinite(found.bandwidths).all()
    assert np.isfinite(found.combination).all()
    assert (found.bandwidths > 0).all()


def test_weight_counts_a_point_among_neighbours_and_in_the_loss():
    X, y = random_data(n=15)
    w = np.random.default_rng(1).uniform(0.1, 3, 15)
    found = masked_training(0.6, X, y, sample_weight=w, n_splits=15, n_steps=1, random_state=0)
    kernel = np.exp(-((X - X.T) ** 2) / 0.36) * w
    np.fill_diagonal(kernel, 0)
    errors = np.square(y - kernel @ y / kernel.sum(axis=1))
    np.testing.assert_allclose(found.losses, np.average(errors, weights=w), rtol=1e-12)


def test_weight_zero_is_absence():
    X, y = random_data(n=20)
    w = np.where(np.arange(20) % 3 == 0, 0.0, 1.0)
    weighted = masked_training(0.6, X, y, sample_weight=w, n_steps=20, random_state=0)
    without = masked_training(0.6, X[w > 0], y[w > 0], n_steps=20, random_state=0)
    np.testing.assert_allclose(weighted.bandwidths, without.bandwidths, rtol=1e-9)
    np.testing.assert_allclose(weighted.losses, without.losses, rtol=1e-9)


def test_equal_bandwidths_a_feature_are_one_bandwidth():
    X, y = random_data(n=30, d=3)
    options = {"n_splits": 30, "n_steps": 1, "random_state": 0}
    shared = masked_training([0.5, 2.0], X, y, **options)
    per_feature = masked_training(np.repeat([[0.5], [2.0]], 3, axis=1), X, y, **options)
    assert shared.bandwidths.shape == (2,)
    assert per_feature.bandwidths.shape == (2, 3)
    np.testing.assert_allclose(shared.losses, per_feature.losses, rtol=1e-12)


def test_bandwidth_of_a_feature_that_says_nothing_grows():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(200, 2))
    y = np.sin(4 * X[:, 0]) + 0.1 * rng.normal(size=200)
    found = masked_training([[0.5, 0.5]], X, y, hold_out=20, n_steps=100, random_state=0)
    assert found.bandwidths[0, 1] > 3 * found.bandwidths[0, 0]


def test_one_head_is_plain_unless_a_combination_is_given():
    X, y = random_data()
    assert masked_training(1.0, X, y, n_steps=10).combination.tolist() == [1.0]
    assert masked_training(1.0, X, y, n_steps=10, combination=[1.0]).combination.tolist() != [1.0]
    assert (masked_training([1.0, 2.0], X, y, n_steps=10).combination != 0.5).all()


def test_average_is_the_mean_of_the_last_iterates():
    X, y = random_data()
    options = {"n_splits": 1, "random_state": 0}
    lasts = [masked_training([1.0, 2.0], X, y, n_steps=n, average=0, **options) for n in range(6, 11)]
    averaged = masked_training([1.0, 2.0], X, y, n_steps=10, average=0.5, **options)
    log_bandwidths = np.mean([np.log(last.bandwidths) for last in lasts], axis=0)
    np.testing.assert_allclose(np.log(averaged.bandwidths), log_bandwidths, rtol=1e-12)
    np.testing.assert_allclose(
        averaged.combination, np.mean([x.combination for x in lasts], axis=0), rtol=1e-12
    )


def test_first_step_of_adam_goes_by_the_learning_rate():
    X, y = random_data()
    found = masked_training(1.0, X, y, n_steps=1, learning_rate=0.2, average=0, random_state=0)
    assert abs(np.log(found.bandwidths[0])) == pytest.approx(0.2, rel=1e-4)


def test_seed_decides_the_result_and_the_kernel_is_left_alone():
    X, y = random_data()
    kernel = Gaussian(1.0)
    a, b, c = (
        masked_training([0.5, 1.0], X, y, kernel=kernel, n_steps=20, random_state=s) for s in (0, 0, 1)
    )
    for first, again in zip(a, b, strict=True):
        np.testing.assert_array_equal(first, again)
    assert not np.array_equal(a.bandwidths, c.bandwidths)
    assert kernel.log_bandwidth.requires_grad
    assert kernel.log_bandwidth.grad is None
    assert kernel.log_bandwidth.dtype == torch.float32


def test_verbose_prints_the_mean_loss_ten_times(capsys):
    X, y = random_data()
    masked_training(1.0, X, y, n_steps=50, verbose=1)
    assert len(capsys.readouterr().out.splitlines()) == 10
    masked_training(1.0, X, y, n_steps=50)
    assert capsys.readouterr().out == ""


# Holding out many points fits the bandwidth of the fewer that are left, which is wider.
@pytest.mark.parametrize(
    ("hold_out", "low", "high"),
    [
        (1, 0.1, 0.22),
        (10, 0.1, 0.22),
        pytest.param(0.5, 0.14, 0.26, marks=pytest.mark.slow),
        pytest.param(0.8, 0.19, 0.31, marks=pytest.mark.slow),
    ],
)
def test_every_hold_out_of_the_paper_finds_a_sensible_bandwidth(hold_out, low, high):
    found = [
        masked_training(1.0, *paper_data(seed), hold_out=hold_out, random_state=seed).bandwidths[0]
        for seed in range(4)
    ]
    assert low < min(found)
    assert max(found) < high


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hold_out": 0}, "hold_out must be .*, got 0"),
        ({"hold_out": 20}, "hold_out must be .*, got 20"),
        ({"hold_out": -1}, "hold_out must be .*, got -1"),
        ({"hold_out": True}, "hold_out must be .*, got True"),
        ({"hold_out": 1.0}, "hold_out must be .*, got 1.0"),
        ({"hold_out": 0.0}, "hold_out must be .*, got 0.0"),
        ({"hold_out": 1.5}, "hold_out must be .*, got 1.5"),
        ({"hold_out": float("nan")}, "hold_out must be .*, got nan"),
        ({"hold_out": "loo"}, "hold_out must be .*, got 'loo'"),
        ({"n_steps": 0}, "n_steps must be .*, got 0"),
        ({"n_splits": 0}, "n_splits must be .*, got 0"),
        ({"n_splits": 1.5}, "n_splits must be .*, got 1.5"),
        ({"learning_rate": 0}, "learning_rate must be .*, got 0"),
        ({"learning_rate": -0.1}, "learning_rate must be .*, got -0.1"),
        ({"learning_rate": float("nan")}, "learning_rate must be .*, got nan"),
        ({"learning_rate": "fast"}, "learning_rate must be .*, got 'fast'"),
        ({"learning_rate": 1e300}, "learning_rate must be so small that bandwidths .*, got 1e\\+300"),
        ({"learning_rate": 1e300, "average": 0, "n_steps": 1}, "learning_rate must be so small that .*"),
        ({"average": 1.1}, "average must be .*, got 1.1"),
        ({"average": -0.1}, "average must be .*, got -0.1"),
        ({"bandwidth": 0.0}, "bandwidth must be positive and finite"),
        ({"bandwidth": [1.0, -1.0]}, "bandwidth must be positive and finite"),
        ({"bandwidth": float("nan")}, "bandwidth must be positive and finite"),
        ({"bandwidth": []}, "shape of bandwidth must be"),
        ({"bandwidth": [[1.0, 2.0, 3.0]]}, "shape of bandwidth must be"),
        ({"bandwidth": "wide"}, "bandwidth must be numbers, got 'wide'"),
        ({"combination": [1.0, 2.0]}, "combination must be 1 finite numbers, one per head, got"),
        ({"combination": [np.inf]}, "combination must be 1 finite numbers, one per head, got"),
        ({"sample_weight": [1.0]}, "shape of sample_weight must be"),
        ({"sample_weight": -np.ones(20)}, "sample_weight must be finite numbers of at least 0, got -1.0"),
        (
            {"sample_weight": np.eye(20)[0]},
            "X must have at least 2 points of positive weight, got n_samples = 1",
        ),
        ({"kernel": "gauss"}, "kernel must be one of"),
        ({"kernel": Gaussian(torch.ones(2))}, "without heads of its own, got Gaussian"),
    ],
)
def test_bad_input_is_named(options, message):
    X, y = random_data(n=20)
    with pytest.raises(InputError, match=message) as error:
        masked_training(**{"bandwidth": 1.0, "X": X, "y": y, **options})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_points_and_targets_must_be_finite(bad):
    X, y = random_data(n=20)
    with pytest.raises(ValueError, match="X contains"):
        masked_training(1.0, np.where(np.arange(20)[:, None] == 3, bad, X), y)
    with pytest.raises(ValueError, match="y contains"):
        masked_training(1.0, X, np.where(np.arange(20) == 3, bad, y))
    with pytest.raises(ValueError, match="inconsistent"):
        masked_training(1.0, X, y[:-1])

"""Kernel regression is attention: queries are queries, points keys, and targets values."""

import numpy as np
import pytest
import torch

from nadaraya import kernel_attention
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
from nadaraya.regression import NadarayaWatson

KERNELS = [
    Gaussian(1.3),
    GaussianWithoutHalf(0.8),
    Boxcar(2.0),
    Epanechnikov(2.0),
    ExponentialDecay(0.7),
    Matern(0.9, nu=1.5),
    Matern(1.1, nu=2.5),
    RationalQuadratic(1.0, 0.6),
    Tricube(2.5),
    2.0 * Gaussian(1.0),
    Gaussian(0.3) + 0.5 * ExponentialDecay(2.0),
    Periodic(1.0, 2.0) * Gaussian(1.5),
]


@pytest.mark.parametrize("d", [1, 2, 5])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_predictions_are_attention(kernel, d, targets):
    """Where every query has a point within the support: elsewhere attention gives 0."""
    random = np.random.default_rng(d)
    X, y = random.random((60, d)), random.normal(size=(60, targets))
    bandwidth = np.linspace(0.5, 0.9, d)
    new = X[:25] + 0.05 * random.normal(size=(25, d))
    model = NadarayaWatson(kernel, bandwidth).fit(X, y)
    query, key, value = (torch.tensor(array)[None, None] for array in (new / bandwidth, X / bandwidth, y))
    found = kernel_attention(query, key, value, content=model.kernel_)[0, 0].detach().numpy()
    np.testing.assert_allclose(model.predict(new), found, rtol=0, atol=1e-12)

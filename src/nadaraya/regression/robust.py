"""Weights that take outliers out of a fit, as LOESS has them."""

import numpy as np
from numpy.typing import NDArray

from nadaraya.regression.requests import Array
from nadaraya.regression.smoother import Smoother

_CUTOFF = 6.0  # median absolute residuals


def bisquare_weights(
    smoother: Smoother, targets: Array, precision: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Weights (1 − (e / 6s)²)² of residuals e, s their median size, and 0 beyond 6s (Cleveland 1979).

    Args:
        smoother: the fit.
        targets: (n, 1).
        precision: (n,) inverse variances of the targets up to a factor, positive; residuals are compared in
            units of their standard deviations.

    Returns:
        (n,), all 1 where more than half of the residuals are zero: nothing tells outliers then.
    """
    residuals = np.abs((targets - smoother.fit(None, targets.T).mean)[:, 0]) * np.sqrt(precision)
    scale = _CUTOFF * np.median(residuals)
    if not scale > 0:
        return np.ones(len(residuals))
    return np.maximum(1.0 - (residuals / scale) ** 2, 0.0) ** 2

"""The observations among rows of data: copies, as draws with replacement have them, are one."""

import numpy as np
from numpy.typing import NDArray

from nadaraya.regression.requests import Array

Observations = tuple[Array, Array, Array, NDArray[np.intp]]


def distinct_observations(X: Array, y: Array, weight: Array) -> Observations:
    """Rows that have weight, each once with the sum of its weights, in an order that is theirs alone.

    Only copies are taken together: where points repeat with other targets, as in designs with replications,
    every row is an observation and all stay.

    Args:
        X: (n, d) points.
        y: (n, p) targets.
        weight: (n,) weights ≥ 0.

    Returns:
        points, targets and weights of the m observations, and (n,) which of them each row is, −1 for none.
    """
    order = np.lexsort(np.concatenate([y.T[::-1], X.T[::-1]]))
    order = order[weight[order] > 0]
    points, targets, totals = X[order], y[order], weight[order]
    missing = np.isnan(points)
    same_point = ((points[1:] == points[:-1]) | (missing[1:] & missing[:-1])).all(axis=1)
    group = np.arange(len(order))
    if same_point.any() and (targets[1:] == targets[:-1]).all(axis=1)[same_point].all():
        first = np.append(True, ~same_point)
        group = np.cumsum(first) - 1
        points, targets, totals = (
            points[first],
            targets[first],
            np.add.reduceat(totals, np.flatnonzero(first)),
        )
    row_of = np.full(len(X), -1, np.intp)
    row_of[order] = group
    return points, targets, totals, row_of

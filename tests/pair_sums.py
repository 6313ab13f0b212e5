"""Requests for sums over pairs by a short name of what is summed, and their answers side by side."""

from typing import NamedTuple

import numpy as np

from nadaraya.regression.requests import (
    BandwidthGradients,
    LineGradients,
    Lines,
    Moments,
    PositionGradients,
    Request,
    Sums,
)
from nadaraya.regression.sums import compute

QUANTITIES = {
    "values": Sums,
    "bandwidth": BandwidthGradients,
    "position": PositionGradients,
    "moments": Moments,
    "lines": LineGradients,
}


class PairSums(NamedTuple):
    """Values (m, c), gradients or first moments (m, d, c), second moments (m, d, d), log_scale (m,)."""

    values: np.ndarray
    by_feature: np.ndarray
    second: np.ndarray
    log_scale: np.ndarray


def pair_sums(query, points, columns, kernel, bandwidth, *, what="values", lines=None, **options):
    """What `compute` answers; arrays that it does not have are empty."""
    lines = None if lines is None else Lines(*lines)
    request = Request(QUANTITIES[what], query, points, columns, kernel, bandwidth, lines=lines, **options)
    answer = compute(request)
    assert type(answer) is QUANTITIES[what]
    by_feature = answer.first if what == "moments" else getattr(answer, "gradients", np.zeros(0))
    return PairSums(answer.values, by_feature, getattr(answer, "second", np.zeros(0)), answer.log_scale)

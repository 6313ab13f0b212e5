"""Peaks of a curve over lags, ranked by prominence: one definition for histograms and for bank shapes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from nadaraya.errors import must_be


@dataclass(frozen=True)
class Peak:
    """One local maximum of a curve."""

    index: int  # from 0; the middle of a flat top
    height: float
    prominence: float  # height above the higher of the two valleys that separate it from higher ground
    width: float  # at half its prominence, in steps of the curve


def prominent_peaks(values: ArrayLike, k: int | None = None, minimum: float = 0.0) -> list[Peak]:
    """The k (None: all) most prominent local maxima of (L,) finite values; the ends of a curve are none.

    They are in descending prominence, at least `minimum`; equal ones in ascending index.
    """
    from scipy.signal import find_peaks  # here: importing it takes as long as the rest of this package

    curve = np.asarray(values, dtype=np.float64)
    if curve.ndim != 1 or not np.isfinite(curve).all():
        raise must_be("values", "a one-dimensional curve of finite numbers", values)
    if k is not None and k < 0:
        raise must_be("k", "a number of peaks, 0 or more", k)
    places, found = find_peaks(curve, prominence=minimum, width=0)
    order = np.lexsort((places, -found["prominences"]))[:k]
    return [
        Peak(
            int(places[at]),
            float(curve[places[at]]),
            float(found["prominences"][at]),
            float(found["widths"][at]),
        )
        for at in order
    ]

"""Peaks of a curve over lags, ranked by prominence: one definition for histograms and for bank shapes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from nadaraya.errors import must_be


@dataclass(frozen=True)
class Peak:
    """One local maximum of a curve.

    Args:
        index: position in the curve (0-based); the middle of a flat top.
        height: the curve's value there, in its own units.
        prominence: height above the higher of the two valleys that separate it from higher ground.
    """

    index: int
    height: float
    prominence: float


def prominent_peaks(values: ArrayLike, k: int | None = None, minimum: float = 0.0) -> list[Peak]:
    """The k most prominent local maxima, most prominent first; the ends of a curve are none.

    Args:
        values: (L,) finite numbers, any units.
        k: how many to return; None (default) for all.
        minimum: smallest prominence to keep, in the units of the values (default 0).

    Returns:
        Peaks in descending prominence; equal prominences in ascending index.

    Raises:
        InputError: values are not a finite one-dimensional curve, or k is negative.

    >>> prominent_peaks([0, 3, 1, 2, 0], k=1)
    [Peak(index=1, height=3.0, prominence=3.0)]
    """
    from scipy.signal import find_peaks  # here: importing it takes as long as the rest of this package

    curve = np.asarray(values, dtype=np.float64)
    if curve.ndim != 1 or not np.isfinite(curve).all():
        raise must_be("values", "a one-dimensional curve of finite numbers", values)
    if k is not None and k < 0:
        raise must_be("k", "a number of peaks, 0 or more", k)
    places, found = find_peaks(curve, prominence=minimum)
    order = np.lexsort((places, -found["prominences"]))[:k]
    return [Peak(int(places[at]), float(curve[places[at]]), float(found["prominences"][at])) for at in order]

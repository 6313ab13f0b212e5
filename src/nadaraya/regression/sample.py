"""Weighted points, ready for sums: what the estimators keep of their data between `fit` and `predict`."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from nadaraya.regression.categories import Category, codes_of, missing_numbers, numbers_of
from nadaraya.regression.requests import Array
from nadaraya.regression.rules import standard_deviations


@dataclass(frozen=True)
class Sample:
    """Points and weights, centred so that coordinates are no larger than they need be.

    Attributes:
        x: (n, d) points less their mean, float32 or float64.
        centre: (d,) that mean, float64.
        counts: (n,) sample weights, in number of observations, float64.
        weight: (n,) the same divided by the largest.
        spread: (d,) weighted standard deviations of the features, 1 for those that do not vary.
        device: where PyTorch computes; None for the fastest way on the CPU.
        report: takes lines of progress; None if nobody listens.
        categories: the K features beside these d, which are then numbers alone.
        codes: (n, K) their levels.
    """

    x: Array
    centre: NDArray[np.float64]
    counts: NDArray[np.float64]
    weight: NDArray[np.float64]
    spread: NDArray[np.float64]
    device: torch.device | None
    report: Callable[[str], None] | None
    categories: tuple[Category, ...]
    codes: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        X: Array,
        counts: NDArray[np.float64],
        device: torch.device | None = None,
        report: Callable[[str], None] | None = None,
        categories: tuple[Category, ...] = (),
    ) -> "Sample":
        """Centres points (n, d), of which some columns may be categories, and scales their weights (n,)."""
        codes, (X, missing) = codes_of(categories, X), numbers_of(categories, X)
        if missing.any():  # by the mean of the others, which is in the middle and adds nothing to the spread
            X = np.where(missing, X.sum(axis=0) / np.maximum((~missing).sum(axis=0), 1), X)
        centre = X.mean(axis=0, dtype=np.float64)
        x = _less(X, centre)
        deviations = standard_deviations(x, counts)
        spread = np.where(deviations > 0, deviations, 1.0)
        weight = counts / counts.max()
        return cls(x, centre, counts, weight, spread, device, report, categories, codes)

    @property
    def missing(self) -> NDArray[np.bool_]:
        """(n, d) which numbers are missing."""
        return missing_numbers(self.categories, self.codes, self.x.shape[1])

    def weighted(self, counts: NDArray[np.float64]) -> "Sample":
        """The same points with other weights (n,)."""
        return replace(self, counts=counts, weight=counts / counts.max())

    def centred(self, X: Array) -> Array:
        """Points as the user gave them, in the sample's type and less its centre, (m, d); 0 where missing."""
        X, missing = numbers_of(self.categories, X)
        if missing.any():
            X = np.where(missing, self.centre, X)
        return _less(X.astype(self.x.dtype, copy=False), self.centre)


def _less(X: Array, centre: Array) -> Array:
    # In float64, where the difference of float32 numbers is exact, and back.
    difference: Array = (X.astype(np.float64) - centre).astype(X.dtype)
    return np.ascontiguousarray(difference)

"""Weighted points, ready for sums: what the estimators keep of their data between `fit` and `predict`."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from nadaraya.regression.categories import Category, numeric_columns
from nadaraya.regression.requests import Array
from nadaraya.regression.rules import standard_deviations


@dataclass(frozen=True)
class Sample:
    """Points and weights, centred so that coordinates are no larger than they need be.

    Attributes:
        x: (n, d) points less their mean, float32 or float64; in the columns of categories their codes, and
            NaN for numbers that are missing.
        centre: (d,) that mean, float64; 0 for categories.
        counts: (n,) sample weights, in number of observations, float64.
        weight: (n,) the same divided by the largest.
        spread: (f,) weighted standard deviations of the features that are numbers, 1 for those that do not
            vary.
        device: where PyTorch computes; None for the fastest way on the CPU.
        report: takes lines of progress; None if nobody listens.
        categories: among the features, and numbers that may be missing.
    """

    x: Array
    centre: NDArray[np.float64]
    counts: NDArray[np.float64]
    weight: NDArray[np.float64]
    spread: NDArray[np.float64]
    device: torch.device | None
    report: Callable[[str], None] | None
    categories: tuple[Category, ...] = ()

    @classmethod
    def of(
        cls,
        X: Array,
        counts: NDArray[np.float64],
        device: torch.device | None = None,
        report: Callable[[str], None] | None = None,
        categories: tuple[Category, ...] = (),
    ) -> "Sample":
        """Centres points (n, d) and scales their weights (n,)."""
        numeric = numeric_columns(categories, X.shape[1])
        centre = np.zeros(X.shape[1])
        known = ~np.isnan(X[:, numeric])
        total = np.sum(X[:, numeric], axis=0, dtype=np.float64, where=known)
        centre[numeric] = total / np.maximum(known.sum(axis=0), 1)
        x = _less(X, centre)
        deviations = standard_deviations(x[:, numeric], counts)
        spread = np.where(deviations > 0, deviations, 1.0)
        return cls(x, centre, counts, counts / counts.max(), spread, device, report, categories)

    @property
    def numeric(self) -> NDArray[np.intp]:
        """(f,) the columns of numbers."""
        return numeric_columns(self.categories, self.x.shape[1])

    def weighted(self, counts: NDArray[np.float64]) -> "Sample":
        """The same points with other weights (n,)."""
        return replace(self, counts=counts, weight=counts / counts.max())

    def centred(self, X: Array) -> Array:
        """Points (m, d) as the user gave them, in the sample's type and less its centre."""
        return _less(X.astype(self.x.dtype, copy=False), self.centre)


def _less(X: Array, centre: Array) -> Array:
    # In float64, where the difference of float32 numbers is exact, and back.
    difference: Array = (X.astype(np.float64) - centre).astype(X.dtype)
    return np.ascontiguousarray(difference)

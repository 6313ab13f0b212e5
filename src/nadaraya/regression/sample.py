"""Weighted points, ready for sums: what the estimators keep of their data between `fit` and `predict`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

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
        x: (n, d) points less their mean, divided by their unit, float32 or float64.
        centre: (d,) that mean, divided by the unit, float64.
        unit: (d,) powers of two by feature, so that no square over- or underflows and a change of unit by
            such a power changes no digit; the spread and all bandwidths of a smoother are in these units.
        counts: (n,) sample weights, in number of observations, float64.
        spread: (d,) weighted standard deviations of the features, 1 for those that do not vary.
        device: where PyTorch computes; None for the fastest way on the CPU.
        report: takes lines of progress; None if nobody listens.
        categories: the K features beside these d, which are then numbers alone.
        codes: (n, K) their levels.
    """

    x: Array
    centre: NDArray[np.float64]
    unit: NDArray[np.float64]
    counts: Array
    spread: NDArray[np.float64]
    device: torch.device | None
    report: Callable[[str], None] | None
    categories: tuple[Category, ...]
    codes: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        X: Array,
        counts: Array,
        device: torch.device | None = None,
        report: Callable[[str], None] | None = None,
        categories: tuple[Category, ...] = (),
    ) -> "Sample":
        """Centres points (n, d), of which some columns may be categories, and scales their weights (n,)."""
        codes, (X, missing) = codes_of(categories, X), numbers_of(categories, X)
        if missing.any():  # by a number in the middle of the others
            present = np.maximum((~missing).sum(axis=0), 1)
            X = np.where(missing, (X / present).sum(axis=0), X).astype(X.dtype)
        unit = power_of_two(X)
        scaled = _divided(X, unit)
        centre = scaled.mean(axis=0, dtype=np.float64)
        x = _less(scaled, centre)
        deviations = standard_deviations(x, counts)
        spread = np.where(deviations > 0, deviations, 1.0)
        return cls(x, centre, unit, counts, spread, device, report, categories, codes)

    @property
    def missing(self) -> NDArray[np.bool_]:
        """(n, d) which numbers are missing."""
        return missing_numbers(self.categories, self.codes, self.x.shape[1])

    @cached_property
    def weight(self) -> Array:
        """(n,) the counts divided by the largest."""
        return self.counts / self.counts.max()

    def centred(self, X: Array) -> Array:
        """Points (m, d) as the user gave them, in the sample's type and unit and less its centre.

        Those beyond all reason come nearer, so that their squares do not overflow. Numbers that are missing
        are 0; categories are left out.
        """
        X, missing = numbers_of(self.categories, X)
        farthest = 2.0**24 if self.x.dtype == np.float32 else 2.0**400
        extent = np.maximum(np.abs(self.x).max(axis=0), self.spread) * farthest
        scaled = _divided(X.astype(self.x.dtype, copy=False), self.unit)
        near = np.clip(_less(scaled, self.centre), -extent, extent)
        return np.where(missing, 0.0, near).astype(self.x.dtype, copy=False)

    def in_units(self, bandwidth: Array) -> NDArray[np.float64]:
        """Bandwidths (d,) in units of the features as positive ones in the sample's; scales as they are."""
        d = len(self.unit)
        with np.errstate(over="ignore", under="ignore"):
            return np.append(np.clip(bandwidth[:d] / self.unit, 1e-300, 1e300), bandwidth[d:])


def power_of_two(values: Array) -> NDArray[np.float64]:
    """(k,) for each column of values (n, k) the power of two just above the largest, or a normal number."""
    exponent = np.frexp(np.abs(values).max(axis=0, initial=0.0))[1]
    return np.ldexp(1.0, np.clip(exponent, -1022, 1023))


def _divided(X: Array, unit: NDArray[np.float64]) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return np.nan_to_num(X / unit).astype(X.dtype)


def _less(X: Array, centre: Array) -> Array:
    # In float64, where the difference of float32 numbers is exact, and back.
    return np.ascontiguousarray((X.astype(np.float64) - centre).astype(X.dtype))

"""Weighted points, ready for sums: what the estimators keep of their data between `fit` and `predict`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from nadaraya.regression.categories import Category, codes_of, missing_numbers, numbers_of
from nadaraya.regression.requests import Array
from nadaraya.regression.rules import standard_deviations

Observations = tuple[Array, Array, Array, NDArray[np.intp]]


def distinct_observations(X: Array, y: Array, weight: Array) -> Observations:
    """Rows that have weight, each once with the sum of its weights, in an order that is theirs alone.

    Only copies are taken together: where a point repeats with other targets, as in designs with replications,
    each of its rows is an observation. Also (n,) which observation each row is, −1 for none.
    """
    order = np.lexsort(np.concatenate([y.T[::-1], X.T[::-1]]))
    order = order[weight[order] > 0]
    points, targets, totals = X[order], y[order], weight[order]
    missing = np.isnan(points)
    same_point = ((points[1:] == points[:-1]) | (missing[1:] & missing[:-1])).all(axis=1)
    replicated = np.append(False, same_point & (targets[1:] != targets[:-1]).any(axis=1))
    first = np.append(True, ~same_point)[: len(order)]
    first |= np.logical_or.reduceat(replicated, np.flatnonzero(first))[np.cumsum(first) - 1]
    row_of = np.full(len(X), -1, np.intp)
    row_of[order] = np.cumsum(first) - 1
    return points[first], targets[first], np.add.reduceat(totals, np.flatnonzero(first)), row_of


@dataclass(frozen=True)
class Sample:
    """Points and weights, centred so that coordinates are no larger than they need be."""

    x: Array  # (n, d) points less their mean, divided by their unit, float32 or float64
    centre: NDArray[np.float64]  # (d,) that mean, divided by the unit, float64
    # (d,) powers of two by feature, so that no square over- or underflows and a change of unit by such a
    # power changes no digit; the spread and all bandwidths of a smoother are in these units
    unit: NDArray[np.float64]
    counts: Array  # (n,) sample weights, in number of observations, float64
    # (d,) weighted standard deviations of the features, 1 for those that do not vary
    spread: NDArray[np.float64]
    device: torch.device | None  # where PyTorch computes; None for the fastest way on the CPU
    report: Callable[[str], None] | None  # takes lines of progress; None if nobody listens
    categories: tuple[Category, ...]  # the K features beside these d, which are then numbers alone
    codes: NDArray[np.int64]  # (n, K) their levels

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
        centre = np.median(scaled.astype(np.float64), axis=0)
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
        """Points (m, d) as users gave them, in the sample's type, unit and centre; 0 for missing numbers.

        Those beyond all reason come nearer, so that their eighth powers do not overflow.
        """
        X, missing = numbers_of(self.categories, X)
        farthest = 2.0**14 if self.x.dtype == np.float32 else 2.0**120
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


class NeighbourScale:
    """λ(x): the distance to the k-th nearest neighbour, over that distance's geometric mean at the points.

    Features are divided by their standard deviations; points of weight 0 are no neighbours. No distance is
    less than the smallest positive one that any point has to its k-th neighbour. While a bandwidth is chosen
    no point is its own neighbour; a later query that coincides with a point has it as the nearest.
    """

    def __init__(self, sample: Sample, k: int) -> None:
        counted = sample.weight > 0
        self.sample, self.k = sample, k
        deviations = standard_deviations(sample.x, sample.weight)
        self._per_unit = np.divide(1.0, deviations, out=np.zeros_like(deviations), where=deviations > 0)
        self._search = NearestNeighbors().fit(sample.x[counted] * self._per_unit)
        distances = np.empty(len(sample.x))
        # Without queries kneighbors leaves each point itself out; those of weight 0 are not among the others.
        distances[counted] = self._search.kneighbors(n_neighbors=self.k)[0][:, -1]
        distances[~counted] = self._reach(sample.x[~counted])
        positive = distances[counted & (distances > 0)]
        self._least = float(positive.min()) if len(positive) else 1.0
        self._mean = float(np.exp(np.log(np.maximum(distances[counted], self._least)).mean()))
        self.of_points = self._relative(distances)

    def at(self, centred: Array) -> NDArray[np.float64]:
        """λ of queries (m, d), which are centred as the sample is: (m,)."""
        return self._relative(self._reach(centred))

    def _reach(self, centred: Array) -> NDArray[np.float64]:
        if len(centred) == 0:
            return np.zeros(0)
        found: NDArray[np.float64] = self._search.kneighbors(centred * self._per_unit, n_neighbors=self.k)[0]
        return found[:, -1]

    def _relative(self, distances: Array) -> NDArray[np.float64]:
        return np.maximum(distances, self._least).astype(np.float64) / self._mean

"""Bandwidths that follow the density of the points: by the distance to the k-th nearest neighbour."""

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from nadaraya.regression.requests import Array
from nadaraya.regression.rules import standard_deviations
from nadaraya.regression.sample import Sample


class NeighbourScale:
    """λ(x): the distance to the k-th nearest neighbour, over that distance's geometric mean at the points.

    Features are divided by their standard deviations; points of weight 0 are no neighbours. No distance is
    less than the smallest positive one that any point has to its k-th neighbour. While a bandwidth is chosen
    no point is its own neighbour; a later query that coincides with a point has it as the nearest.

    Args:
        sample: the points.
        k: which neighbour, from 1 to the number of points less one.
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
        distances: NDArray[np.float64]
        distances, _ = self._search.kneighbors(centred * self._per_unit, n_neighbors=self.k)
        return distances[:, -1]

    def _relative(self, distances: Array) -> NDArray[np.float64]:
        return np.maximum(distances, self._least).astype(np.float64) / self._mean

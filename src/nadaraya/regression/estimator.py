"""What the estimators share: their commonest parameters, checked, and the smoother they keep."""

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from nadaraya.kernels import Kernel
from nadaraya.regression.bandwidth import Selected, first_bandwidth
from nadaraya.regression.checks import fixed_kernel, torch_device, weights_of, whole_number
from nadaraya.regression.requests import Array
from nadaraya.regression.sample import Sample
from nadaraya.regression.selection import Search
from nadaraya.regression.smoother import Smoother
from nadaraya.regression.summary import Summary, summary_of


class SmoothingEstimator(BaseEstimator):
    """An estimator that keeps its points; subclasses explain the parameters."""

    def __init__(
        self,
        kernel: str | Kernel = "gaussian",
        bandwidth: float | ArrayLike | str = "scott",
        *,
        n_starts: int = 3,
        device: str | torch.device | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.kernel = kernel
        self.bandwidth = bandwidth
        self.n_starts = n_starts
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _first_smoother(
        self, points: Array, sample_weight: ArrayLike | None, criteria: tuple[str, ...]
    ) -> Smoother:
        """The points with the bandwidths that are given or from where the search for them starts."""
        weight = weights_of(sample_weight, len(points))
        report = self._report if self.verbose else None
        sample = Sample.of(points, weight, torch_device(self.device), report)
        kernel = fixed_kernel(self.kernel)
        return Smoother(sample, kernel, first_bandwidth(self.bandwidth, sample, kernel, criteria))

    def _search(self) -> Search:
        n_starts = whole_number("n_starts", self.n_starts)
        return Search(n_starts, check_random_state(self.random_state), self._report if self.verbose else None)

    def _keep(self, points: Array, weight: NDArray[np.float64], selected: Selected) -> None:
        """Sets the fitted attributes that all have."""
        self._smoother, self.selection_ = selected
        self.bandwidth_, self.kernel_ = self._smoother.bandwidth, self._smoother.kernel
        self.X_, self.sample_weight_ = points, weight

    def summary(self) -> Summary:
        """The fitted model as a small table: points, kernel, bandwidths and what chose them.

        Returns:
            Text with `print`, a table in a notebook, numbers as attributes.

        See Also:
            NadarayaWatson.summary: adds how well a regression fits.

        >>> from nadaraya.regression import NadarayaWatsonDensity
        >>> NadarayaWatsonDensity(bandwidth=1.0).fit([[0.0], [1.0]]).summary().bandwidths
        {'x0': 1.0}
        """
        check_is_fitted(self)
        return summary_of(type(self).__name__, self)

    def _validated(self, X: ArrayLike) -> Array:
        """Queries (m, d) in the type of the points."""
        check_is_fitted(self)
        validated: Array = validate_data(self, X, reset=False, dtype=self.X_.dtype, order="C")
        return validated

    def _report(self, line: str) -> None:
        print(f"[{type(self).__name__}] {line}", flush=True)


def validated_points(estimator: BaseEstimator, X: ArrayLike, y: Any = "no_validation", **options: Any) -> Any:
    """scikit-learn's checks of the arguments of `fit`: a copy of X, float32 or float64, and y."""
    return validate_data(estimator, X, y, dtype=(np.float64, np.float32), order="C", copy=True, **options)

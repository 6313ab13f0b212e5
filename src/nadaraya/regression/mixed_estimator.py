"""What estimators share whose features may be categories, or numbers that are missing."""

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted, validate_data

from nadaraya.kernels import Kernel
from nadaraya.regression.bandwidth import Selected
from nadaraya.regression.categories import Category
from nadaraya.regression.coding import Coding, is_frame
from nadaraya.regression.estimator import SmoothingEstimator, validated_points
from nadaraya.regression.mixed_bandwidth import for_users
from nadaraya.regression.requests import Array
from nadaraya.regression.sample import Sample


class MixedEstimator(SmoothingEstimator):
    """Has the parameters categorical, ordered, category_kernel and missing, which subclasses explain."""

    def __init__(
        self,
        kernel: str | Kernel = "gaussian",
        bandwidth: float | ArrayLike | str = "scott",
        *,
        categorical: str | ArrayLike | None = "from_dtype",
        ordered: ArrayLike | None = None,
        category_kernel: str = "li-racine",
        missing: str = "raise",
        n_starts: int = 7,
        device: str | torch.device | None = None,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            kernel, bandwidth, n_starts=n_starts, device=device, random_state=random_state, verbose=verbose
        )
        self.categorical = categorical
        self.ordered = ordered
        self.category_kernel = category_kernel
        self.missing = missing

    def _validated_points(self, X: ArrayLike, y: Any, **options: Any) -> Any:
        """`validated_points` of the table with codes in the place of levels."""
        self._coding = coding = Coding.of(
            X, self.categorical, self.ordered, self.missing, self.category_kernel
        )
        if coding is not None:
            X, options["ensure_all_finite"] = coding.code(X), coding.finite
        self.levels_ = {} if coding is None else coding.by_name()
        return validated_points(self, X, y, **options)

    def _sample(self, points: Array, counts: Array, categories: tuple[Category, ...] = ()) -> Sample:
        if self._coding is not None:
            categories = self._coding.categories(points)
        return super()._sample(points, counts, categories)

    def _keep(self, points: Array, weight: NDArray[np.float64], selected: Selected) -> None:
        super()._keep(points, weight, selected)
        sample, varies = self._smoother.sample, np.isfinite(self._smoother.bandwidth)

        def shown(of_varying: Array) -> Array:
            entries = np.full(len(varies), np.inf)
            entries[varies] = of_varying
            return for_users(entries, sample)

        self.bandwidth_, self.missing_bandwidth_ = np.split(
            for_users(self.bandwidth_, sample), [points.shape[1]]
        )
        if sample.categories and self.selection_ is not None:
            self.selection_ = self.selection_._changed(shown)

    def _validated(self, X: ArrayLike, finite: bool | str = True) -> Array:
        check_is_fitted(self)
        if self._coding is not None:
            if is_frame(X):  # names first: codes go by columns
                validate_data(self, X, reset=False, skip_check_array=True)
            X, finite = self._coding.code(X), self._coding.finite
        return super()._validated(X, finite)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "category"
        tags.input_tags.categorical = True
        return tags

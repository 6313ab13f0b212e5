"""What estimators share whose features may be categories, or numbers that are missing."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted, validate_data

from nadaraya.regression.bandwidth import Selected
from nadaraya.regression.categories import Category
from nadaraya.regression.coding import Coding, is_frame
from nadaraya.regression.estimator import SmoothingEstimator, validated_points
from nadaraya.regression.mixed_bandwidth import for_users, selection_for_users
from nadaraya.regression.requests import Array
from nadaraya.regression.sample import Sample


class MixedEstimator(SmoothingEstimator):
    """Has the parameters categorical, ordered, category_kernel and missing, which subclasses explain."""

    categorical: Any
    ordered: Any
    category_kernel: str
    missing: str

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
        d = points.shape[1]
        both = for_users(self.bandwidth_, sample)
        self.bandwidth_, self.missing_bandwidth_ = both[:d], both[d:]
        if sample.categories and self.selection_ is not None:
            self.selection_ = selection_for_users(self.selection_, varies, sample)

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

"""What estimators share: their commonest parameters, checked, and the smoother they keep; categories."""

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from nadaraya.errors import InputError, must_be
from nadaraya.kernels import Kernel
from nadaraya.regression.bandwidth import Selected, first_bandwidth
from nadaraya.regression.categories import Category
from nadaraya.regression.checks import (
    fixed_kernel,
    generator_of,
    refuse_other_than_numbers,
    torch_device,
    verbosity,
    weights_of,
    whole_number,
)
from nadaraya.regression.coding import Coding, is_frame
from nadaraya.regression.mixed_bandwidth import for_users
from nadaraya.regression.repeats import Observations, distinct_observations
from nadaraya.regression.requests import Array
from nadaraya.regression.rules import RULES
from nadaraya.regression.sample import Sample
from nadaraya.regression.selection import Search
from nadaraya.regression.smoother import Smoother
from nadaraya.regression.state import PlainState
from nadaraya.regression.summary import Summary, summary_of


class SmoothingEstimator(PlainState):
    """An estimator that keeps its points; subclasses explain the parameters."""

    _criteria: tuple[str, ...] = ("loo",)  # names of bandwidths beside the rules of thumb

    def __init__(
        self,
        kernel: str | Kernel = "gaussian",
        bandwidth: float | ArrayLike | str = "scott",
        *,
        n_starts: int = 7,
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

    def fit(self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Keeps the observations and chooses the bandwidth.

        A row with weight is an observation. Rows that repeat another, point and target, are one, with the sum
        of their weights: leave-one-out leaves it out whole, and a row that is there twice is a row of weight
        2. Only where points repeat with other targets too, as in designs with replications, every row is an
        observation (but densities have no replications).

        Args:
            X: (n, d) points, float32 or float64 (other numbers are converted to float64).
            y: (n,) targets, or classes; (n, p) for `NadarayaWatson`; densities without features ignore it.
            sample_weight: (n,) weights ≥ 0: for `NadarayaWatson` precisions, the inverse variances of the
                targets up to a factor; for others numbers of observations. Default 1 each.

        Returns:
            The estimator.

        Raises:
            InputError: a parameter or sample_weight is out of its range or has a shape that does not fit, or
                the data do not have what the estimator needs, as a density features that vary.
            ValueError: X or y is no finite numerical array, or their lengths differ (scikit-learn's checks).

        See Also:
            NadarayaWatson.summary: what was fitted.

        >>> from nadaraya.regression import NadarayaWatson
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 4.0, 3.0]
        >>> NadarayaWatson(bandwidth="silverman").fit(X, y).bandwidth_.round(3).tolist()
        [0.897]
        """
        points, targets = self._data(X, y)
        search, weight = self._search(), weights_of(sample_weight, len(points))
        rows, values, counts, self._row_of = self._observations(points, targets, weight)
        self._keep(points, weight, self._selected(rows, values, counts, search))
        return self

    def _data(self, X: ArrayLike, y: Any) -> tuple[Array, Array]:
        """Points (n, d) and targets as numbers (n, p), validated."""
        raise NotImplementedError

    def _observations(self, points: Array, targets: Array, weight: Array) -> Observations:
        return distinct_observations(points, targets, weight)

    def _selected(self, points: Array, targets: Array, counts: Array, search: Search) -> Selected:
        """The smoother of these observations with its bandwidths, and how they were found."""
        raise NotImplementedError

    def _first_smoother(self, points: Array, counts: Array) -> Smoother:
        """The points with the bandwidths that are given or from where the search for them starts."""
        kernel, sample = fixed_kernel(self.kernel), self._sample(points, counts)
        first = first_bandwidth(self.bandwidth, sample, kernel, self._criteria)
        return Smoother(sample, kernel, first if isinstance(self.bandwidth, str) else sample.in_units(first))

    def _sample(self, points: Array, counts: Array, categories: tuple[Category, ...] = ()) -> Sample:
        report = self._report if self.verbose else None
        return Sample.of(points, counts, torch_device(self.device), report, categories)

    def _selects_by(self, name: str) -> bool:
        return isinstance(self.bandwidth, str) and self.bandwidth == name

    def _search(self) -> Search:
        n_starts = whole_number("n_starts", self.n_starts)
        verbosity(self.verbose)
        # Without a seed too, equal data get equal bandwidths.
        generator = generator_of(0 if self.random_state is None else self.random_state)
        return Search(n_starts, generator, self._report if self.verbose else None)

    def _keep(self, points: Array, weight: NDArray[np.float64], selected: Selected) -> None:
        """Sets the fitted attributes that all have."""
        self._smoother, self.selection_ = selected
        self.kernel_ = self._smoother.kernel
        sample, varies = self._smoother.sample, np.isfinite(self._smoother.bandwidth)
        unit = np.append(sample.unit, np.ones(len(sample.categories)))
        selects = isinstance(self.bandwidth, str) and self.bandwidth not in RULES
        with np.errstate(over="ignore", under="ignore"):
            natural = np.minimum(self._smoother.bandwidth * unit, np.finfo(np.float64).max)
            self.bandwidth_ = np.where(varies, natural, np.inf)
            if self.selection_ is not None and selects:
                # Parameters of the kernel may follow.
                self.selection_ = self.selection_._changed(
                    lambda numbers: numbers * np.append(unit[varies], np.ones(len(numbers) - varies.sum()))
                )
        self.X_, self.sample_weight_ = points, weight

    def summary(self) -> Summary:
        """The fitted model as a small table: points, kernel, bandwidths and what chose them.

        For `NadarayaWatson` also degrees of freedom, residual spread and R², computed once, in three passes
        over the pairs.

        Returns:
            Text with `print`, a table in a notebook, numbers as attributes.

        See Also:
            GoodnessOfFit: the equations.

        >>> from nadaraya.regression import NadarayaWatson
        >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 4.0, 3.0]
        >>> print(NadarayaWatson(bandwidth=1.0).fit(X, y).summary())
        NadarayaWatson, local constant
        observations                             4
        features                                 1
        kernel                                   gaussian
        bandwidths chosen by                     the user
        effective degrees of freedom, tr L       1.993
        ...
        """
        check_is_fitted(self)
        return self._summarised()

    def _summarised(self) -> Summary:
        return summary_of(type(self).__name__, self)

    def _validated(self, X: ArrayLike, finite: bool | str = True) -> Array:
        """Queries (m, d) in the type of the points."""
        check_is_fitted(self)
        options = {"reset": False, "dtype": self.X_.dtype, "order": "C", "ensure_all_finite": finite}
        return checked(self, X, **options)

    def _report(self, line: str) -> None:
        print(f"[{type(self).__name__}] {line}", flush=True)


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


def validated_points(estimator: BaseEstimator, X: ArrayLike, y: Any = "no_validation", **options: Any) -> Any:
    """`checked` arguments of `fit`: a copy of X, float32 or float64, and y."""
    return checked(estimator, X, y, dtype=(np.float64, np.float32), order="C", copy=True, **options)


def checked(estimator: BaseEstimator, X: ArrayLike, y: Any = "no_validation", **options: Any) -> Any:
    """scikit-learn's checks of data.

    Raises:
        InputError: X or y holds what scikit-learn would take for numbers: masked values, texts or dates.
    """
    refuse_other_than_numbers("X", X)
    if options.get("y_numeric"):
        refuse_other_than_numbers("y", y)
    elif np.ma.is_masked(y):
        raise must_be("y", "without masked values", y)
    try:
        with np.errstate(all="ignore"):  # whether a sum is finite tells scikit-learn whether all numbers are
            return validate_data(estimator, X, y, **options)
    except ValueError as error:
        if hasattr(estimator, "missing") and str(error).startswith("Input X contains NaN"):
            raise InputError("Input X contains NaN: missing='category' takes missing values") from error
        raise

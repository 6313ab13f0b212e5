"""Base of the estimators: common parameters, checked, and the smoother they keep; categories."""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from nadaraya.errors import InputError, must_be
from nadaraya.kernels import Kernel
from nadaraya.regression.bandwidth import Selected, first_bandwidth, for_users
from nadaraya.regression.categories import Coding, is_frame
from nadaraya.regression.checks import (
    fixed_kernel,
    generator_of,
    refuse_other_than_numbers,
    torch_device,
    verbosity,
    weights_of,
    whole_number,
)
from nadaraya.regression.requests import Array
from nadaraya.regression.rules import RULES
from nadaraya.regression.sample import Observations, Sample, distinct_observations
from nadaraya.regression.selection import Search
from nadaraya.regression.smoother import Smoother
from nadaraya.regression.state import PlainState
from nadaraya.regression.summary import Summary, summary_of


@dataclass(kw_only=True, eq=False, repr=False)
class _Searching(PlainState):
    n_starts: int = 7
    device: str | torch.device | None = None
    random_state: int | np.random.RandomState | None = None
    verbose: int = 0


class SmoothingEstimator(_Searching):
    """An estimator that keeps its points; subclasses are dataclasses of its parameters."""

    kernel: str | Kernel
    bandwidth: float | ArrayLike | str

    _criteria: ClassVar[tuple[str, ...]] = ("loo",)  # names of bandwidths beside the rules of thumb
    _several_targets: ClassVar[bool] = False  # whether y may be (n, p)
    _coding: Coding | None = None  # of a table with categories or missing values

    def fit(self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Keeps the observations and chooses the bandwidth.

        A row with weight is an observation. Rows that repeat another, point and target, are one, with the sum
        of their weights: leave-one-out leaves it out whole, and a row that is there twice is a row of weight
        2. Only where a point repeats with other targets too, as in designs with replications, each of its
        rows is an observation (but densities have no replications).

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
        points, targets = self._validated_points(X, y, y_numeric=True, multi_output=self._several_targets)
        self.y_ = np.array(targets, np.float64)
        return points, self.y_.reshape(len(self.y_), -1)

    def _validated_points(self, X: ArrayLike, y: Any = "no_validation", **options: Any) -> Any:
        """`checked` arguments of `fit`: a copy of X, float32 or float64, and y."""
        return checked(self, X, y, dtype=(np.float64, np.float32), order="C", copy=True, **options)

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

    def _sample(self, points: Array, counts: Array) -> Sample:
        report = self._report if self.verbose else None
        categories = () if self._coding is None else self._coding.categories(points)
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
        """Sets the fitted attributes that all have, in the users' units."""
        self._smoother, selection = selected
        self.kernel_ = self._smoother.kernel
        sample, varies = self._smoother.sample, np.isfinite(self._smoother.bandwidth)
        unit, count = np.append(sample.unit, np.ones(len(sample.categories))), varies.sum()

        def natural(of_varying: Array) -> Array:
            entries = np.full(len(varies), np.inf)
            with np.errstate(over="ignore", under="ignore"):
                entries[varies] = np.minimum(of_varying * unit[varies], np.finfo(np.float64).max)
            return for_users(entries, sample)

        def shown(numbers: Array) -> Array:  # parameters of the kernel may follow
            bandwidths = natural(numbers[:count])
            return np.append(bandwidths if sample.categories else bandwidths[varies], numbers[count:])

        self.bandwidth_ = natural(self._smoother.bandwidth[varies])
        selects = isinstance(self.bandwidth, str) and self.bandwidth not in RULES
        self.selection_ = selection._changed(shown) if selection is not None and selects else selection
        self.X_, self.sample_weight_ = points, weight

    def summary(self) -> Summary:
        """The fitted model as a small table: points, kernel, bandwidths and what chose them.

        For `NadarayaWatson` also degrees of freedom, residual spread and R², computed once, in three passes
        over the pairs.

        Returns:
            Text with `print`, a table in a notebook, numbers as attributes.

        See Also:
            nadaraya.regression.summary.GoodnessOfFit: the equations.

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

    def _validated(self, X: ArrayLike) -> Array:
        """Queries (m, d) in the type of the points."""
        check_is_fitted(self)
        finite: bool | str = True
        if self._coding is not None:
            if is_frame(X):  # names first: codes go by columns
                validate_data(self, X, reset=False, skip_check_array=True)
            X, finite = self._coding.code(X), self._coding.finite
        return checked(self, X, reset=False, dtype=self.X_.dtype, order="C", ensure_all_finite=finite)

    def _report(self, line: str) -> None:
        print(f"[{type(self).__name__}] {line}", flush=True)


@dataclass(kw_only=True, eq=False, repr=False)
class MixedEstimator(SmoothingEstimator):
    """An estimator whose features may be categories."""

    categorical: str | ArrayLike | None = "from_dtype"
    ordered: ArrayLike | None = None
    category_kernel: str = "li-racine"
    missing: str = "raise"

    def _validated_points(self, X: ArrayLike, y: Any = "no_validation", **options: Any) -> Any:
        """As of numbers alone, of the table with codes in the place of levels."""
        self._coding = coding = Coding.of(
            X, self.categorical, self.ordered, self.missing, self.category_kernel
        )
        if coding is not None:
            X, options["ensure_all_finite"] = coding.code(X), coding.finite
        self.levels_ = {} if coding is None else coding.by_name()
        return super()._validated_points(X, y, **options)

    def _keep(self, points: Array, weight: NDArray[np.float64], selected: Selected) -> None:
        super()._keep(points, weight, selected)
        self.bandwidth_, self.missing_bandwidth_ = np.split(self.bandwidth_, [points.shape[1]])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "category"
        tags.input_tags.categorical = True
        return tags


def checked(estimator: BaseEstimator, X: ArrayLike, y: Any = "no_validation", **options: Any) -> Any:
    """scikit-learn's checks of data, and an InputError for masked values, texts and dates."""
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


Method = TypeVar("Method", bound=Callable[..., Any])


def over_blocks(method: Method) -> Method:
    """Lets a method of queries (m, d) take a Dask array or DataFrame, and answer with a Dask array.

    Nothing is computed before the answer is; Dask is never imported but by those who use it.
    """

    @functools.wraps(method)
    def answer(self: Any, X: Any, *args: Any, **options: Any) -> Any:
        if not hasattr(X, "__dask_graph__"):
            return method(self, X, *args, **options)
        check_is_fitted(self)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="X does not have valid feature names")
            example = method(self, self.X_[:1], *args, **options)
        if not isinstance(example, np.ndarray):
            raise InputError(
                f"{method.__name__} of a Dask collection gives one array: ask for one without further "
                "arguments, or map it over the blocks"
            )
        # By name: a method that is wrapped cannot be sent to other processes as it is.
        block = functools.partial(_of_block, self, method.__name__, example[:0], args, options)
        if hasattr(X, "map_partitions"):
            return X.map_partitions(block, meta=example[:0])
        import dask.array

        others = "abc"[: example.ndim - 1]
        return dask.array.blockwise(
            block,
            f"i{others}",
            X,
            "ij",
            new_axes=dict(zip(others, example.shape[1:], strict=True)),
            concatenate=True,
            dtype=example.dtype,
            meta=example[:0],
        )

    return cast(Method, answer)


def _of_block(
    estimator: Any, method: str, nothing: Any, args: tuple[Any, ...], options: dict[str, Any], rows: Any
) -> Any:
    return getattr(estimator, method)(rows, *args, **options) if len(rows) else nothing

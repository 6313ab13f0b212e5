"""What the estimators share: their commonest parameters, checked, and the smoother they keep."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from nadaraya.errors import InputError, must_be
from nadaraya.kernels import Kernel
from nadaraya.regression.bandwidth import Selected, first_bandwidth
from nadaraya.regression.categories import Category
from nadaraya.regression.checks import (
    fixed_kernel,
    refuse_other_than_numbers,
    torch_device,
    verbosity,
    weights_of,
    whole_number,
)
from nadaraya.regression.requests import Array
from nadaraya.regression.rules import RULES
from nadaraya.regression.sample import Sample
from nadaraya.regression.selection import Search, Selection, Start
from nadaraya.regression.smoother import Smoother
from nadaraya.regression.state import PlainState
from nadaraya.regression.summary import Summary, summary_of


class SmoothingEstimator(PlainState):
    """An estimator that keeps its points; subclasses explain the parameters."""

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

    def _first_smoother(
        self,
        points: Array,
        sample_weight: ArrayLike | None,
        criteria: tuple[str, ...],
        categories: tuple[Category, ...] = (),
    ) -> Smoother:
        """The points with the bandwidths that are given or from where the search for them starts."""
        weight = weights_of(sample_weight, len(points))
        report = self._report if self.verbose else None
        sample = Sample.of(points, weight, torch_device(self.device), report, categories)
        kernel = fixed_kernel(self.kernel)
        first = first_bandwidth(self.bandwidth, sample, kernel, criteria)
        return Smoother(sample, kernel, first if isinstance(self.bandwidth, str) else sample.in_units(first))

    def _search(self) -> Search:
        n_starts = whole_number("n_starts", self.n_starts)
        verbosity(self.verbose)
        # Without a seed too, equal data get equal bandwidths.
        generator = check_random_state(0 if self.random_state is None else self.random_state)
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
                self.selection_ = in_natural_units(self.selection_, unit[varies])
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

    def _validated(self, X: ArrayLike, finite: bool | str = True) -> Array:
        """Queries (m, d) in the type of the points."""
        check_is_fitted(self)
        options = {"reset": False, "dtype": self.X_.dtype, "order": "C", "ensure_all_finite": finite}
        validated: Array = _checked(self, X, **options)
        return validated

    def _report(self, line: str) -> None:
        print(f"[{type(self).__name__}] {line}", flush=True)


def in_natural_units(selection: Selection, unit: NDArray[np.float64]) -> Selection:
    """A selection whose bandwidths, which come first among the numbers of every run, are times their unit."""

    def scaled(run: Start) -> Start:
        factors = np.append(unit, np.ones(len(run.end) - len(unit)))
        return replace(run, start=run.start * factors, end=run.end * factors)

    return replace(selection, starts=tuple(map(scaled, selection.starts)))


def validated_points(estimator: BaseEstimator, X: ArrayLike, y: Any = "no_validation", **options: Any) -> Any:
    """scikit-learn's checks of the arguments of `fit`: a copy of X, float32 or float64, and y.

    Raises:
        InputError: X or y holds what scikit-learn would take for numbers: masked values, texts or dates.
    """
    if options.get("y_numeric"):
        refuse_other_than_numbers("y", y)
    elif np.ma.is_masked(y):
        raise must_be("y", "without masked values", y)
    return _checked(estimator, X, y, dtype=(np.float64, np.float32), order="C", copy=True, **options)


def _checked(estimator: BaseEstimator, X: ArrayLike, y: Any = "no_validation", **options: Any) -> Any:
    refuse_other_than_numbers("X", X)
    try:
        with np.errstate(all="ignore"):  # whether a sum is finite tells scikit-learn whether all numbers are
            return validate_data(estimator, X, y, **options)
    except ValueError as error:
        if hasattr(estimator, "missing") and str(error).startswith("Input X contains NaN"):
            raise InputError("Input X contains NaN: missing='category' takes missing values") from error
        raise

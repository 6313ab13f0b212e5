"""`NadarayaWatsonClassifier`: kernel regression of class indicators, which gives probabilities."""

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from nadaraya.kernels import Kernel
from nadaraya.regression.bandwidth import Search, select_or_rule
from nadaraya.regression.checks import fixed_kernel, torch_device, weights_of, whole_number
from nadaraya.regression.criteria import Regression, loo_error
from nadaraya.regression.local import local_fit
from nadaraya.regression.sample import Sample

Array = NDArray[np.floating]


class NadarayaWatsonClassifier(ClassifierMixin, BaseEstimator):
    r"""Classification by kernel regression of the classes' indicators.

        P(y = k | x) = Σ_{i: y_i = k} s_i κ(‖(x − x_i) / h‖) / Σ_j s_j κ(‖(x − x_j) / h‖)

    Args:
        kernel: as in `NadarayaWatson`. Default "gaussian".
        bandwidth: a positive number, or (d,), one a feature; "scott" or "silverman", rules of thumb; or
            "loo", the bandwidths with the least leave-one-out Brier score. Default "scott".
        n_starts: runs of the optimiser, from the best of a scan of common multiples. Default 3.
        device: where PyTorch computes; default None, the fastest way on the CPU.
        random_state: seed or generator of the starts beyond the twelfth. Default None.
        verbose: 1 prints a line for each run of the optimiser and progress of long predictions. Default 0.

    Attributes:
        classes_: (K,) the classes.
        bandwidth_: (d,) h; inf for a feature that does not vary.
        kernel_: the kernel, float64.
        selection_: how the bandwidth was chosen (`Selection`); None if it was given or came from a rule.
        X_: (n, d) the points; y_: (n,) their classes.
        sample_weight_: (n,) their weights.
        n_features_in_: d.
    """

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

    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> Self:
        """Keeps the points and chooses the bandwidth.

        Args:
            X: (n, d) points.
            y: (n,) classes.
            sample_weight: (n,) weights ≥ 0. Default 1 each.

        Returns:
            The estimator.

        Raises:
            InputError: a parameter or sample_weight is out of its range or has a shape that does not fit.
            ValueError: X is no finite numerical array, or y holds no classes (scikit-learn's checks).
        """
        points, labels = validate_data(self, X, y, dtype=(np.float64, np.float32), order="C", copy=True)
        check_classification_targets(labels)
        weight = weights_of(sample_weight, len(points))
        kernel = fixed_kernel(self.kernel)
        whole_number("n_starts", self.n_starts)
        self.classes_, index = np.unique(labels, return_inverse=True)
        self._indicators = np.eye(len(self.classes_))[index]
        self._prior = np.average(self._indicators, axis=0, weights=weight)
        self._sample = Sample.of(points, weight, torch_device(self.device))
        self.bandwidth_, self.selection_ = select_or_rule(
            self.bandwidth,
            "loo",
            lambda: loo_error(Regression(self._sample, weight, self._indicators - self._prior, kernel)),
            self._sample,
            weight,
            kernel,
            Search(self.n_starts, check_random_state(self.random_state), self._report),
        )
        self.X_, self.y_, self.sample_weight_, self.kernel_ = points, labels, weight, kernel
        return self

    def predict_proba(self, X: ArrayLike) -> Array:
        """P(y = k | x); those of the nearest point where the kernel reaches none.

        Args:
            X: (m, d) points.

        Returns:
            (m, K), rows sum to 1.
        """
        check_is_fitted(self)
        query = validate_data(self, X, reset=False, dtype=self.X_.dtype, order="C")
        sums = self._sample.sums(
            query,
            (self._indicators - self._prior).T,
            self.kernel_,
            self.bandwidth_,
            ratios=True,
            report=self._report if self.verbose else None,
        )
        probability = np.clip(local_fit(sums, 0, self._sample.spread).mean + self._prior, 0.0, 1.0)
        probability /= probability.sum(axis=1, keepdims=True)
        return probability.astype(self.X_.dtype, copy=False)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The likeliest class of each point (m, d): (m,)."""
        check_is_fitted(self)
        likeliest: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(axis=1)]
        return likeliest

    def _report(self, line: str) -> None:
        if self.verbose:
            print(f"[{type(self).__name__}] {line}", flush=True)

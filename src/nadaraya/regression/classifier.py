"""`NadarayaWatsonClassifier`: kernel regression of class indicators, which gives probabilities."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from nadaraya.errors import InputError
from nadaraya.kernels import Kernel
from nadaraya.regression.bandwidth import Selected, select_in_stages
from nadaraya.regression.estimator import MixedEstimator, over_blocks
from nadaraya.regression.grid_displays import ClassifierDisplay, Plots
from nadaraya.regression.requests import Array
from nadaraya.regression.selection import Search


@dataclass(eq=False, repr=False)
class NadarayaWatsonClassifier(ClassifierMixin, Plots[ClassifierDisplay], MixedEstimator):
    r"""Classification by kernel regression of the classes' indicators.

        P(y = k | x) = Σ_{i: y_i = k} s_i κ(‖(x − x_i) / h‖) / Σ_j s_j κ(‖(x − x_j) / h‖)

    Args:
        kernel: as in `NadarayaWatson`. Default "gaussian".
        bandwidth: a positive number, or (d,), one per feature; "scott" or "silverman", rules of thumb; or
            "loo", the bandwidths with the least leave-one-out Brier score. Default "scott".
        categorical: features that are categories, as in `NadarayaWatson`, where the three that follow are
            explained as well. Default "from_dtype".
        ordered: those whose levels have an order. Default None.
        category_kernel: "li-racine" or "probability". Default "li-racine".
        missing: "raise", or "category". Default "raise".
        n_starts, device, random_state, verbose: as in `NadarayaWatson`. Default 7, None, None and 0.

    Attributes:
        classes_: (K,) the classes.
        bandwidth_: (d,) h; inf for a feature that does not vary, and λ for categories.
        missing_bandwidth_: λ of missing or not, and levels_: the levels of categories, as in
            `NadarayaWatson`.
        kernel_, selection_, sample_weight_, n_features_in_: as in `NadarayaWatson`.
        X_: (n, d) the points; y_: (n,) their classes.

    See Also:
        NadarayaWatson: for numerical targets.
        ClassifierDisplay: pictures.

    >>> from nadaraya.regression import NadarayaWatsonClassifier
    >>> model = NadarayaWatsonClassifier(bandwidth=1.0).fit([[0.0], [1.0], [4.0]], ["a", "a", "b"])
    >>> model.predict([[0.5], [3.0]]).tolist()
    ['a', 'b']
    >>> model.predict_proba([[2.5]]).round(2).tolist()
    [[0.53, 0.47]]
    """

    kernel: str | Kernel = "gaussian"
    bandwidth: float | ArrayLike | str = "scott"

    _display = ClassifierDisplay

    def _data(self, X: ArrayLike, y: Any) -> tuple[Array, Array]:
        points, self.y_ = self._validated_points(X, y)
        try:
            with np.errstate(invalid="ignore"):  # it tries whether labels are whole numbers
                check_classification_targets(self.y_)
            self.classes_, index = np.unique(self.y_, return_inverse=True)
        except TypeError as error:
            raise InputError(f"y has classes that cannot be put in order: {error}") from error
        return points, index.reshape(-1, 1).astype(np.float64)

    def _selected(self, points: Array, targets: Array, counts: Array, search: Search) -> Selected:
        smoother = self._first_smoother(points, counts)
        indicators = np.eye(len(self.classes_))[targets[:, 0].astype(np.intp)]
        self._prior = np.average(indicators, axis=0, weights=counts)
        self._targets = indicators - self._prior
        if self._selects_by("loo"):
            return select_in_stages("loo", smoother, self._targets, search, one_unit=True)
        return smoother, None

    @over_blocks
    def predict_proba(self, X: ArrayLike) -> Array:
        """P(y = k | x); those of the nearest point where the kernel reaches none.

        Args:
            X: (m, d) points; a Dask array or DataFrame is answered lazily, with a Dask array.

        Returns:
            (m, K), rows sum to 1.

        See Also:
            NadarayaWatsonClassifier.predict: the likeliest class.

        >>> from nadaraya.regression import NadarayaWatsonClassifier
        >>> model = NadarayaWatsonClassifier(bandwidth=1.0).fit([[0.0], [1.0], [4.0]], ["a", "a", "b"])
        >>> model.predict_proba([[2.5]]).round(2).tolist()
        [[0.53, 0.47]]
        """
        query = self._validated(X)
        means = self._smoother.means(query, self._targets.T).values
        probability = np.clip(means + self._prior, 0.0, 1.0)
        probability /= probability.sum(axis=1, keepdims=True)
        return probability.astype(self.X_.dtype, copy=False)

    @over_blocks
    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The likeliest class of each point (m, d): (m,).

        See Also:
            NadarayaWatsonClassifier.predict_proba: how likely.

        >>> from nadaraya.regression import NadarayaWatsonClassifier
        >>> model = NadarayaWatsonClassifier(bandwidth=1.0).fit([[0.0], [1.0], [4.0]], ["a", "a", "b"])
        >>> model.predict([[0.5], [3.0]]).tolist()
        ['a', 'b']
        """
        probability = self.predict_proba(X)
        return self.classes_[probability.argmax(axis=1)]

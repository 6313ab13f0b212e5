"""`NadarayaWatsonClassifier`: kernel regression of class indicators, which gives probabilities."""

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets

from nadaraya.kernels import Kernel
from nadaraya.regression.bandwidth import Selected, select_in_stages
from nadaraya.regression.blocks import over_blocks
from nadaraya.regression.class_display import ClassifierDisplay
from nadaraya.regression.mixed_estimator import MixedEstimator
from nadaraya.regression.requests import Array
from nadaraya.regression.selection import Search


class NadarayaWatsonClassifier(ClassifierMixin, MixedEstimator):
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
        n_starts: as in `NadarayaWatson`. Default 7.
        device: where PyTorch computes; default None, the fastest way on the CPU.
        random_state: seed or generator of random starts. Default None: the same ones always.
        verbose: 1 prints how far the search for a bandwidth is and progress of long predictions. Default 0.

    Attributes:
        classes_: (K,) the classes.
        bandwidth_: (d,) h; inf for a feature that does not vary, and λ for categories.
        missing_bandwidth_: λ of missing or not, and levels_: the levels of categories, as in
            `NadarayaWatson`.
        kernel_: the kernel, float64.
        selection_: how the bandwidth was chosen (`Selection`); None if it was given or came from a rule.
        X_: (n, d) the points; y_: (n,) their classes.
        sample_weight_: (n,) their weights.
        n_features_in_: d.

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

    def _data(self, X: ArrayLike, y: Any) -> tuple[Array, Array]:
        points, self.y_ = self._validated_points(X, y)
        with np.errstate(invalid="ignore"):  # it tries whether labels are whole numbers
            check_classification_targets(self.y_)
        self.classes_, index = np.unique(self.y_, return_inverse=True)
        return points, index.reshape(-1, 1).astype(np.float64)

    def _selected(self, points: Array, targets: Array, counts: Array, search: Search) -> Selected:
        smoother = self._first_smoother(points, counts)
        indicators = np.eye(len(self.classes_))[targets[:, 0].astype(np.intp)]
        self._prior = np.average(indicators, axis=0, weights=counts)
        self._targets = indicators - self._prior
        if self._selects_by("loo"):
            return select_in_stages("loo", smoother, self._targets, search)
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
        likeliest: NDArray[Any] = self.classes_[probability.argmax(axis=1)]
        return likeliest

    def plot(self, *, ax: Any = None) -> ClassifierDisplay:
        """Draws the probabilities: of one feature as curves, of two as a map.

        Args:
            ax: matplotlib's axes; None makes a new figure. Default None.

        Returns:
            The display, whose `ax_` and `figure_` can be altered.

        Raises:
            InputError: there are more than two features, or matplotlib is not installed.

        See Also:
            ClassifierDisplay.from_estimator: has further options.

        >>> from nadaraya.regression import NadarayaWatsonClassifier
        >>> NadarayaWatsonClassifier().fit([[0.0], [1.0], [3.0]], ["a", "b", "b"]).plot().ax_.get_ylabel()
        'probability'
        """
        return ClassifierDisplay.from_estimator(self, ax=ax)

"""Multi-head kernel regression (Czyż 2024), a scikit-learn estimator."""

from dataclasses import KW_ONLY, dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from nadaraya.errors import must_be
from nadaraya.kernels import Kernel
from nadaraya.regression.checks import torch_device, truth_value, whole_number
from nadaraya.regression.estimator import checked
from nadaraya.regression.masked import bandwidths_of_heads, kernel_or_default, masked_training
from nadaraya.regression.sample import Sample, power_of_two
from nadaraya.regression.smoother import Smoother
from nadaraya.regression.state import PlainState

# Parameters that are those of `masked_training`.
_TRAINING = (
    *("kernel", "hold_out", "n_steps", "learning_rate", "n_splits", "average"),
    *("random_state", "device", "verbose"),
)


@dataclass(eq=False, repr=False)
class MultiHeadKernelRegression(MultiOutputMixin, RegressorMixin, PlainState):
    r"""Several kernel regressions of different bandwidths, added with free factors (Czyż 2024).

        f(x) = Σ_h u_h f_h(x),   f_h(x) = Σ_i y_i κ(‖(x − x_i) / ℓ_h‖) / Σ_j κ(‖(x − x_j) / ℓ_h‖)

    The factors u_h may be negative and need not sum to one: adding a constant to y changes more than the
    predictions' level. Bandwidths and factors are fitted together by `masked_training`, which explains the
    options; Czyż's procedure to the letter is `n_splits=1, average=0`.

    With one point held out a wide head sees the target it must predict: it gives (Σ y − y_i) / (n − 1), and a
    factor near −n turns that into y_i. Long training with `hold_out=1` and several heads can find this way to
    a small loss and a bad fit; hiding more, `hold_out=0.1` say, closes it.

    With the default kernel f is multi-head attention: queries x and keys x_i, the same for every head, values
    y_i, and outputs combined by u. In tensors of shapes (m, d), (n, d), (n, 1), (H,) and (H,)::

        f_h = nadaraya.kernel_attention(
            x.expand(1, H, -1, -1),
            x_i.expand(1, H, -1, -1),
            y_i.expand(1, H, -1, -1),
            content=GaussianWithoutHalf(bandwidths),
        )
        f = torch.einsum("h,bhmp->mp", combination, f_h)

    Args:
        n_heads: H. Default 4.
        kernel: κ of the scaled distance, for all heads; a kernel or a name, as for `NadarayaWatson`.
            Default `nadaraya.kernels.GaussianWithoutHalf(1.0)`, exp(−(r/ℓ)²) as in Czyż (2024).
        hold_out, n_steps, learning_rate, n_splits, average, random_state, device, verbose: as in
            `masked_training`. Default 1, 1000, 0.2, None, 0.5, None, None and 0.
        initial_bandwidths: where ℓ starts, in units of the features, positive: (H,), or (H, d) for one
            bandwidth per feature. Default None: linspace(0.1, 3, H), as in Czyż (2024), in units of the data.
            There points are evenly spaced from −3 to 3, so the numbers are a thirtieth of the points'
            half-width up to all of it; the half-width of other data is that of evenly spaced points of the
            same variance (for d > 1, of the same mean squared distance from the mean). The fit is thereby the
            same whatever the unit of X.
        per_feature: one bandwidth per feature, started in units of that feature times √d. Default False.

    Attributes:
        bandwidths_: (H,), or (H, d), in units of the features.
        combination_: (H,) factors u.
        kernel_: κ, a copy in float64.
        loss_curve_: (n_steps,) mean squared error of the points held out at each step.
        n_iter_: steps taken.
        X_: (n, d) points, float64.
        y_: (n,) or (n, p) targets, float64.
        n_features_in_: d.

    See Also:
        NadarayaWatson: one bandwidth per feature, chosen exactly.
        masked_training: how bandwidths are fitted.

    >>> import numpy as np
    >>> from nadaraya.regression import MultiHeadKernelRegression
    >>> x = np.linspace(-3, 3, 40)[:, None]
    >>> model = MultiHeadKernelRegression(2, n_steps=20, random_state=0).fit(x, np.sin(x[:, 0]))
    >>> model.bandwidths_.shape, model.predict(x).shape, model.head_predictions(x).shape
    ((2,), (40,), (2, 40))
    """

    n_heads: int = 4
    kernel: str | Kernel | None = None
    _: KW_ONLY
    hold_out: int | float = 1
    n_steps: int = 1000
    learning_rate: float = 0.2
    n_splits: int | None = None
    average: float = 0.5
    initial_bandwidths: ArrayLike | None = None
    per_feature: bool = False
    random_state: int | np.random.RandomState | None = None
    device: str | torch.device | None = None
    verbose: int = 0

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fits bandwidths and combination.

        Args:
            X: (n, d) points.
            y: (n,) or (n, p) targets.

        Returns:
            The estimator.

        Raises:
            InputError: an argument is out of its range or has a shape that does not fit.
            ValueError: X or y is no finite numerical array, or their lengths differ (scikit-learn's checks).

        See Also:
            masked_training: the procedure.

        >>> from nadaraya.regression import MultiHeadKernelRegression
        >>> X, y = [[-2.0], [-1.0], [1.0], [2.0]], [0.0, 1.0, 3.0, 4.0]
        >>> model = MultiHeadKernelRegression(2, n_steps=3, random_state=0).fit(X, y)
        >>> model.bandwidths_.shape, model.combination_.shape, model.loss_curve_.shape
        ((2,), (2,), (3,))
        """
        truth_value("per_feature", self.per_feature)
        points, targets = checked(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        whole_number("n_heads", self.n_heads)
        options = {name: getattr(self, name) for name in _TRAINING}
        combination = np.full(self.n_heads, 1 / self.n_heads)
        found = masked_training(self._start(points), points, targets, combination=combination, **options)
        self.X_, self.y_ = points.copy(), targets.astype(np.float64)
        self.bandwidths_, self.combination_, self.loss_curve_ = found
        self.kernel_ = kernel_or_default(self.kernel)
        self.n_iter_, self._device = self.n_steps, torch_device(self.device)
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """f(x), in O(n + m) memory.

        Args:
            X: (m, d) points.

        Returns:
            (m,) or (m, p).

        See Also:
            MultiHeadKernelRegression.head_predictions: what is added.

        >>> from nadaraya.regression import MultiHeadKernelRegression
        >>> X, y = [[-2.0], [-1.0], [1.0], [2.0]], [0.0, 1.0, 3.0, 4.0]
        >>> model = MultiHeadKernelRegression(2, n_steps=3, random_state=0).fit(X, y)
        >>> model.predict([[0.0], [1.5]]).shape
        (2,)
        """
        check_is_fitted(self)
        return np.tensordot(self.combination_, self.head_predictions(X), axes=1)

    def head_predictions(self, X: ArrayLike) -> NDArray[np.float64]:
        """f_h(x) of each head, in O(n + m) memory.

        Where no point lies in the support of a compact kernel, a head gives the nearest point's target.

        Args:
            X: (m, d) points.

        Returns:
            (H, m) or (H, m, p).

        See Also:
            MultiHeadKernelRegression.predict: their combination.

        >>> from nadaraya.regression import MultiHeadKernelRegression
        >>> X, y = [[-2.0], [-1.0], [1.0], [2.0]], [0.0, 1.0, 3.0, 4.0]
        >>> model = MultiHeadKernelRegression(2, n_steps=3, random_state=0).fit(X, y)
        >>> model.head_predictions([[0.0], [1.5]]).shape
        (2, 2)
        """
        check_is_fitted(self)
        query = checked(self, X, dtype=np.float64, reset=False)
        n, dimension = self.X_.shape
        sample = Sample.of(self.X_, np.ones(n), self._device)
        columns = self.y_.reshape(n, -1).T
        unit = power_of_two(columns.reshape(-1, 1))[0]
        columns = columns / unit
        scales = [sample.in_units(np.broadcast_to(bandwidth, dimension)) for bandwidth in self.bandwidths_]
        heads = [Smoother(sample, self.kernel_, scale).means(query, columns).values for scale in scales]
        with np.errstate(over="ignore", under="ignore"):
            predictions: NDArray[np.float64] = np.stack(heads) * unit
        return predictions.reshape(len(heads), len(query), *self.y_.shape[1:])

    def _start(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """The initial bandwidths, (H,) or (H, d)."""
        n, dimension = X.shape
        if self.initial_bandwidths is not None:
            start = bandwidths_of_heads("initial_bandwidths", self.initial_bandwidths, dimension)
            per_feature = (self.n_heads, dimension)
            if len(start) != self.n_heads:
                accepted = f"({self.n_heads},), one per head, or {per_feature}"
                raise must_be("shape of initial_bandwidths", accepted, start.shape)
            if self.per_feature:
                return np.broadcast_to(start.reshape(self.n_heads, -1), per_feature)
            return start
        # n evenly spaced points of half-width a have the variance a²(n + 1) / (3(n − 1)).
        unit = power_of_two(X.reshape(-1, 1))[0]
        squares = 3 * (n - 1) / (n + 1) * (X / unit).var(axis=0)
        widths = np.sqrt(dimension * squares if self.per_feature else squares.sum())
        widths = np.where(widths > 0, widths, 3.0)  # where points do not differ any bandwidth will do
        with np.errstate(over="ignore"):
            start = np.multiply.outer(np.linspace(0.1, 3, self.n_heads), widths / 3) * unit
        return np.minimum(start, np.finfo(np.float64).max)

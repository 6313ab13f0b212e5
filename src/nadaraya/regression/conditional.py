"""`NadarayaWatsonConditionalDensity`: the distribution of a target given the features."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr
from sklearn.utils.validation import check_is_fitted, column_or_1d

from nadaraya.errors import InputError
from nadaraya.regression.bandwidth import Selected, select_bandwidth
from nadaraya.regression.checks import generator_of, probabilities, real_number, whole_number
from nadaraya.regression.criteria import Criterion
from nadaraya.regression.density import increasing_root
from nadaraya.regression.estimator import SmoothingEstimator, checked
from nadaraya.regression.requests import Array, Sums
from nadaraya.regression.sample import Observations
from nadaraya.regression.selection import Search
from nadaraya.regression.smoother import Smoother
from nadaraya.regression.support import likelihood, log_mass
from nadaraya.regression.torch_sums import Job

# What is held for each pair where all weights of a query are needed at once.
_NUMBERS_PER_PAIR = 4


@dataclass(eq=False, repr=False)
class NadarayaWatsonConditionalDensity(SmoothingEstimator):
    r"""The density of a target given features, with Gaussian kernels (Rosenblatt 1969).

        p(y | x) = Σ_i w_i(x) φ((y − y_i) / b) / b,    w_i(x) = s_i κ_i / Σ_j s_j κ_j,
        κ_i = exp(−‖(x − x_i) / h‖² / 2)

    φ is the normal density, s are sample weights, h the bandwidths of the features and b that of the target.
    Given x, the target is a mixture of normals around all observed targets, whose mean is the Nadaraya-Watson
    regression; its distribution function is Σ_i w_i(x) Φ((y − y_i) / b).

    Args:
        bandwidth: "loo", the bandwidths under which each target is likeliest given its features and the other
            observations, in O(n²) time per evaluation: a feature that tells nothing of the target gets a
            very large one, as with the least squares of Hall, Racine and Li (2004), which is not offered;
            "scott" or "silverman", rules of thumb for the joint density, in O(n); or a positive number, or
            (d + 1,), one per feature and the target's last, in their units. Default "loo".
        n_starts, device, random_state, verbose: as in `NadarayaWatson`. Default 7, None, None and 0.

    Attributes:
        bandwidth_: (d,) h; inf for a feature that does not vary.
        target_bandwidth_: b.
        selection_, sample_weight_, n_features_in_: as in `NadarayaWatson`.
        X_: (n, d) the points; y_: (n,) their targets, float64.

    See Also:
        KernelQuantileRegressor: quantiles by the check loss.
        NadarayaWatsonDensity: without features.

    >>> from nadaraya.regression import NadarayaWatsonConditionalDensity
    >>> model = NadarayaWatsonConditionalDensity(0.5).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 4.0])
    >>> model.predict_quantiles([[1.0]], [0.1, 0.5, 0.9]).round(3).tolist()
    [[0.146, 1.004, 3.227]]
    >>> model.score_samples([[1.0]], [1.0]).round(3).tolist()  # log p(1 | 1)
    [-0.447]
    """

    bandwidth: float | ArrayLike | str = "loo"

    kernel = "gaussian"

    def _observations(self, points: Array, targets: Array, weight: Array) -> Observations:
        joint, _, counts, row_of = super()._observations(
            np.column_stack([points, targets]), targets[:, :0], weight
        )
        return joint[:, :-1].astype(points.dtype), joint[:, -1:], counts, row_of

    def _selected(self, points: Array, targets: Array, counts: Array, search: Search) -> Selected:
        joint = self._first_smoother(np.column_stack([points, targets]), counts)
        if np.isinf(joint.bandwidth[-1]):
            raise InputError(
                f"y must vary to have a density (n_samples = {len(self.y_)}): give bandwidth as numbers"
            )
        features = Smoother(self._sample(points, counts), joint.kernel, joint.bandwidth[:-1])
        selection = None
        if self._selects_by("loo"):
            joint, selection = select_bandwidth("loo", _likelihood(joint, features), joint, search)
        # Targets and their bandwidth are kept in a unit in which nothing over- or underflows.
        self._joint, self._unit, self._b = joint, float(joint.sample.unit[-1]), float(joint.bandwidth[-1])
        self._targets, unit = targets[:, 0] / self._unit, self._unit
        self.target_bandwidth_ = self._b * unit
        if selection is not None:  # those of the features have their units from _keep
            selection = selection._changed(lambda numbers: np.append(numbers[:-1], numbers[-1] * unit))
        return replace(features, bandwidth=joint.bandwidth[:-1]), selection

    def score_samples(self, X: ArrayLike, y: ArrayLike) -> Array:
        """log p(y | x).

        Args:
            X: (m, d) points.
            y: (m,) targets.

        Returns:
            (m,).

        See Also:
            NadarayaWatsonConditionalDensity.predict_cdf: the distribution function.

        >>> from nadaraya.regression import NadarayaWatsonConditionalDensity
        >>> model = NadarayaWatsonConditionalDensity(0.5).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 4.0])
        >>> model.score_samples([[1.0], [1.0]], [1.0, 3.0]).shape
        (2,)
        """
        query, targets = self._validated_pairs(X, y)
        joint = log_mass(self._joint, None, np.column_stack([query, targets]))
        # Both weights are relative to the same largest one.
        marginal = log_mass(self._smoother, None, query)
        known = np.isfinite(marginal)  # weights that underflow tell nothing
        density: Array = np.where(known, joint, -np.inf) - np.where(known, marginal, 0.0)
        density -= math.log(self._b * math.sqrt(2 * math.pi)) + math.log(self._unit)
        return density.astype(self.X_.dtype, copy=False)

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Σ log p(y | x) over m points (m, d) and their targets (m,).

        See Also:
            NadarayaWatsonConditionalDensity.score_samples: of each target.

        >>> from nadaraya.regression import NadarayaWatsonConditionalDensity
        >>> model = NadarayaWatsonConditionalDensity(0.5).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 4.0])
        >>> bool(model.score([[1.0]], [1.0]) == model.score_samples([[1.0]], [1.0])[0])
        True
        """
        return float(self.score_samples(X, y).sum(dtype=np.float64))

    def predict(self, X: ArrayLike) -> Array:
        """The mean of the target given x, (m,), at points (m, d): Nadaraya-Watson regression.

        See Also:
            NadarayaWatson: with bandwidths for the mean.

        >>> from nadaraya.regression import NadarayaWatsonConditionalDensity
        >>> model = NadarayaWatsonConditionalDensity(0.5).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 4.0])
        >>> model.predict([[1.0]]).shape
        (1,)
        """
        query, centre = self._validated(X), np.average(self._targets, weights=self._smoother.sample.counts)
        means = self._smoother.means(query, (self._targets - centre)[None]).values[:, 0] + centre
        return self._natural(means)

    def predict_cdf(self, X: ArrayLike, y: ArrayLike) -> Array:
        """P(target ≤ y | x).

        Args:
            X: (m, d) points.
            y: (m,) targets.

        Returns:
            (m,).

        See Also:
            NadarayaWatsonConditionalDensity.predict_quantiles: its inverse.

        >>> from nadaraya.regression import NadarayaWatsonConditionalDensity
        >>> model = NadarayaWatsonConditionalDensity(0.5).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 4.0])
        >>> model.predict_cdf([[1.0]], [1.004]).round(2).tolist()
        [0.5]
        """
        query, targets = self._validated_pairs(X, y)
        result = np.empty(len(query))
        for rows, weights in self._weights(query):
            with np.errstate(over="ignore"):
                z = (targets[rows, None] / self._unit - self._targets) / self._b
            result[rows] = np.einsum("mn,mn->m", weights, ndtr(z))
        return result.astype(self.X_.dtype, copy=False)

    def predict_quantiles(self, X: ArrayLike, q: float | ArrayLike = 0.5) -> Array:
        """Quantiles of the target given x: where its distribution function has the values q.

        Args:
            X: (m, d) points.
            q: a number between 0 and 1, or (k,). Default 0.5, the median.

        Returns:
            (m,), or (m, k) for several.

        Raises:
            InputError: a number is not strictly between 0 and 1.

        See Also:
            KernelQuantileRegressor: with bandwidths for the quantiles themselves.

        >>> from nadaraya.regression import NadarayaWatsonConditionalDensity
        >>> model = NadarayaWatsonConditionalDensity(0.5).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 4.0])
        >>> model.predict_quantiles([[1.0]], [0.1, 0.5, 0.9]).round(3).tolist()
        [[0.146, 1.004, 3.227]]
        """
        query, levels = self._validated(X), probabilities("q", q)
        result = np.empty((len(query), levels.size))
        for rows, weights in self._weights(query):
            for column, level in enumerate(levels.ravel()):
                result[rows, column] = self._quantile(weights, level)
        return self._natural(result[:, 0] if levels.ndim == 0 else result)

    def predict_interval(self, X: ArrayLike, level: float = 0.9) -> tuple[Array, Array]:
        """The interval that has the target with this probability given x, with equal tails.

        Args:
            X: (m, d) points.
            level: probability. Default 0.9.

        Returns:
            Lower and upper ends, (m,) each.

        See Also:
            NadarayaWatsonConditionalDensity.predict_quantiles: its ends.

        >>> from nadaraya.regression import NadarayaWatsonConditionalDensity
        >>> model = NadarayaWatsonConditionalDensity(0.5).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 4.0])
        >>> lower, upper = model.predict_interval([[1.0]], 0.8)
        >>> lower.round(3).tolist(), upper.round(3).tolist()
        ([0.146], [3.227])
        """
        tail = (1.0 - real_number("level", level, "a number between 0 and 1", 0, 1)) / 2
        ends = self.predict_quantiles(X, [tail, 1.0 - tail])
        return ends[:, 0], ends[:, 1]

    def sample(
        self, X: ArrayLike, n_samples: int = 1, random_state: int | np.random.RandomState | None = None
    ) -> Array:
        """Independent draws of the target given x.

        Args:
            X: (m, d) points.
            n_samples: draws for each. Default 1.
            random_state: seed or generator. Default None.

        Returns:
            (m, n_samples).

        See Also:
            NadarayaWatsonConditionalDensity.score_samples: the density.

        >>> from nadaraya.regression import NadarayaWatsonConditionalDensity
        >>> model = NadarayaWatsonConditionalDensity(0.5).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 4.0])
        >>> model.sample([[1.0], [2.0]], 5, random_state=0).shape
        (2, 5)
        """
        query = self._validated(X)
        n, random = whole_number("n_samples", n_samples), generator_of(random_state)
        result = self._b * random.standard_normal((len(query), n))
        for rows, weights in self._weights(query):
            for row, cumulative in zip(range(rows.start, rows.stop), np.cumsum(weights, axis=1), strict=True):
                place = np.searchsorted(cumulative, cumulative[-1] * random.random_sample(n), side="right")
                result[row] += self._targets[np.minimum(place, len(self._targets) - 1)]
        return self._natural(result)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def _weights(self, query: Array) -> Iterator[tuple[slice, Array]]:
        """Blocks of queries (m, d) with their weights (rows, n), which sum to 1."""
        job = Job(self._smoother.request(Sums, query))
        for rows in job.blocks(_NUMBERS_PER_PAIR):
            yield rows, job.local_weights(rows).double().cpu().numpy()

    def _quantile(self, weights: Array, level: float) -> Array:
        """(m,) where the distribution is `level`."""
        b, order = self._b, np.argsort(self._targets)
        # From the quantile of the weighted targets themselves.
        reached = (np.cumsum(weights[:, order], axis=1) < level).sum(axis=1)
        y = self._targets[order[np.minimum(reached, len(order) - 1)]]
        low, high = np.full((2, len(y)), [[self._targets.min() - 40 * b], [self._targets.max() + 40 * b]])

        def excess(left: NDArray[np.intp], y: Array) -> tuple[Array, Array]:
            z = (y[:, None] - self._targets) / b
            height = np.exp(-(np.clip(z, -40, 40) ** 2) / 2)
            slope = np.einsum("mn,mn->m", weights[left], height) / (b * math.sqrt(2 * math.pi))
            return np.einsum("mn,mn->m", weights[left], ndtr(z)) - level, slope

        # The step after one of 1e-7 b would be of the order of its square.
        return increasing_root(excess, y, low, high, np.full(len(y), b), settled=1e-7)

    def _natural(self, targets: Array) -> Array:
        with np.errstate(over="ignore", under="ignore"):  # bandwidths beyond float32 are infinite in it
            return (targets * self._unit).astype(self.X_.dtype, copy=False)

    def _validated_pairs(self, X: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
        check_is_fitted(self)
        query, targets = checked(self, X, y, reset=False, dtype=self.X_.dtype, order="C", y_numeric=True)
        return query, np.asarray(column_or_1d(targets), np.float64)


def _likelihood(joint: Smoother, features: Smoother) -> Criterion:
    """Minus the mean log-density of each target given its features, under the other observations."""
    of_joint, of_features = likelihood(joint), likelihood(features)

    def criterion(log_bandwidth: Array, with_gradient: bool = True, /) -> tuple[float, Array]:
        value, gradient = of_joint(log_bandwidth, with_gradient)
        marginal, by_features = of_features(log_bandwidth[:-1], with_gradient)
        return value - marginal, gradient - np.append(by_features, 0.0)

    return criterion

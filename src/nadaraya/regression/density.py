"""`NadarayaWatsonDensity`: kernel density estimation from the same sums."""

import math
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import DensityMixin

from nadaraya.errors import InputError, must_be
from nadaraya.kernels import Kernel
from nadaraya.regression.bandwidth import Selected, select_bandwidth
from nadaraya.regression.blocks import over_blocks
from nadaraya.regression.criteria import loo_likelihood
from nadaraya.regression.displays import DensityDisplay
from nadaraya.regression.estimator import SmoothingEstimator, validated_points
from nadaraya.regression.requests import Array, Sums
from nadaraya.regression.rules import radial_moment


class NadarayaWatsonDensity(DensityMixin, SmoothingEstimator):
    r"""Kernel density: what kernel regression divides by, as a density (Rosenblatt 1956, Parzen 1962).

        p(x) = Σ_i s_i κ(‖(x − x_i) / h‖) / (Σ_i s_i · Π_f h_f · ∫ κ(‖z‖) dz)

    Unlike `sklearn.neighbors.KernelDensity` it has one bandwidth per feature, chosen by likelihood if wanted,
    and any kernel whose integral exists.

    Args:
        kernel: as in `NadarayaWatson`. Default "gaussian".
        bandwidth: a positive number, or (d,), one per feature; "scott" or "silverman", rules of thumb; or
            "loo", the bandwidths under which each point is likeliest given the others (Habbema, Hermans and
            van den Broek 1974). Points with exact copies make that likelihood grow without end as the
            bandwidth falls. Default "scott".
        n_starts: runs of the optimiser, from the best of a scan of common multiples. Default 3.
        device: where PyTorch computes; default None, the fastest way on the CPU.
        random_state: seed or generator of the starts beyond the twelfth. Default None.
        verbose: 1 prints a line for each run of the optimiser. Default 0.

    Attributes:
        bandwidth_: (d,) h.
        kernel_: the kernel, float64.
        selection_: how the bandwidth was chosen (`Selection`); None if it was given or came from a rule.
        X_: (n, d) the points.
        sample_weight_: (n,) their weights.
        n_features_in_: d.

    See Also:
        DensityDisplay: pictures.
        GridMeans: for more points than memory holds.
        sklearn.neighbors.KernelDensity: one bandwidth, trees.

    >>> from nadaraya.regression import NadarayaWatsonDensity
    >>> model = NadarayaWatsonDensity(bandwidth=1.0).fit([[0.0], [1.0]])
    >>> model.score_samples([[0.5]]).round(4).tolist()  # log of a normal density half a deviation off
    [-1.0439]
    """

    def fit(self, X: ArrayLike, y: Any = None, sample_weight: ArrayLike | None = None) -> Self:
        """Keeps the points and chooses the bandwidth.

        Args:
            X: (n, d) points.
            y: ignored.
            sample_weight: (n,) weights ≥ 0. Default 1 each.

        Returns:
            The estimator.

        Raises:
            InputError: a parameter or sample_weight is out of its range, the kernel has no integral, or a
                feature does not vary and the bandwidth is not given in numbers.
            ValueError: X is no finite numerical array (scikit-learn's checks).

        See Also:
            NadarayaWatsonDensity.summary: what was fitted.

        >>> from nadaraya.regression import NadarayaWatsonDensity
        >>> NadarayaWatsonDensity().fit([[0.0], [1.0], [3.0]]).bandwidth_.round(3).tolist()
        [1.001]
        """
        points = validated_points(self, X)
        search, smoother = self._search(), self._first_smoother(points, sample_weight, ("loo",))
        self._log_integral = _log_integral(smoother.kernel, points.shape[1])
        selected: Selected = smoother, None
        if isinstance(self.bandwidth, str) and self.bandwidth == "loo":
            selected = select_bandwidth("loo", loo_likelihood(smoother), smoother, search)
        self._keep(points, selected[0].sample.counts, selected)
        if not np.isfinite(self.bandwidth_).all():
            constant = np.flatnonzero(np.isinf(self.bandwidth_)).tolist()
            raise InputError(
                f"feature {constant[0]} must vary to have a density (n_samples = {len(points)}): "
                "leave it out, or give bandwidth as a number"
            )
        return self

    @over_blocks
    def score_samples(self, X: ArrayLike) -> Array:
        """log p(x), −inf where the kernel reaches no point.

        Args:
            X: (m, d) points; a Dask array or DataFrame is answered lazily, with a Dask array.

        Returns:
            (m,).

        See Also:
            NadarayaWatsonDensity.score: their sum.

        >>> from nadaraya.regression import NadarayaWatsonDensity
        >>> model = NadarayaWatsonDensity("boxcar", 1.0).fit([[0.0], [1.0]])
        >>> model.score_samples([[0.5], [3.0]]).round(4).tolist()
        [-0.6931, -inf]
        """
        query, smoother = self._validated(X), self._smoother
        sums = smoother.compute(smoother.request(Sums, query, np.zeros((0, len(self.X_)))))
        log_mass = np.log(sums.values[:, 0]) + sums.log_scale
        constant = math.log(smoother.sample.weight.sum()) + np.log(self.bandwidth_).sum() + self._log_integral
        density: Array = (log_mass - constant).astype(self.X_.dtype, copy=False)
        return density

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Σ log p(x) over the points (m, d); y is ignored.

        See Also:
            NadarayaWatsonDensity.score_samples: of each point.

        >>> from nadaraya.regression import NadarayaWatsonDensity
        >>> model = NadarayaWatsonDensity(bandwidth=1.0).fit([[0.0], [1.0]])
        >>> round(model.score([[0.5], [0.5]]), 4)
        -2.0879
        """
        return float(self.score_samples(X).sum(dtype=np.float64))

    def plot(self, *, ax: Any = None) -> DensityDisplay:
        """Draws the density: of one feature as a curve, of two as contours.

        Args:
            ax: matplotlib's axes; None makes a new figure. Default None.

        Returns:
            The display, whose `ax_` and `figure_` can be altered.

        Raises:
            InputError: there are more than two features, or matplotlib is not installed.

        See Also:
            DensityDisplay.from_estimator: has further options.

        >>> from nadaraya.regression import NadarayaWatsonDensity
        >>> NadarayaWatsonDensity().fit([[0.0], [1.0], [3.0]]).plot().ax_.get_ylabel()
        'density'
        """
        return DensityDisplay.from_estimator(self, ax=ax)


def _log_integral(kernel: Kernel, dimension: int) -> float:
    """log ∫ κ(‖z‖) dz over R^d: the surface of the unit sphere times ∫ r^(d − 1) κ(r) dr."""
    radial = radial_moment(kernel, dimension - 1)
    if not math.isfinite(radial):
        raise must_be("kernel", f"one with a finite integral in {dimension} dimensions", kernel)
    surface = math.log(2.0) + dimension / 2 * math.log(math.pi) - math.lgamma(dimension / 2)
    return surface + math.log(radial)

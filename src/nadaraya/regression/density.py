"""`NadarayaWatsonDensity`: kernel density estimation from the same sums."""

import math
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from nadaraya.errors import InputError
from nadaraya.kernels import Kernel
from nadaraya.regression.bandwidth import Search, select_or_rule
from nadaraya.regression.checks import fixed_kernel, torch_device, weights_of, whole_number
from nadaraya.regression.criteria import loo_likelihood
from nadaraya.regression.rules import radial_moment
from nadaraya.regression.sample import Sample

Array = NDArray[np.floating]


class NadarayaWatsonDensity(DensityMixin, BaseEstimator):
    r"""Kernel density: what kernel regression divides by, as a density (Rosenblatt 1956, Parzen 1962).

        p(x) = Σ_i s_i κ(‖(x − x_i) / h‖) / (Σ_i s_i · Π_f h_f · ∫ κ(‖z‖) dz)

    Unlike `sklearn.neighbors.KernelDensity` it has one bandwidth a feature, chosen by likelihood if wanted,
    and any kernel whose integral exists.

    Args:
        kernel: as in `NadarayaWatson`. Default "gaussian".
        bandwidth: a positive number, or (d,), one a feature; "scott" or "silverman", rules of thumb; or
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
        """
        points = validate_data(self, X, dtype=(np.float64, np.float32), order="C", copy=True)
        weight = weights_of(sample_weight, len(points))
        kernel = fixed_kernel(self.kernel)
        whole_number("n_starts", self.n_starts)
        self._log_integral = _log_integral(kernel, points.shape[1])
        self._sample = Sample.of(points, weight, torch_device(self.device))
        self.bandwidth_, self.selection_ = select_or_rule(
            self.bandwidth,
            "loo",
            lambda: loo_likelihood(self._sample, weight, kernel),
            self._sample,
            weight,
            kernel,
            Search(self.n_starts, check_random_state(self.random_state), self._report),
        )
        if not np.isfinite(self.bandwidth_).all():
            constant = np.flatnonzero(np.isinf(self.bandwidth_)).tolist()
            raise InputError(
                f"feature {constant[0]} does not vary (n_samples = {len(points)}): it has no density; "
                "leave it out, or give bandwidth as a number"
            )
        self.X_, self.sample_weight_, self.kernel_ = points, weight, kernel
        return self

    def score_samples(self, X: ArrayLike) -> Array:
        """log p(x), −inf where the kernel reaches no point.

        Args:
            X: (m, d) points.

        Returns:
            (m,).
        """
        check_is_fitted(self)
        query = validate_data(self, X, reset=False, dtype=self.X_.dtype, order="C")
        sums = self._sample.sums(
            query,
            np.zeros((0, len(self.X_))),
            self.kernel_,
            self.bandwidth_,
            report=self._report if self.verbose else None,
        )
        log_mass = np.log(sums.values[:, 0]) + sums.log_scale
        constant = math.log(self._sample.weight.sum()) + np.log(self.bandwidth_).sum() + self._log_integral
        density: Array = (log_mass - constant).astype(self.X_.dtype, copy=False)
        return density

    def score(self, X: ArrayLike, y: Any = None) -> float:
        """Σ log p(x) over the points (m, d); y is ignored."""
        return float(self.score_samples(X).sum(dtype=np.float64))

    def _report(self, line: str) -> None:
        if self.verbose:
            print(f"[{type(self).__name__}] {line}", flush=True)


def _log_integral(kernel: Kernel, dimension: int) -> float:
    """log ∫ κ(‖z‖) dz over R^d: the surface of the unit sphere times ∫ r^(d − 1) κ(r) dr."""
    radial = radial_moment(kernel, dimension - 1)
    if not math.isfinite(radial):
        raise InputError(
            f"kernel {kernel!r} has no finite integral in {dimension} dimensions: a density needs one"
        )
    surface = math.log(2.0) + dimension / 2 * math.log(math.pi) - math.lgamma(dimension / 2)
    return surface + math.log(radial)

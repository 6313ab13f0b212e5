"""`NadarayaWatsonDensity`: kernel density estimation from the same sums."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import DensityMixin
from sklearn.utils.validation import check_is_fitted

from nadaraya.errors import InputError, must_be
from nadaraya.kernels import Kernel
from nadaraya.regression.bandwidth import Selected, select_bandwidth
from nadaraya.regression.checks import generator_of, whole_number
from nadaraya.regression.estimator import SmoothingEstimator, over_blocks
from nadaraya.regression.grid_displays import DensityDisplay, Plots
from nadaraya.regression.requests import Array
from nadaraya.regression.rules import (
    PLUG_INS,
    edge_of,
    log_radial_moment,
    log_values,
    plug_in,
    spread_of_kernel,
)
from nadaraya.regression.selection import Search
from nadaraya.regression.support import Support, likelihood, log_mass


@dataclass(eq=False, repr=False)
class NadarayaWatsonDensity(DensityMixin, Plots[DensityDisplay], SmoothingEstimator):
    r"""Kernel density: what kernel regression divides by, as a density (Rosenblatt 1956, Parzen 1962).

        p(x) = Σ_i s_i κ(‖(x − x_i) / h‖) / (Σ_i s_i · Π_f h_f · ∫ κ(‖z‖) dz)

    Unlike `sklearn.neighbors.KernelDensity` it has one bandwidth per feature, chosen by likelihood if wanted,
    and any kernel whose integral exists.

    With a `support` the kernels are reflected at its bounds (Schuster 1985): p(x) is the sum of the density
    above over x and its mirror images, which integrates to 1 within the bounds and is 0 beyond. At a bound
    the bias is of order h² where the true density is flat there, as the uniform, and otherwise of order h,
    as for the exponential, because the estimate has no slope at a bound; without reflection it would lose
    half of the density.

    Args:
        kernel: as in `NadarayaWatson`. Default "gaussian".
        bandwidth: a positive number, or (d,), one per feature; "scott" or "silverman", rules of thumb; for
            one feature "sheather-jones" (Sheather and Jones 1991) or "improved-sheather-jones" (Botev,
            Grotowski and Kroese 2010), which estimate the density's curvature, in O(n) after sorting, and
            are better where it has several modes; or "loo", the bandwidths under which each point is
            likeliest given the others (Habbema, Hermans and van den Broek 1974), in O(n²) per evaluation.
            Many copies of points, as of rounded data, make the plug-in bandwidths tend to 0. Rules and
            plug-ins do not look at the support, and are divided by the kernel's standard deviation if it is
            not the Gaussian. Default "scott".
        support: (low, high), the bounds of every feature, or d such pairs, one per feature; None in the place
            of a bound or a pair where there is none. "loo" chooses no bandwidth wider than the support.
            Default None.
        n_starts, device, random_state, verbose: as in `NadarayaWatson`. Default 7, None, None and 0.

    Attributes:
        bandwidth_: (d,) h.
        kernel_, selection_, sample_weight_, n_features_in_: as in `NadarayaWatson`.
        X_: (n, d) the points.

    See Also:
        DensityDisplay: pictures.
        GridMeans: for more points than memory holds.
        sklearn.neighbors.KernelDensity: one bandwidth, trees.

    >>> from nadaraya.regression import NadarayaWatsonDensity
    >>> model = NadarayaWatsonDensity(bandwidth=1.0).fit([[0.0], [1.0]])
    >>> model.score_samples([[0.5]]).round(4).tolist()  # log of a normal density half a deviation off
    [-1.0439]
    >>> waits = NadarayaWatsonDensity(bandwidth=0.5, support=(0, None)).fit([[0.1], [0.4], [1.2]])
    >>> waits.score_samples([[0.0], [-0.1]]).round(4).tolist()
    [-0.0645, -inf]
    >>> bool((waits.sample(100, random_state=0) >= 0).all())
    True
    """

    kernel: str | Kernel = "gaussian"
    bandwidth: float | ArrayLike | str = "scott"
    _: KW_ONLY
    support: Any = None

    _criteria = ("loo", *PLUG_INS)
    _display = DensityDisplay

    def _data(self, X: ArrayLike, y: Any) -> tuple[Array, Array]:
        points = self._validated_points(X)
        self._support = Support.of(self.support, points)
        if self._support is not None:
            self._support.check(points)
        return points, np.zeros((len(points), 0))

    def _selected(self, points: Array, targets: Array, counts: Array, search: Search) -> Selected:
        smoother = self._first_smoother(points, counts)
        self._log_integral = _log_integral(smoother.kernel, points.shape[1])
        selection = None
        if isinstance(self.bandwidth, str) and self.bandwidth in PLUG_INS:
            if points.shape[1] != 1:
                raise InputError(
                    f"bandwidth={self.bandwidth!r} is for one feature, got {points.shape[1]}: "
                    "use 'loo' or 'scott'"
                )
            if np.isfinite(smoother.bandwidth[0]):
                width = plug_in(self.bandwidth, smoother.sample.x[:, 0], counts)
                width /= spread_of_kernel(smoother.kernel)
                smoother = replace(smoother, bandwidth=np.array([width]))
        elif self._selects_by("loo"):
            criterion = likelihood(smoother, self._support, points.astype(np.float64))
            smoother, selection = select_bandwidth("loo", criterion, smoother, search)
            if self._support is not None:
                unit = smoother.sample.unit
                within = self._support.within_reach(smoother.bandwidth * unit) / unit
                smoother = replace(smoother, bandwidth=within)
        if not np.isfinite(smoother.bandwidth).all():
            constant = np.flatnonzero(np.isinf(smoother.bandwidth)).tolist()
            raise InputError(
                f"feature {constant[0]} must vary to have a density (n_samples = {len(self._row_of)}): "
                "leave it out, or give bandwidth as a number"
            )
        return smoother, selection

    @over_blocks
    def score_samples(self, X: ArrayLike) -> Array:
        """log p(x), −inf where the kernel reaches no point and outside the support.

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
        constant = math.log(smoother.sample.weight.sum()) + self._log_integral
        constant += np.log(smoother.bandwidth).sum() + np.log(smoother.sample.unit).sum()
        return (log_mass(smoother, self._support, query) - constant).astype(self.X_.dtype, copy=False)

    def sample(
        self, n_samples: int = 1, random_state: int | np.random.RandomState | None = None
    ) -> NDArray[np.floating]:
        """Independent draws from p: a point, by its weight, and a step from it with the kernel's density.

        Args:
            n_samples: number of draws. Default 1.
            random_state: seed or generator. Default None.

        Returns:
            (n_samples, d), in the type of the points and within the support.

        See Also:
            NadarayaWatsonDensity.score_samples: the density.

        >>> from nadaraya.regression import NadarayaWatsonDensity
        >>> model = NadarayaWatsonDensity(bandwidth=1.0).fit([[0.0], [1.0]])
        >>> model.sample(3, random_state=0).shape
        (3, 1)
        """
        check_is_fitted(self)
        n, random = whole_number("n_samples", n_samples), generator_of(random_state)
        chosen = random.choice(len(self.X_), n, p=self.sample_weight_ / self.sample_weight_.sum())
        steps = draws(self.kernel_, (n, self.n_features_in_), random) * self.bandwidth_
        drawn: Array = self.X_[chosen] + steps
        if self._support is not None:
            drawn = self._support.folded(drawn)
        return drawn.astype(self.X_.dtype, copy=False)

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


def _log_integral(kernel: Kernel, dimension: int) -> float:
    """log ∫ κ(‖z‖) dz over R^d: the surface of the unit sphere times ∫ r^(d − 1) κ(r) dr."""
    log_radial = log_radial_moment(kernel, dimension - 1)
    if not math.isfinite(log_radial):
        raise must_be("kernel", f"one with a finite integral in {dimension} dimensions", kernel)
    surface = math.log(2.0) + dimension / 2 * math.log(math.pi) - math.lgamma(dimension / 2)
    return surface + log_radial


_CELLS_PER_OCTAVE, _OCTAVES = 64, 120
# After so many, bisection alone, which always ends.
_NEWTON_STEPS, _MOST_STEPS = 60, 300
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


def draws(kernel: Kernel, shape: tuple[int, int], random: np.random.RandomState) -> NDArray[np.float64]:
    """(n, d) independent draws z, with density κ(‖z‖) / ∫ κ.

    The direction is uniform; the distance has the density r^(d − 1) κ(r), whose distribution function is
    known to rounding from Gauss-Legendre quadrature, and is inverted by Newton's method.
    """
    direction = random.standard_normal(shape)
    direction /= np.sqrt((direction**2).sum(axis=1, keepdims=True))
    return direction * _distances(kernel, shape[1], random.random_sample(shape[0]))[:, None]


def _distances(kernel: Kernel, dimension: int, probability: Array) -> Array:
    """The quantiles (n,) of the distance from the origin."""
    edge = edge_of(kernel)
    exponents = np.arange(-_CELLS_PER_OCTAVE * _OCTAVES, 1) / _CELLS_PER_OCTAVE
    ends = np.append(0.0, (2.0 ** (_OCTAVES // 2) if math.isinf(edge) else edge) * 2.0**exponents)
    low, high = ends[:-1], ends[1:]
    largest = _log_density(kernel, dimension, high[:-1]).max()

    def mass(low: Array, high: Array) -> Array:
        half = (high - low)[:, None] / 2
        inner = low[:, None] + half * (1 + _NODES)
        return (half * np.exp(_log_density(kernel, dimension, inner) - largest)) @ _WEIGHTS

    cumulative = np.append(0.0, np.cumsum(mass(low, high)))
    wanted = probability * cumulative[-1]
    cell = np.clip(np.searchsorted(cumulative, wanted, side="right") - 1, 0, len(low) - 1)
    low, high, wanted = low[cell], high[cell], wanted - cumulative[cell]
    share = wanted / (cumulative[cell + 1] - cumulative[cell])
    r = low + (high - low) * np.clip(share, 0.0, 1.0)
    start = low.copy()

    def excess(left: NDArray[np.intp], r: Array) -> tuple[Array, Array]:
        return mass(start[left], r) - wanted[left], np.exp(_log_density(kernel, dimension, r) - largest)

    # Where the density ends in a zero, as at the edge of the tricube, steps shrink slowly.
    return increasing_root(excess, r, low, high, high.copy(), settled=1e-13)


def increasing_root(
    excess: Callable[[NDArray[np.intp], Array], tuple[Array, Array]],
    x: Array,
    low: Array,
    high: Array,
    scale: Array,
    settled: float,
) -> Array:
    """Roots of m increasing functions from x: Newton's method, bisection where it leaves [low, high].

    `excess` gives the functions of these numbers and their slopes at these places; x, low and high (m,) are
    overwritten. A step of Newton's method below settled · scale is the last.
    """
    left = np.arange(len(x))
    for step in range(_MOST_STEPS):
        before = x[left]
        value, slope = excess(left, before)
        low[left] = np.where(value > 0, low[left], before)
        high[left] = np.where(value > 0, before, high[left])
        steep = slope > np.abs(value) * 1e-290
        newton = before - np.divide(value, slope, out=np.full_like(before, np.inf), where=steep)
        inside = (newton > low[left]) & (newton < high[left]) & (step < _NEWTON_STEPS)
        x[left] = np.where(inside, newton, (low[left] + high[left]) / 2)
        last = inside & (np.abs(newton - before) < settled * scale[left])
        left = left[~(last | (high[left] - low[left] <= 1e-13 * (np.abs(before) + scale[left])))]
        if len(left) == 0:
            break
    return x


def _log_density(kernel: Kernel, dimension: int, r: Array) -> Array:
    """(d − 1) log r + log κ(r)."""
    log_kernel = log_values(kernel, r)
    if dimension == 1:
        return log_kernel
    return (dimension - 1) * np.log(np.maximum(r, np.finfo(np.float64).tiny)) + log_kernel

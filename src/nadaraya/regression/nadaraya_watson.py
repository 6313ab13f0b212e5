"""`NadarayaWatson`: kernel regression as a scikit-learn estimator."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from nadaraya.errors import must_be
from nadaraya.kernels import Kernel
from nadaraya.regression import intervals
from nadaraya.regression.bandwidth import Selected, select_for_regression
from nadaraya.regression.categories import numeric_columns
from nadaraya.regression.checks import generator_of, one_of, real_number, truth_value, whole_number
from nadaraya.regression.displays import PlotsCurve
from nadaraya.regression.estimator import MixedEstimator, over_blocks
from nadaraya.regression.intervals import bisquare_weights
from nadaraya.regression.local import EMPTY, LocalFit, filled
from nadaraya.regression.requests import Array, Means
from nadaraya.regression.sample import NeighbourScale, power_of_two
from nadaraya.regression.selection import Search
from nadaraya.regression.smoother import EquivalentKernels, PolynomialSmoother, Smoother
from nadaraya.regression.summary import Summary, goodness_of_fit, summary_of

_NAMES = ("constant", "linear", "quadratic", "cubic")  # of the degrees


@dataclass(eq=False, repr=False)
class NadarayaWatson(PlotsCurve, MultiOutputMixin, RegressorMixin, MixedEstimator):
    r"""Kernel regression of Nadaraya (1964) and Watson (1964), and its local linear form.

        f(x) = Σ_i s_i κ(‖(x − x_i) / h‖) y_i / Σ_j s_j κ(‖(x − x_j) / h‖)

    s are sample weights, h the bandwidth, one number per feature or one for all. With `degree=1` the fit is
    local linear: f(x) is the value at x of the line fitted with these weights, which has no bias from the
    slope at the edge of the data.

    All predictions take O(n + m) memory. On the CPU pairs are visited in tiles by compiled loops, those too
    far apart to count never, and in one dimension points are sorted. Kernels of the algebra without compiled
    loops, and other devices, go through PyTorch in blocks. The results are the same.

    Args:
        kernel: "gaussian" exp(−r²/2), "exponential", "matern32", "matern52", "epanechnikov", "tricube",
            "boxcar", or any symmetric kernel of `nadaraya.kernels`, of the distance r in units of the
            bandwidth. Default "gaussian".
        bandwidth: a positive number, or (d,), one per feature, in units of the features; or how to choose
            them: "aic", corrected AIC (Hurvich, Simonoff and Tsai 1998); "loo", leave-one-out squared error;
            both over all features' bandwidths at once, in O(n²) time per evaluation (O(n log n) in one
            dimension), of which most are on a few hundred of the points and about ten on all; "silverman" or
            "scott", rules of thumb, in O(n). Features that do not vary get inf, and up to three points what
            "scott" gives in place of "aic". Default "aic".
        degree: 0, local constant; 1, local linear; 2 and 3, local quadratic and cubic, which follow peaks
            better where points are many, by PyTorch in blocks, O(n²) whatever the kernel. Default 0.
        adaptive: k, to widen the bandwidth where points are rare: it is h times the distance from x to its
            k-th nearest neighbour (features divided by their standard deviation) over that distance's
            geometric mean at the points. Default None: the same everywhere.
        categorical: features that are categories: "from_dtype", the columns of a data frame whose type is
            "category" or strings; a list of columns or names; or a mask (d,). Each has a kernel of its own, a
            further factor of the weights, whose λ is at the feature's place in `bandwidth`: from 0, where
            other levels do not count, to the kernel's upper bound, where the feature plays no part. "aic" and
            "loo" choose λ with the bandwidths, and smooth out features that say nothing (Hall, Li and Racine
            2007). Levels that are not among the points differ from all. Default "from_dtype".
        ordered: categories whose levels have an order, in the same form: that of their numbers, or of the
            column's type. Columns of an ordered type need not be listed. Default None.
        category_kernel: "li-racine", 1 for equal levels, else λ, or λ^s for levels of an order whose ranks
            differ by s (Li and Racine 2007), with λ up to 1; or "probability", those whose values add up to
            1: 1 − λ, else λ / (c − 1) for c levels, with λ up to (c − 1) / c (Aitchison and Aitken 1976), and
            for an order 1 − λ, else (1 − λ) λ^s / 2 (Wang and van Ryzin 1981), which cannot quite smooth a
            feature out. Default "li-racine".
        missing: "raise", or "category": a missing value is a level of a category, which like levels not among
            the points has no rank; and for a number whether it is missing is a category. Its λ is in
            `missing_bandwidth_`, and a number that is missing in one of two points does not count in their
            distance. Default "raise".
        fit_kernel: also choose the kernel's own parameters, by the criterion of `bandwidth` or else "loo".
            Default False.
        robust_iterations: how often to fit again with less weight on points far from the last fit, those
            beyond six median residuals having none (Cleveland 1979); a bandwidth that is selected is selected
            again. For one target. 3 is usual; default 0, least squares.
        n_starts: the greatest number of descents, from the best of a screening of bandwidths. With the same
            seed and data more starts never end at a greater criterion, unless `robust_iterations` fit again.
            Default 7.
        selection_size: the most points on which "aic" and "loo" choose the bandwidth, at least 50; of more,
            so many drawn at random choose it, and it is carried over to all by the factor (selection_size /
            n)^(1/(d+4)). By 1,000 of 4,000 points the median mean squared error was 1.14 times that by all
            with "aic", 1.02 times with "loo" (experiments/bandwidth_search.py --sizes). Default None: all.
        empty: the prediction where every weight is exactly zero, as compact kernels have it far from all
            points: the "nearest" point's target, the weighted "mean" of the targets, "nan"; or "raise".
            Weights that merely underflow are no such case: the prediction is then their limit, the nearest
            point's. Default "nearest".
        device: where PyTorch computes, "cuda" for a GPU. Default None: the fastest way on the CPU.
        random_state: seed or generator of random starts, of the points that choose the bandwidth, and of the
            bootstrap. Default None: a bandwidth depends on the data alone, a bootstrap on NumPy's generator.
        verbose: 1 prints, every two seconds at most, how far searches and long predictions are. Default 0.

    Attributes:
        bandwidth_: (d,) h; λ for categories.
        missing_bandwidth_: λ of missing or not, for each feature of numbers in order if they may be missing.
            They may follow the d others in `bandwidth`.
        levels_: for each category, by name or column, the list of its levels.
        kernel_: the kernel as fitted, float64.
        selection_: how the bandwidth was chosen (`Selection`); None if it was given or came from a rule.
        X_: (n, d) the points, float32 or float64 as given; for categories the places in `levels_`, −2 for
            missing.
        y_: (n,) or (n, p) the targets, float64.
        sample_weight_: (n,) their weights.
        robust_weight_: (n,) what `robust_iterations` left of them, 0 to 1; all 1 without.
        n_features_in_: d.
        feature_names_in_: (d,) names of the features, where X had them.

    See Also:
        ChunkedNadarayaWatson: for more points than memory holds.
        MultiHeadKernelRegression: several bandwidths at once.
        NadarayaWatsonClassifier: for classes.
        NadarayaWatsonDensity: without targets.

    >>> from nadaraya.regression import NadarayaWatson
    >>> model = NadarayaWatson(bandwidth=1.0).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 4.0])
    >>> model.predict([[1.0]]).round(3).tolist()
    [1.548]
    >>> table = [["Bern", 0.0], ["Bern", 1.0], ["Oslo", 0.0]]
    >>> mixed = NadarayaWatson(bandwidth=[0.5, 1.0], categorical=[0]).fit(table, [1.0, 2.0, 6.0])
    >>> mixed.predict([["Bern", 0.0], ["Oslo", 0.0], ["Rome", 0.0]]).round(3).tolist()
    [2.475, 3.941, 3.151]
    """

    kernel: str | Kernel = "gaussian"
    bandwidth: float | ArrayLike | str = "aic"
    _: KW_ONLY
    degree: int = 0
    adaptive: int | None = None
    fit_kernel: bool = False
    robust_iterations: int = 0
    selection_size: int | None = None
    empty: str = "nearest"

    _criteria, _several_targets = ("aic", "loo"), True

    def _selected(self, points: Array, targets: Array, counts: Array, search: Search) -> Selected:
        truth_value("fit_kernel", self.fit_kernel)
        if self.selection_size is not None:
            search = replace(search, size=whole_number("selection_size", self.selection_size, 50))
        precision = counts / counts.max()
        precision *= len(precision) / precision.sum()
        smoother = self._first_smoother(points, precision)
        sample, degree = smoother.sample, whole_number("degree", self.degree, 0, 3)
        iterations = whole_number("robust_iterations", self.robust_iterations, 0)
        if iterations and targets.shape[1] > 1:
            raise must_be("robust_iterations", f"0 with {targets.shape[1]} targets", iterations)
        self._empty = one_of("empty", self.empty, EMPTY)
        if sample.categories and (self.fit_kernel or self.adaptive is not None):
            name = "fit_kernel" if self.fit_kernel else "adaptive"
            raise must_be(
                name, "left out where features are categories or numbers may be missing", getattr(self, name)
            )
        if sample.categories and degree > 1:
            raise must_be("degree", "0 or 1 where features are categories or numbers may be missing", degree)
        degree = degree if sample.x.shape[1] else 0  # lines are in numbers
        neighbours = None
        if self.adaptive is not None:
            k = whole_number("adaptive", self.adaptive)
            if k >= len(self._row_of):
                raise must_be("adaptive", f"a whole number below n_samples = {len(self._row_of)}", k)
            neighbours = NeighbourScale(sample, min(k, len(points) - 1)) if len(points) > 1 else None
        kind = PolynomialSmoother if degree > 1 else Smoother
        smoother = kind(sample, smoother.kernel, smoother.bandwidth, degree, neighbours)
        self._unit = power_of_two(targets)
        scaled = targets / self._unit
        self._centre = np.median(scaled, axis=0)  # one huge target must not take the others' digits
        self._mean = np.average(scaled, axis=0, weights=sample.counts)
        self._targets = scaled - self._centre
        robust, chosen, selection = np.ones(len(points)), smoother, None
        for turn in range(1 + iterations):
            if turn:
                robust = bisquare_weights(chosen, self._targets, precision)
                smoother = replace(smoother, sample=replace(sample, counts=precision * robust))
            chosen, selection = select_for_regression(
                self.bandwidth, smoother, self._targets, self.fit_kernel, search
            )
        self.robust_weight_ = np.where(self._row_of < 0, 0.0, robust[self._row_of])
        if selection is not None and selection.criterion == "aic":
            # It has the logarithm of the targets' variance, in their own units.
            selection = replace(selection, score=selection.score + 2 * float(np.log(self._unit).mean()))
        self._noise: intervals.Noise | None = None
        self._summary: Summary | None = None
        return chosen, selection

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()  # less what is made again on demand
        return state | {name: None for name in ("_noise", "_summary") if name in state}

    @over_blocks
    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """f(x), and how far targets scatter about it.

        Args:
            X: (m, d) points; a Dask array or DataFrame is answered lazily, with a Dask array.
            return_std: also return the local standard deviation of y given x: the squared residuals, each
                corrected for what its own point contributed to the fit (Ruppert, Wand, Holst and Hössjer
                1997), smoothed with the weights of the regression. It is the scatter of observations of
                average weight about f; how little is known of f, as far from the points, only `band` tells.
                NaN, with a warning, for a fit that goes through every observation. Default False.

        Returns:
            (m,) or (m, p); with `return_std` a pair of such arrays.

        See Also:
            NadarayaWatson.band: where the curve is.
            NadarayaWatson.loo_predictions: at the points, each without itself.

        >>> from nadaraya.regression import NadarayaWatson
        >>> X, y = [[0.0], [0.5], [1.0], [1.5], [2.0]], [0.0, 1.0, 0.0, 1.0, 0.0]
        >>> mean, scatter = NadarayaWatson(bandwidth=1.0).fit(X, y).predict([[1.0]], return_std=True)
        >>> mean.round(2).tolist(), scatter.round(2).tolist()
        ([0.44], [0.61])
        """
        query, smoother, columns = self._validated(X), self._smoother, self._targets.T
        found = smoother.fit(query, columns) if smoother.degree else smoother.means(query, columns)
        mean = self._as_targets(self._prediction(found))
        if not truth_value("return_std", return_std):
            return mean
        return mean, self._as_targets(np.sqrt(self._noise_model().variance(query)))

    @over_blocks
    def marginal_effects(self, X: ArrayLike, return_std: bool = False) -> Any:
        """∂f/∂x: the derivative of the prediction (degree 0), or the slope of the local polynomial.

        Args:
            X: (m, d) points; a Dask array or DataFrame is answered lazily, with a Dask array.
            return_std: also return standard errors, √(σ²(x) Σ_j L'_j(x)² / w_j) with the local variance of
                `predict`, as of `band(of="smooth")`: the bias of the derivative is no part of them. NaN where
                every weight is zero. Default False.

        Returns:
            (m, d), or (m, d, p) for several targets, 0 where every weight is zero and NaN for categories,
            which have no derivative; with `return_std` a pair of such arrays.

        Raises:
            InputError: for a local constant with adaptive bandwidths, whose own change with x is not known.

        See Also:
            NadarayaWatson.predict: the curve itself.

        >>> from nadaraya.regression import NadarayaWatson
        >>> model = NadarayaWatson(bandwidth=1.0, degree=1).fit([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0])
        >>> model.marginal_effects([[0.5]]).round(6).tolist()
        [[2.0]]
        """
        query, smoother, columns = self._validated(X), self._smoother, self._targets.T
        if smoother.degree == 0 and smoother.neighbours is not None:
            raise must_be("degree", "1 or more for marginal_effects with adaptive bandwidths", 0)
        slope = smoother.slopes(query, columns)
        per_unit = 1.0 / smoother.sample.unit[:, None]
        with np.errstate(over="ignore", under="ignore"):
            effects = self._as_effects(slope * per_unit)
        if not truth_value("return_std", return_std):
            return effects
        noise, deviation = self._noise_model(), np.zeros_like(slope)
        scatter = np.sqrt(noise.variance(query))
        for number in range(slope.shape[1]):
            kernels = EquivalentKernels(smoother, query, smoother.degree, number)
            norm = np.sqrt(kernels.combined_variance(noise.relative))
            deviation[:, number] = scatter * norm[:, None]
        deviation[smoother.means(query, columns).no_support] = np.nan
        return effects, self._as_effects(deviation * per_unit)

    def band(
        self,
        X: ArrayLike,
        level: float = 0.95,
        method: str = "pointwise",
        n_bootstrap: int = 999,
        *,
        of: str = "curve",
    ) -> tuple[Array, Array]:
        """A band for the curve.

        In `experiments/band_coverage.py` bands at level 0.95 cover what they are for with probability 0.95 to
        0.975; pointwise bands of "smooth" contain the curve itself with probability 0.86 to 0.92.

        Args:
            X: (m, d) points.
            level: probability of covering. Default 0.95.
            method: "pointwise", quantiles of Student's t with local degrees of freedom times the standard
                error √(σ²(x) Σ_j L_j(x)² / w_j) with the local variance of `predict`; "bootstrap", quantiles
                of |t| over draws of the residuals, scaled to the local standard deviation (Hall 1992, for
                each point alone); or "simultaneous", the same draws for all points of X at once, each as
                likely to be missed as any other (Beran 1988). Default "pointwise".
            n_bootstrap: draws. Default 999.
            of: "curve", what the targets scatter about: the band of the local quadratic (for degree 2 and
                more, of one degree more) with the same weights, the fit less its estimated bias (robust bias
                correction: Calonico, Cattaneo and Farrell 2018), in which `predict` need not lie. "smooth",
                about `predict`, for what the fit is on average, x ↦ E f(x), which is narrower and passes by
                peaks and valleys as the fit does. Default "curve".

        Returns:
            lower and upper, each (m,) or (m, p); NaN where every weight is zero, nothing is known there, and
            everywhere, with a warning, for a fit that goes through every observation.

        See Also:
            NadarayaWatson.predict: `return_std`, the scatter about the curve.
            NadarayaWatson.plot: draws it.

        >>> from nadaraya.regression import NadarayaWatson
        >>> X, y = [[0.0], [0.5], [1.0], [1.5], [2.0]], [0.0, 1.0, 0.0, 1.0, 0.0]
        >>> lower, upper = NadarayaWatson(bandwidth=1.0).fit(X, y).band([[1.0]], level=0.9)
        >>> lower.round(2).tolist(), upper.round(2).tolist()
        ([-0.34], [1.61])
        """
        query, smoother = self._validated(X), self._smoother
        level = real_number("level", level, "a number between 0 and 1", 0, 1)
        one_of("method", method, ("pointwise", "bootstrap", "simultaneous"))
        one_of("of", of, ("curve", "smooth"))
        fit = smoother.fit(query, self._targets.T)
        mean = self._prediction(fit)
        combined: Callable[[Array], Array] = partial(smoother.combined, fit, query)
        combined_variance: Callable[[Array], Array] = partial(smoother.combined_variance, fit, query)
        if of == "curve":
            kernels = EquivalentKernels(smoother, query, max(2, smoother.degree + 1))
            combined, combined_variance = kernels.combined, kernels.combined_variance
            mean = combined(self._targets.T) + self._centre
        uncertainty = intervals.Uncertainty(combined, combined_variance, self._noise_model(), query)
        draws: tuple[Any, ...] = ()
        if method != "pointwise":
            draws = whole_number("n_bootstrap", n_bootstrap), generator_of(self.random_state)
        half = getattr(uncertainty, method)(level, *draws)
        half[fit.no_support] = np.nan
        return self._as_targets(mean - half), self._as_targets(mean + half)

    def loo_predictions(self) -> Array:
        """(n,) or (n, p) the prediction of every observation from all the others, in closed form.

        See Also:
            NadarayaWatson.loo_score: their mean squared error.

        >>> from nadaraya.regression import NadarayaWatson
        >>> model = NadarayaWatson(bandwidth=100.0).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 5.0])
        >>> model.loo_predictions().round(2).tolist()  # nearly means of the others
        [3.0, 2.5, 0.5]
        """
        check_is_fitted(self)
        fit = self._smoother.fit(None, self._targets.T, exclude_self=True)
        mean, weightless = self._prediction(fit)[self._row_of], self._row_of < 0
        if weightless.any():  # they are in no fit
            mean[weightless] = self._prediction(self._smoother.fit(self.X_[weightless], self._targets.T))
        return self._as_targets(mean)

    def loo_score(self) -> float:
        """The weighted mean squared error of `loo_predictions`, averaged over targets.

        See Also:
            nadaraya.regression.selection.Selection: `bandwidth="loo"` makes it least.

        >>> from nadaraya.regression import NadarayaWatson
        >>> model = NadarayaWatson(bandwidth=100.0).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 5.0])
        >>> round(model.loo_score(), 2)
        10.5
        """
        left_out, shape = self.loo_predictions(), (len(self.y_), -1)
        with np.errstate(over="ignore", under="ignore"):
            errors = left_out.reshape(shape) / self._unit - self.y_.reshape(shape) / self._unit
            score = np.average(errors**2, axis=0, weights=self.sample_weight_) * self._unit * self._unit
            return float(score.mean())

    def _summarised(self) -> Summary:
        if self._summary is None:
            name = f"{type(self).__name__}, local {_NAMES[self._smoother.degree]}"
            fit = goodness_of_fit(self._smoother, self._targets, self._unit)
            self._summary = summary_of(name, self, fit)
        return self._summary

    def _noise_model(self) -> intervals.Noise:
        if self._noise is None:
            robust = bool(self.robust_weight_[self._row_of >= 0].min() < 1.0)
            self._noise = intervals.Noise.of(self._smoother, self._targets, *self._within(), robust)
        return self._noise

    def _within(self) -> tuple[Array, Array]:
        """Squares (n, p) within the targets, in their unit, and their degrees of freedom (n,)."""
        return np.zeros(self._targets.shape), np.zeros(len(self._targets))

    def _prediction(self, found: LocalFit | Means) -> Array:
        """(m, p) predictions with their centre, and what `empty` asks for."""
        mean = (found.mean if isinstance(found, LocalFit) else found.values) + self._centre
        return filled(mean, found.no_support, self._empty, self._mean)

    def _as_effects(self, slopes: Array) -> Array:
        """Slopes (m, f, p) by feature, NaN for categories."""
        effects = np.full((len(slopes), self.X_.shape[1], slopes.shape[2]), np.nan)
        effects[:, numeric_columns(self._smoother.sample.categories, self.X_.shape[1])] = slopes
        return self._as_targets(effects)

    def _as_targets(self, values: Array) -> Array:
        with np.errstate(over="ignore", under="ignore"):
            shaped = (values * self._unit)[..., 0] if self.y_.ndim == 1 else values * self._unit
            return shaped.astype(self.X_.dtype, copy=False)

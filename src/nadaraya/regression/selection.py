"""Bandwidths by optimisation of a criterion over all of them at once, from several starts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits

from nadaraya.regression.criteria import Criterion
from nadaraya.regression.requests import Array

# How far from the rule of thumb a bandwidth may go: down to almost no neighbour, up to where a feature plays
# no part.
_LEAST, _GREATEST = 1e-5, 1e4
# Multiples of `first`, in logarithms, that are looked at before any descent: a criterion may have several
# valleys, as with seasons, and no descent from a wide window finds the narrow ones.
_SCAN = np.log(2.0) * np.arange(-8, 4)


@dataclass(frozen=True)
class Start:
    """One run of the optimiser: its start, its end, the criterion there, and how many evaluations it took."""

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    score: float
    evaluations: int


@dataclass(frozen=True)
class Selection:
    """How bandwidths were chosen.

    Attributes:
        criterion: "loo" or "aic".
        score: the criterion at the chosen bandwidths: log of the leave-one-out squared error (over the
            variance of each target), AIC_c, or, for a density, minus the mean leave-one-out log-density up to
            a constant.
        starts: every run of the optimiser, best first; `start` and `end` in natural units.

    See Also:
        NadarayaWatson.summary: a fitted model in a few numbers.

    >>> from nadaraya.regression import NadarayaWatson
    >>> model = NadarayaWatson(bandwidth="loo").fit([[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 2.0, 3.0])
    >>> model.selection_.criterion, len(model.selection_.starts)
    ('loo', 3)
    """

    criterion: str
    score: float
    starts: Sequence[Start]


@dataclass(frozen=True)
class Search:
    """How the optimiser goes about it.

    Attributes:
        n_starts: number of runs.
        generator: of the starts beyond the scan's.
        report: called with a line after each run.
        keep_first: the first value is the user's own and is the first start.
    """

    n_starts: int
    generator: np.random.RandomState
    report: Callable[[str], None] | None = None
    keep_first: bool = False


def select(name: str, criterion: Criterion, first: Array, search: Search) -> Selection:
    """Minimises a criterion over positive numbers, in their logarithms, by L-BFGS-B.

    A scan of common multiples of `first` gives the starts: its minima, best first, then its other points.
    Starts beyond the scan are random, each number with a factor of its own. A criterion that does not depend
    smoothly on its arguments (its gradient vanishes: the boxcar) is minimised by the simplex method of Nelder
    and Mead.

    Args:
        name: of the criterion.
        criterion: (k,) logarithms to (value, gradient).
        first: (k,) natural units, finite.
        search: how many runs, and from where.

    Returns:
        The runs, best first.
    """
    criterion = _remembered(criterion)
    first = np.asarray(first, np.float64)
    bounds = np.log(np.stack([first * _LEAST, first * _GREATEST], axis=1))
    runs: list[Start] = []
    # Vectors this short gain nothing from BLAS's threads, which would wait for cores that the sums use.
    with threadpool_limits(1, "blas"):
        for start in _starts(criterion, np.log(first), search):
            runs.append(_run(criterion, np.clip(start, *bounds.T), bounds))
            if search.report is not None:
                ends = ", ".join(f"{value:.4g}" for value in runs[-1].end)
                search.report(
                    f"start {len(runs)} of {search.n_starts}: {name} {runs[-1].score:.6g} at {ends} "
                    f"({runs[-1].evaluations} evaluations)"
                )
    runs.sort(key=lambda run: run.score)
    return Selection(name, runs[0].score, tuple(runs))


def _remembered(criterion: Criterion) -> Criterion:
    """The criterion, evaluated once at each place: descents begin where the scan has been."""
    known: dict[bytes, tuple[float, Array]] = {}

    def remembered(arguments: Array) -> tuple[float, Array]:
        place = np.asarray(arguments).tobytes()
        if place not in known:
            known[place] = criterion(arguments)
        value, gradient = known[place]
        return value, gradient.copy()

    return remembered


def _starts(criterion: Criterion, first: Array, search: Search) -> list[Array]:
    """Logarithms (k,) from which to descend."""
    if search.keep_first and search.n_starts == 1:
        return [first]
    scores = np.array([criterion(first + shift)[0] for shift in _SCAN])
    padded = np.concatenate([[np.inf], scores, [np.inf]])
    is_minimum = (scores <= padded[:-2]) & (scores <= padded[2:])
    # Wider first among equals: where nothing tells bandwidths apart, the smoothest fit.
    ranked = np.lexsort([-_SCAN, scores, ~is_minimum])
    starts = [first + _SCAN[place] for place in ranked]
    if search.keep_first:
        starts.insert(0, first)
    while len(starts) < search.n_starts:
        starts.append(first + 1.2 * search.generator.standard_normal(len(first)))
    return starts[: search.n_starts]


def _run(criterion: Criterion, start: Array, bounds: Array) -> Start:
    if np.any(criterion(start)[1] != 0):
        options = {"maxfun": 150, "ftol": 1e-10}
        found = minimize(criterion, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    else:
        options = {"maxfev": 200 * len(start), "xatol": 1e-3, "fatol": 1e-6}
        found = minimize(
            lambda x: criterion(x)[0], start, method="Nelder-Mead", bounds=bounds, options=options
        )
    return Start(np.exp(start), np.exp(found.x), float(criterion(found.x)[0]), int(found.nfev))

"""Bandwidths by optimisation of a criterion over all of them at once, from several starts.

Screening looks at many points and descends from none. Descents follow one after the other; one that will not
get below the best before it is given up, so that what more starts find is never worse. Where points are many
this is done on some of them, and each descent that was the best so far goes on with more.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.optimize import OptimizeResult, minimize
from threadpoolctl import threadpool_limits

from nadaraya.regression.criteria import Criterion
from nadaraya.regression.requests import Array

# How far from the rule of thumb a bandwidth may go: down to almost no neighbour, up to where a feature plays
# no part.
_LEAST, _GREATEST = 1e-5, 1e4
# Multiples of `first`, in logarithms, that are looked at before any descent: a criterion may have several
# valleys, as with seasons, and no descent from a wide window finds the narrow ones.
_SCAN = np.log(2.0) * np.arange(-8, 4)
# Multiples for a search feature by feature, and the one at which a feature plays next to no part.
_NARROW, _WIDE = (-2.0, -1.0, 0.0), float(np.log(8.0))
# Random points: a feature is wide with this probability, else its logarithm is uniform between these.
_SHARE_WIDE, _BETWEEN = 0.4, (-1.6, 0.7)
_RANDOM_POINTS = 24
# A descent goes on while it would be the best after so many more steps like the last.
_HOPE = 3.0
_ROUGH, _FINE = 1e-5, 1e-7  # relative decrease of the criterion at which a descent ends
# Ends this near to each other, in logarithms, are one place to go on from.
_SAME = 0.05
_SECONDS_BETWEEN_REPORTS = 2.0


@dataclass(frozen=True)
class Start:
    """One run of the optimiser.

    Attributes:
        start: (k,) where it began.
        end: (k,) where it ended: at a minimum, or where it was given up.
        score: the criterion there.
        evaluations: how many the run took.
    """

    start: Array
    end: Array
    score: float
    evaluations: int

    def changed(self, change: Callable[[Array], Array]) -> "Start":
        """The run in other terms, as other units."""
        return replace(self, start=change(self.start), end=change(self.end))


@dataclass(frozen=True)
class Selection:
    """Record of a bandwidth selection.

    Attributes:
        criterion: "loo" or "aic".
        score: the criterion at the chosen bandwidths: log of the leave-one-out squared error (over the
            variance of each target), AIC_c, or, for a density, minus the mean leave-one-out log-density up to
            a constant; over `size` points.
        starts: the runs of the optimiser, the chosen one first; `start` and `end` in natural units. Where
            the search began on some of the points these are the runs of the last stage.
        size: the number of points on which the criterion was minimised in the end.
        evaluations: of the criterion, over all runs, on however many points.

    See Also:
        NadarayaWatson.summary: a fitted model in a few numbers.

    >>> from nadaraya.regression import NadarayaWatson
    >>> model = NadarayaWatson(bandwidth="loo").fit([[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 2.0, 3.0])
    >>> model.selection_.criterion, model.selection_.size
    ('loo', 4)
    """

    criterion: str
    score: float
    starts: Sequence[Start]
    size: int
    evaluations: int

    def _changed(self, change: Callable[[Array], Array]) -> "Selection":
        """The selection in other terms, as other units."""
        return replace(self, starts=tuple(run.changed(change) for run in self.starts))


@dataclass(frozen=True)
class Search:
    """Settings of the optimiser."""

    n_starts: int  # the greatest number of runs
    generator: np.random.RandomState  # of random starts, and of the points of smaller stages
    report: Callable[[str], None] | None = None  # called with a line now and then, and after each stage
    # the first value is the user's own and is the first start; the numbers are no bandwidths of features
    # alone, so that none is moved by itself
    keep_first: bool = False
    size: int | None = None  # the most points on which a criterion is minimised; None for all


@dataclass(frozen=True)
class Stage:
    """A criterion over some of the points."""

    criterion: Criterion  # (k,) logarithms to (value, gradient)
    size: int  # how many points
    widening: float = 1.0  # best bandwidths at this stage over those for all points, by their known rate


def select(name: str, stages: Sequence[Stage], first: Array, search: Search) -> Selection:
    """Minimise a criterion over positive numbers, in their logarithms, by L-BFGS-B from several starts.

    The first stage looks at common multiples of `first`, natural units (k,); it moves one feature at a time,
    from where all are wide and from the best common multiple; and it looks at random points. Runs begin from
    the best of each. Later stages begin where the runs of the stage before ended that were the best so far. A
    criterion that does not depend smoothly on its arguments (its gradient vanishes: the boxcar) is minimised
    by the simplex method of Nelder and Mead.

    With the same stages and seed the starts of a search with fewer runs are the first of one with more, and
    what is done with a run depends on the runs before it alone: more runs never end at a greater value.
    """
    first = np.asarray(first, np.float64)
    evaluations = 0
    runs: list[Start] = []
    # Vectors this short gain nothing from BLAS's threads, which would wait for cores that the sums use.
    with threadpool_limits(1, "blas"):
        for stage in stages:
            unit = np.log(first * stage.widening)
            descent = _Descent(name, stage, unit, search.report, _FINE if stage is stages[-1] else _ROUGH)
            starts = _carried(descent, runs, first) if runs else _starts(descent, len(first), search)
            runs = [run.changed(partial(np.multiply, 1.0 / stage.widening)) for run in descent.race(starts)]
            evaluations += descent.evaluations
            if search.report is not None:
                search.report(f"{stage.size:,} points: {descent.progress()}")
    runs.sort(key=lambda run: run.score)
    return Selection(name, runs[0].score, tuple(runs), stages[-1].size, evaluations)


class _Descent:
    """A criterion as a function of logarithms of multiples of `unit` (k,), evaluated once at each place."""

    def __init__(
        self, name: str, stage: Stage, unit: Array, report: Callable[[str], None] | None, tolerance: float
    ) -> None:
        self.evaluations = 0
        self._name, self._stage, self._unit, self._tolerance = name, stage, unit, tolerance
        self._bounds = np.tile(np.log([_LEAST, _GREATEST]), (len(unit), 1))
        self._report, self._reported = report, time.monotonic()
        self._values: dict[bytes, float] = {}
        self._gradients: dict[bytes, Array] = {}
        self._best: tuple[float, Array] = (np.inf, unit)

    def value(self, at: Array) -> float:
        """The criterion."""
        if at.tobytes() not in self._values:
            self._evaluate(at, False)
        return self._values[at.tobytes()]

    def value_and_gradient(self, at: Array) -> tuple[float, Array]:
        """The criterion and its gradient."""
        if at.tobytes() not in self._gradients:
            self._evaluate(at, True)
        return self._values[at.tobytes()], self._gradients[at.tobytes()].copy()

    def progress(self) -> str:
        """The number of evaluations and the best so far."""
        value, at = self._best
        factors = ", ".join(f"{factor:.3g}" for factor in np.exp(at))
        best = f"best {self._name} {value:.6g} at {factors} times the first values"
        return f"{self.evaluations} evaluations, {best}"

    def race(self, starts: Iterable[Array]) -> list[Start]:
        """A run from each start (k,) in turn; one that is better than all before it is complete."""
        runs: list[Start] = []
        best = np.inf
        for start in starts:
            run = self._run(start, best)
            if run.score < best and runs:
                # What was evaluated is known, so that the way to where the run stands costs nothing.
                run = self._run(start, np.inf)
            best = min(best, run.score)
            runs.append(run)
        return runs

    def _run(self, start: Array, rival: float) -> Start:
        """Descends to the end, or until it is given up because it will not get below `rival`, roughly."""
        bounds = self._bounds
        start = np.clip(start, *bounds.T)
        smooth = bool(np.any(self.value_and_gradient(start)[1] != 0))
        hopeless = _hopeless(rival, 1 if smooth else 2 * len(start))
        if smooth:
            tolerance = _ROUGH if np.isfinite(rival) else self._tolerance
            options = {"maxfun": 150, "ftol": tolerance}
            both, method = self.value_and_gradient, "L-BFGS-B"
            found = minimize(both, start, (), method, True, bounds=bounds, options=options, callback=hopeless)
        else:
            options = {"maxfev": 200 * len(start), "xatol": 1e-3, "fatol": 1e-6}
            value, method = self.value, "Nelder-Mead"
            found = minimize(value, start, (), method, bounds=bounds, options=options, callback=hopeless)
        score = self.value(np.asarray(found.x))
        return Start(np.exp(self._unit + start), np.exp(self._unit + found.x), score, int(found.nfev))

    def _evaluate(self, at: Array, with_gradient: bool) -> None:
        place = at.tobytes()
        self._values[place], gradient = self._stage.criterion(self._unit + at, with_gradient)
        if with_gradient:
            self._gradients[place] = gradient
        self.evaluations += 1
        if self._values[place] < self._best[0]:
            self._best = self._values[place], at.copy()
        if self._report is not None and time.monotonic() - self._reported > _SECONDS_BETWEEN_REPORTS:
            self._report(f"{self._stage.size:,} points: {self.progress()} so far")
            self._reported = time.monotonic()


def _hopeless(rival: float, stride: int) -> Callable[[OptimizeResult], None]:
    """End a run that would stay above a rival even after several more steps like the last."""
    values: list[float] = []

    def callback(intermediate_result: OptimizeResult) -> None:
        values.append(float(intermediate_result.fun))
        if len(values) > stride:
            decrease = values[-1 - stride] - values[-1]
            if values[-1] - _HOPE * decrease > rival:
                raise StopIteration

    return callback


def _carried(descent: _Descent, runs: Sequence[Start], first: Array) -> list[Array]:
    """Logarithms (k,) of multiples from which another stage goes on, for every run that was the best so far.

    More points may show what was too narrow to be seen: a narrower common multiple that is better takes its
    place.
    """
    places: list[Array] = []
    best = np.inf
    for run in runs:
        if run.score >= best:
            continue
        best = run.score
        # Where a feature plays no part nothing would bring it back.
        end = np.minimum(np.log(run.end / first), _WIDE)
        narrower = [np.full(len(first), shift) for shift in _SCAN if shift < end.min() - 1.0]
        place = min([end, *narrower], key=descent.value)
        if all(np.abs(place - other).max() > _SAME for other in places):
            places.append(place)
    return places


def _starts(descent: _Descent, k: int, search: Search) -> list[Array]:
    """Logarithms (k,) of multiples from which to descend, at most as many as wanted, none of them twice."""
    if search.keep_first and search.n_starts == 1:
        return [np.zeros(k)]
    scores = np.array([descent.value(np.full(k, shift)) for shift in _SCAN])
    padded = np.concatenate([[np.inf], scores, [np.inf]])
    is_minimum = (scores <= padded[:-2]) & (scores <= padded[2:])
    # Wider first among equals: where nothing tells bandwidths apart, the smoothest fit.
    ranked = [np.full(k, _SCAN[place]) for place in np.lexsort([-_SCAN, scores, ~is_minimum])]
    if search.keep_first:
        starts = [np.zeros(k), *ranked]
    elif k == 1:
        starts = ranked[: max(int(is_minimum.sum()), 2)]
    else:
        common = ranked[0]
        starts = [
            common,
            _one_by_one(descent, np.full(k, _WIDE), _NARROW),
            _one_by_one(descent, np.minimum(common, 0.0), (_WIDE,)),
        ]
        starts = sorted(starts, key=descent.value)
    if search.n_starts > len(starts):
        others = _random_points(k, max(_RANDOM_POINTS, search.n_starts), search.generator)
        if k > 1:
            others[:_RANDOM_POINTS] = sorted(others[:_RANDOM_POINTS], key=descent.value)
        starts += others
    distinct = {start.tobytes(): start for start in starts}
    return list(distinct.values())[: search.n_starts]


def _one_by_one(descent: _Descent, start: Array, multiples: Sequence[float]) -> Array:
    """The best point of a search that gives one feature after the other each of these multiples."""
    for feature in range(len(start)):
        trials = [start]
        for multiple in multiples:
            trial = start.copy()
            trial[feature] = multiple
            trials.append(trial)
        start = min(trials, key=descent.value)
    return start


def _random_points(k: int, count: int, generator: np.random.RandomState) -> list[Array]:
    """Points (k,), of which more begin with the same."""
    least, greatest = _BETWEEN
    where, wide = generator.random_sample((count, 2, k)).swapaxes(0, 1)
    return list(np.where(wide < _SHARE_WIDE, _WIDE, least + (greatest - least) * where))

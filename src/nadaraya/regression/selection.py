"""Bandwidths by optimisation of a criterion over all of them at once, from several starts.

Screening looks at many points and descends from none; a few short descents follow, of which the best go on
(successive halving); where points are many this is done on some of them, and the result goes on with more.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
# Multiples for a search feature by feature, and the one at which a feature plays next to no part.
_NARROW, _WIDE = (-2.0, -1.0, 0.0), float(np.log(8.0))
# Random points: a feature is wide with this probability, else its logarithm is uniform between these.
_SHARE_WIDE, _BETWEEN = 0.4, (-1.6, 0.7)
_RANDOM_POINTS = 24
# Descents in steps: at most so many evaluations each, after which so many of the best go on.
_STEPS = ((5, 3), (6, 1))
_ROUGH, _FINE = 1e-5, 1e-9  # relative decrease of the criterion at which a descent ends
_SECONDS_BETWEEN_REPORTS = 2.0


@dataclass(frozen=True)
class Start:
    """One run of the optimiser.

    Attributes:
        start: (k,) where it began.
        end: (k,) where it ended: at a minimum, or where it was given up for a better one.
        score: the criterion there.
        evaluations: how many the run took.
    """

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    score: float
    evaluations: int

    def times(self, factor: float) -> "Start":
        """The run with other units."""
        return replace(self, start=factor * self.start, end=factor * self.end)


@dataclass(frozen=True)
class Selection:
    """How bandwidths were chosen.

    Attributes:
        criterion: "loo" or "aic".
        score: the criterion at the chosen bandwidths: log of the leave-one-out squared error (over the
            variance of each target), AIC_c, or, for a density, minus the mean leave-one-out log-density up to
            a constant; over `size` points.
        starts: the runs of the optimiser, the chosen one first; `start` and `end` in natural units. Where
            the search began on some of the points there is one run, that of the last stage.
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


@dataclass(frozen=True)
class Search:
    """How the optimiser goes about it.

    Attributes:
        n_starts: the greatest number of runs.
        generator: of random starts, and of the points of smaller stages.
        report: called with a line now and then, and after each stage.
        keep_first: the first value is the user's own and is the first start; the numbers are no bandwidths of
            features alone, so that none is moved by itself.
        size: the most points on which a criterion is minimised; None for all.
    """

    n_starts: int
    generator: np.random.RandomState
    report: Callable[[str], None] | None = None
    keep_first: bool = False
    size: int | None = None


@dataclass(frozen=True)
class Stage:
    """A criterion over some of the points.

    Attributes:
        criterion: (k,) logarithms to (value, gradient).
        size: how many points.
        widening: best bandwidths at this stage over those for all points, by their known rate.
    """

    criterion: Criterion
    size: int
    widening: float = 1.0


def select(name: str, stages: Sequence[Stage], first: Array, search: Search) -> Selection:
    """Minimises a criterion over positive numbers, in their logarithms, by L-BFGS-B.

    The first stage looks at common multiples of `first`; it moves one feature at a time, from where all are
    wide and from the best common multiple; and it looks at random points. Runs begin from the best of each,
    and the best runs go on. Later stages begin from the best end of the stage before. A criterion that does
    not depend smoothly on its arguments (its gradient vanishes: the boxcar) is minimised by the simplex
    method of Nelder and Mead.

    Args:
        name: of the criterion.
        stages: from the fewest points to the most.
        first: (k,) natural units, finite, for all points.
        search: how many runs, and from where.

    Returns:
        The runs, best first.
    """
    first = np.asarray(first, np.float64)
    evaluations = 0
    runs: list[Start] = []
    # Vectors this short gain nothing from BLAS's threads, which would wait for cores that the sums use.
    with threadpool_limits(1, "blas"):
        for stage in stages:
            unit = np.log(first * stage.widening)
            descent = _Descent(name, stage, unit, search.report, _FINE if stage is stages[-1] else _ROUGH)
            if runs:
                runs = [descent.run(min(_carried(runs, first), key=descent.value))]
            else:
                runs = _search(descent, _starts(descent, len(first), search))
            runs = [run.times(1.0 / stage.widening) for run in runs]
            evaluations += descent.evaluations
            if search.report is not None:
                search.report(f"{stage.size:,} points: {descent.progress()}")
    return Selection(name, runs[0].score, tuple(runs), stages[-1].size, evaluations)


class _Descent:
    """A criterion as a function of logarithms of multiples of `unit`, evaluated once at each place.

    Args:
        name: of the criterion.
        stage: the criterion.
        unit: (k,) logarithms.
        report: as in `Search`.
        tolerance: relative decrease at which a complete run ends.
    """

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

    def run(self, start: Array, limit: int | None = None, so_far: Start | None = None) -> Start:
        """Descends, to the end or for at most about so many evaluations.

        Args:
            start: (k,) where to begin.
            limit: on the evaluations; None for none but that of a search that leads nowhere.
            so_far: the run that goes on; None for a new one.
        """
        start = np.clip(start, *self._bounds.T)
        tolerance = self._tolerance if limit is None else _ROUGH
        if np.any(self.value_and_gradient(start)[1] != 0):
            options = {"maxfun": limit or 150, "ftol": tolerance}
            both, bounds = self.value_and_gradient, self._bounds
            found = minimize(both, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        else:
            options = {"maxfev": (limit or 200) * len(start), "xatol": 1e-3, "fatol": 1e-6}
            found = minimize(self.value, start, method="Nelder-Mead", bounds=self._bounds, options=options)
        origin = np.exp(self._unit + start) if so_far is None else so_far.start
        spent = 0 if so_far is None else so_far.evaluations
        score, evaluations = self.value(np.asarray(found.x)), spent + int(found.nfev)
        return Start(origin, np.exp(self._unit + found.x), score, evaluations)

    def further(self, run: Start, limit: int | None = None) -> Start:
        """Takes a run further."""
        return self.run(np.log(run.end) - self._unit, limit, run)

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


def _search(descent: _Descent, starts: Sequence[Array]) -> list[Start]:
    """Runs from the starts, best first; the best is complete."""
    if len(starts) == 1:
        return [descent.run(starts[0])]
    limit, keep = _STEPS[0]
    runs = sorted((descent.run(start, limit) for start in starts), key=lambda run: run.score)
    for further, fewer in (*_STEPS[1:], (None, 1)):
        runs[:keep] = [descent.further(run, further) for run in runs[:keep]]
        runs.sort(key=lambda run: run.score)
        keep = fewer
    return runs


def _carried(runs: Sequence[Start], first: Array) -> list[Array]:
    """Logarithms (k,) of multiples at which another stage may begin: the best ends, and narrower windows.

    More points may show what was too narrow to be seen.
    """
    # Where a feature plays no part nothing would bring it back.
    ends = [np.minimum(np.log(run.end / first), _WIDE) for run in runs[:2]]
    return ends + [np.full(len(first), shift) for shift in _SCAN if shift < ends[0].min() - 1.0]


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
            _one_by_one(descent, np.full(k, _WIDE), (*_NARROW, _WIDE), 2),
            _one_by_one(descent, np.minimum(common, 0.0), (_WIDE,), 1),
        ]
        starts = sorted(starts, key=descent.value)
    if search.n_starts > len(starts):
        others = _random_points(k, max(_RANDOM_POINTS, search.n_starts), search.generator)
        starts += sorted(others, key=descent.value) if k > 1 else others
    distinct = {start.tobytes(): start for start in starts}
    return list(distinct.values())[: search.n_starts]


def _one_by_one(descent: _Descent, start: Array, multiples: Sequence[float], sweeps: int) -> Array:
    """The best point of a search that gives one feature after the other each of these multiples."""
    for _ in range(sweeps):
        before = start
        for feature in range(len(start)):
            trials = [start]
            for multiple in multiples:
                trial = start.copy()
                trial[feature] = multiple
                trials.append(trial)
            start = min(trials, key=descent.value)
        if start is before:
            break
    return start


def _random_points(k: int, count: int, generator: np.random.RandomState) -> list[Array]:
    narrow = generator.uniform(*_BETWEEN, size=(count, k))
    return list(np.where(generator.random_sample((count, k)) < _SHARE_WIDE, _WIDE, narrow))

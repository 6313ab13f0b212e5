"""Bandwidths by optimisation of a criterion over all of them at once, from several starts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from nadaraya.regression.criteria import Criterion

Array = NDArray[np.floating]

# How far from the rule of thumb a bandwidth may go: down to almost no neighbour, up to where a feature plays
# no part.
_LEAST, _GREATEST = 1e-5, 1e4
# Later starts, as multiples of the first.
_STARTS = (1.0, 1 / 3, 3.0)


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
        criterion: "loo", "aic" or "likelihood".
        score: the criterion at the chosen bandwidths: log of the leave-one-out squared error (over the
            variance of each target), AIC_c, or minus the mean leave-one-out log-density up to a constant.
        starts: every run of the optimiser, best first; `start` and `end` in natural units.
    """

    criterion: str
    score: float
    starts: Sequence[Start]


def select(
    name: str,
    criterion: Criterion,
    first: Array,
    num_starts: int,
    generator: np.random.RandomState,
    report: Callable[[str], None] | None = None,
) -> Selection:
    """Minimises a criterion over positive numbers, in their logarithms, by L-BFGS-B.

    The first start is `first`, the second and third a third and three times of it, further ones random
    multiples, each its own for every number. A criterion that does not depend smoothly on its arguments (its
    gradient vanishes
    at every start: the boxcar) is minimised by the simplex method of Nelder and Mead.

    Args:
        name: of the criterion.
        criterion: (k,) logarithms to (value, gradient).
        first: (k,) natural units, finite.
        num_starts: how many runs.
        generator: of the random starts.
        report: called with a line after each run.

    Returns:
        The runs, best first.
    """
    first = np.asarray(first, np.float64)
    bounds = np.log(np.stack([first * _LEAST, first * _GREATEST], axis=1))
    runs = []
    for number in range(num_starts):
        factor = (
            _STARTS[number] if number < len(_STARTS) else np.exp(1.2 * generator.standard_normal(len(first)))
        )
        start = np.clip(np.log(first * factor), *bounds.T)
        smooth = np.any(criterion(start)[1] != 0)
        if smooth:
            found = minimize(
                criterion,
                start,
                jac=True,
                method="L-BFGS-B",
                bounds=bounds,
                options={"maxfun": 150, "ftol": 1e-10},
            )
        else:
            found = minimize(
                lambda arguments: criterion(arguments)[0],
                start,
                method="Nelder-Mead",
                bounds=bounds,
                options={"maxfev": 200 * len(first), "xatol": 1e-3, "fatol": 1e-6},
            )
        runs.append(Start(np.exp(start), np.exp(found.x), float(found.fun), int(found.nfev)))
        if report is not None:
            ends = ", ".join(f"{value:.4g}" for value in runs[-1].end)
            report(
                f"start {number + 1} of {num_starts}: {name} {found.fun:.6g} at {ends} "
                f"({found.nfev} evaluations)"
            )
    runs.sort(key=lambda run: run.score)
    return Selection(name, runs[0].score, tuple(runs))

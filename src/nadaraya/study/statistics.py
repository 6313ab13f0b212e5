"""Statistics of studies: intervals over seeds, scaling laws, shares of compute, gaps over horizons.

Intervals of 95 % are Student's t over seeds: the variances of the means of cells, a variant at a size each,
are propagated to a figure, with the degrees of freedom of Satterthwaite (1946). That of one mean is mean ±
t(n − 1) s / √n, that of a difference of two Welch's. Gaps, seed by seed, have the deviation of all variants
together: three seeds of one alone may agree by luck. The law L(C) = E + A C^−α is fitted to logarithms
(Kaplan et al. 2020; Hoffmann et al. 2022 for the floor E).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

FLOOR_FROM = 5  # sizes from which a floor is fitted: three parameters need more points than that
LEVEL = 0.95
_NEAR = 0.05  # logarithms of compute or updates within which no law or trend is told
_GRID = 64  # floors that are tried before the best of them is refined
_NEAREST = 1e-6  # of the lowest loss: logarithms of what is above the floor must stay finite
Cells = Sequence[Sequence[float]]  # the losses of the seeds, size by size


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval, None where nothing tells how far it varies.

    Args:
        value: the figure.
        low: lower end of the interval of 95 %.
        high: upper end.

    >>> from nadaraya.study.statistics import Estimate
    >>> Estimate(0.74, 0.69, 0.80).text()
    '0.74 (0.69–0.80)'
    """

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends, where there are any."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def side_of(self, reference: float) -> int:
        """−1 where the interval is below a reference, 1 where it is above, 0 where it holds the reference."""
        low, high = self.interval or (reference, reference)
        return int(low > reference) - int(high < reference)

    def text(self, digits: int = 2, times: str = "") -> str:
        """Value and interval, with so many decimals."""
        shown = f"{self.value:.{digits}f}{times}"
        return shown if self.low is None else f"{shown} ({self.low:.{digits}f}–{self.high:.{digits}f})"


def signed(estimate: Estimate) -> str:
    """A difference and its interval, with their signs."""
    interval = "" if estimate.low is None else f" ({estimate.low:+.4f} to {estimate.high:+.4f})"
    return f"{estimate.value:+.4f}{interval}"


def mean_with_interval(values: Sequence[float]) -> Estimate:
    """The mean and its interval of 95 % by Student's t; without an interval for one value.

    >>> from nadaraya.study.statistics import mean_with_interval
    >>> mean_with_interval([1.0, 2.0, 3.0]).text()
    '2.00 (-0.48–4.48)'
    """
    return _estimates(lambda means: means, [values])[0]


@dataclass(frozen=True)
class Deviation:
    """Standard deviation of gaps to one baseline at a horizon, and its degrees of freedom."""

    size: float
    freedom: float

    @classmethod
    def of(cls, gaps: Cells) -> "Deviation | None":
        """Pooled over variants; None where none has two seeds.

        All gaps contain the baseline's own runs, which alone correlates two of them by 1/2; K variants then
        count as K / (1 + (K − 1) / 4) of them.
        """
        several = [gap for gap in gaps if len(gap) > 1]
        if not several:
            return None
        freedom = sum(len(gap) - 1 for gap in several)
        squares = sum(float(np.var(gap)) * len(gap) for gap in several)
        return cls(math.sqrt(squares / freedom), freedom / (1 + (len(several) - 1) / 4))

    def around(self, values: Sequence[float]) -> Estimate:
        """The mean of gaps and its interval of 95 %; without an interval for one gap."""
        from scipy.stats import t

        value = float(np.mean(values))
        if len(values) == 1:
            return Estimate(value)
        half = float(t.ppf((1 + LEVEL) / 2, self.freedom)) * self.size / len(values) ** 0.5
        return Estimate(value, value - half, value + half)


def _estimates(
    figures: Callable[[np.ndarray], np.ndarray], cells: Cells, known: bool | None = None
) -> list[Estimate]:
    """Figures of the means of cells, with intervals where `known`: by default where all have two seeds."""
    from scipy.stats import t

    means, counts = np.array([np.mean(cell) for cell in cells]), np.array([len(cell) for cell in cells])
    values = figures(means).tolist()
    if not (counts.min() > 1 if known is None else known):
        return [Estimate(value) for value in values]
    errors = [np.std(cell, ddof=1) / len(cell) ** 0.5 if len(cell) > 1 else 0.0 for cell in cells]
    effects = [(figures(means + step) - figures(means - step)) / 2 for step in np.diag(errors)]
    variances = np.square(effects)  # (cells, figures)
    total, spread = variances.sum(0), (variances**2 / np.maximum(counts - 1, 1)[:, None]).sum(0)
    freedom = np.divide(total**2, spread, out=np.ones_like(total), where=spread > 0)
    half = (t.ppf((1 + LEVEL) / 2, freedom) * np.sqrt(total)).tolist()
    return [
        Estimate(value) if math.isnan(reach) else Estimate(value, value - reach, value + reach)
        for value, reach in zip(values, half, strict=True)
    ]


@dataclass(frozen=True)
class PowerLaw:
    """L(C) = E + A C^−α.

    Args:
        scale: A, in nats/token at C = 1 of the unit that it was fitted in.
        exponent: α.
        floor: E in nats/token, default 0.

    >>> from nadaraya.study.statistics import PowerLaw
    >>> PowerLaw(scale=8.0, exponent=0.5)(16.0)
    2.0
    """

    scale: float
    exponent: float
    floor: float = 0.0

    def __call__(self, compute: float) -> float:
        """The loss at a compute."""
        return float(self.floor + self.scale * compute**-self.exponent)


def fit_power_law(
    compute: Sequence[float], loss: Sequence[float] | np.ndarray, below: float = math.inf
) -> PowerLaw:
    """The power law of some losses, from five sizes on with a floor; nan where compute is level.

    Given the floor, scale and exponent are those of the line of least squares through the logarithms of what
    is above it; the floor is the one with the least squares of the losses' logarithms.

    Args:
        compute: of each size, positive, in any unit.
        loss: the mean loss at each size, positive.
        below: what E stays under, as it does under all losses; default nothing else.

    >>> from nadaraya.study.statistics import fit_power_law
    >>> law = fit_power_law([1.0, 10.0, 100.0], [4.0, 2.0, 1.0])
    >>> round(law.scale, 6), round(law.exponent, 5)
    (4.0, 0.30103)
    """
    logs, losses = np.log(np.asarray(compute, float)), np.asarray(loss, float)

    def law(lowest: float) -> PowerLaw:
        above = np.log(losses - lowest)
        slope = _slope(logs, above)
        return PowerLaw(_exp(above.mean() - slope * logs.mean()), -slope, lowest)

    def misfit(lowest: float) -> float:
        found = law(lowest)
        fitted = np.log(lowest + found.scale * np.exp(-found.exponent * logs))
        return float(np.square(fitted - np.log(losses)).sum())

    plain = law(0.0)
    if len(logs) < FLOOR_FROM or math.isnan(plain.exponent):
        return plain
    from scipy.optimize import minimize_scalar

    tried = min(losses.min(), below) * (1.0 - np.geomspace(1.0, _NEAREST, _GRID))
    best = int(np.argmin([misfit(lowest) for lowest in tried]))
    ends = tried[max(best - 1, 0)], tried[min(best + 1, _GRID - 1)]
    found = minimize_scalar(misfit, bounds=ends, method="bounded", options={"xatol": 1e-9 * tried[-1]}).x
    return law(float(min(found, tried[best], key=misfit)))


def _slope(logs: np.ndarray, values: np.ndarray) -> float:
    """The slope of the line of least squares; nan where the `logs` are too near each other to tell one."""
    centred = logs - logs.mean()
    return float(centred @ values / (centred @ centred)) if np.ptp(logs) > _NEAR else math.nan


def exponent_of(compute: Sequence[float], cells: Cells) -> Estimate:
    """α of the law of a variant, from compute and losses of the seeds size by size, with its interval."""
    return _estimates(lambda means: np.array([fit_power_law(compute, means).exponent]), cells)[0]


@dataclass(frozen=True)
class Comparison:
    """A variant against the baseline, at the sizes that both have.

    A share is the variant's compute over that at which the baseline has the variant's loss: 0.8 says "the
    same loss with 0.8 of the compute". There is none without a law of the baseline.
    """

    difference: list[Estimate]  # of the mean losses at each size, variant minus baseline
    share: list[Estimate] | None  # at each size
    mean_share: Estimate | None  # their geometric mean
    trend: Estimate | None  # factor by which the share changes at ten times the compute
    seeds: int  # the fewest that a cell has

    @property
    def deciding(self) -> Estimate | None:
        """The share over all sizes, or that at the largest where the former is a difference that passes.

        It passes where the share has a trend and is not on the same side of 1 at the largest size.
        """
        if self.mean_share is None or self.trend is None or not self.share:
            return self.mean_share
        whole, last = self.mean_share.side_of(1.0), self.share[-1].side_of(1.0)
        return self.share[-1] if self.trend.side_of(1.0) and whole not in (0, last) else self.mean_share

    @property
    def side(self) -> int:
        """−1 where the variant is better than the baseline, 1 where worse, 0 where neither is significant."""
        if self.deciding is not None:
            return self.deciding.side_of(1.0)
        sides = {estimate.side_of(0.0) for estimate in self.difference}
        return sides.pop() if len(sides) == 1 else 0


def compare(
    baseline: tuple[Sequence[float], Cells],
    variant: tuple[Sequence[float], Cells],
    reference: tuple[Sequence[float], Cells] | None = None,
) -> Comparison:
    """A variant against the baseline, size by size.

    The share at a size follows the slope of the baseline's law from the baseline's own loss there, so that a
    law which misses its points by the same amount for both does not enter:
    C_variant / C* with C* = C_baseline ((L_baseline − E) / (L_variant − E))^(1/α).

    Args:
        baseline: compute at each size, and the losses of its seeds.
        variant: the same, at the same sizes in the same order.
        reference: what the baseline's law is fitted to; default the baseline at these sizes. It has these
            sizes at its beginning.

    Returns:
        The comparison. An interval needs two seeds in every cell of the two.
    """
    whole, count = reference or baseline, len(variant[0])
    logs = np.log(np.asarray(variant[0], float))
    more = logs - np.log(np.asarray(whole[0][:count], float))
    cells, seeds = [*whole[1], *variant[1]], min(map(len, [*baseline[1], *variant[1]]))

    def log_shares(means: np.ndarray) -> np.ndarray:
        """At every size, their mean, and what they gain per tenfold compute; nan without a falling law."""
        base, ours = means[:-count], means[-count:]
        law = fit_power_law(whole[0], base, below=ours.min())
        exponent = law.exponent if law.exponent > 0 else math.nan
        above = (ours - law.floor) / (base[:count] - law.floor)
        shares = more + np.log(above) / exponent
        return np.array([*shares, shares.mean(), math.log(10) * _slope(logs, shares)])

    difference = _estimates(lambda means: means[-count:] - means[:count], cells, seeds > 1)
    *share, mean_share, trend = (_factor(each) for each in _estimates(log_shares, cells, seeds > 1))
    if math.isnan(mean_share.value):
        return Comparison(difference, None, None, None, seeds)
    return Comparison(difference, share, mean_share, None if math.isnan(trend.value) else trend, seeds)


def _factor(log: Estimate) -> Estimate:
    return Estimate(_exp(log.value), *map(_exp, log.interval or ()))


def _exp(value: float) -> float:
    """e^value; inf where a law is so flat that no float holds it."""
    with np.errstate(over="ignore"):
        return float(np.exp(value))


@dataclass(frozen=True)
class SizeGap:
    """The gap, variant minus baseline in nats/token, at the end of the runs of a horizon."""

    size: str
    updates: int
    seeds: list[int]  # that both have
    gap: Estimate


@dataclass(frozen=True)
class GapCurve:
    """The gap inside the runs of a horizon, after the updates of each validation."""

    size: str
    seeds: list[int]  # that both have
    updates: list[int]
    gaps: list[Estimate]


@dataclass(frozen=True)
class Gaps:
    """A variant against the baseline at several horizons, run by run of the same seed.

    Runs of one seed see the same windows in the same order, so a gap is taken within each seed. Its trend is
    the change per tenfold updates: the mean over seeds of the slope of each of them against the logarithm of
    the updates; None with one horizon.
    """

    sizes: list[SizeGap]  # every horizon that both have, by updates
    trend: Estimate | None
    trend_sizes: list[str]  # the horizons that it rests on: those with several seeds where there are two
    # Of the longest horizon, and before it of the longest with several seeds where that is another.
    curves: list[GapCurve]

    @property
    def longest(self) -> SizeGap:
        """The longest horizon that has an interval, or the longest of all."""
        return max(self.sizes, key=lambda found: (found.gap.low is not None, found.updates))


# Figures of runs, baseline and variant, seed by seed.
Pairs = Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]


def losses_apart(rows: Pairs) -> dict[int, float]:
    """The loss of the variant minus that of the baseline, by seed."""
    return {ours["seed"]: ours["loss"] - theirs["loss"] for theirs, ours in rows}


def gaps_between(pairs: Mapping[str, Pairs], deviations: Mapping[str, Deviation | None]) -> Gaps:
    """The gaps of pairs of runs, by the name of their horizon; deviations where there are several seeds."""
    by_seed = {size: losses_apart(rows) for size, rows in pairs.items()}
    sizes = []
    for size, gaps in by_seed.items():
        values, common = list(gaps.values()), deviations[size]
        estimate = Estimate(values[0]) if common is None else common.around(values)
        sizes.append(SizeGap(size, pairs[size][0][0]["steps"], list(gaps), estimate))
    sizes.sort(key=lambda found: found.updates)
    several = [found for found in sizes if len(found.seeds) > 1]
    trend, over = None, list[SizeGap]()
    for over in (several, sizes):
        seeds = set.intersection(*({*found.seeds} for found in over)) if over else set()
        logs = np.log10([found.updates for found in over])
        if seeds and np.ptp(logs) > _NEAR:
            along = (np.array([by_seed[found.size][seed] for found in over]) for seed in sorted(seeds))
            trend = mean_with_interval([_slope(logs, each) for each in along])
            break
    drawn = dict.fromkeys(found.size for found in (*several[-1:], sizes[-1]))
    curves = [curve for size in drawn if (curve := _curve(size, pairs[size])).updates]
    return Gaps(sizes, trend, [found.size for found in over] if trend else [], curves)


def _curve(size: str, rows: Pairs) -> GapCurve:
    """The gap at every validation that all of the runs have."""
    curves = [[dict(row.get("validation", ())) for row in pair] for pair in rows]
    shared = sorted(set.intersection(*(set(curve) for pair in curves for curve in pair)))
    gaps = [mean_with_interval([ours[step] - theirs[step] for theirs, ours in curves]) for step in shared]
    return GapCurve(size, [ours["seed"] for _, ours in rows], shared, gaps)

"""Scaling laws: loss as a power of compute, and how much compute a variant needs for the baseline's loss.

The law L(C) = E + A C^−α is fitted to logarithms (Kaplan et al. 2020; Hoffmann et al. 2022 for the floor E).
Intervals are Student's t over seeds: the variances of all cells, a variant at a size each, are propagated to
a figure, with the degrees of freedom of Satterthwaite (1946).
"""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field

import numpy as np

FLOOR_FROM = 5  # sizes from which a floor is fitted: three parameters need more points than that
LEVEL = 0.95
_GRID = 64  # floors that are tried at once, then again as many around the best
_HIGHEST = 0.98  # of the lowest loss: logarithms of what is above the floor must stay finite


@dataclass(frozen=True)
class PowerLaw:
    """L(C) = E + A C^−α.

    Args:
        scale: A, in nats/token at C = 1 of the unit that it was fitted in.
        exponent: α.
        floor: E in nats/token, default 0.

    >>> from nadaraya.study import PowerLaw
    >>> PowerLaw(scale=8.0, exponent=0.5)(16.0)
    2.0
    """

    scale: float
    exponent: float
    floor: float = 0.0

    def __call__(self, compute: float) -> float:
        """The loss at a compute."""
        return float(self.floor + self.scale * compute**-self.exponent)


def fit_power_law(compute: Sequence[float], loss: Sequence[float], floor: bool | None = None) -> PowerLaw:
    """The power law nearest to some losses in the squares of their logarithms.

    Args:
        compute: of each size, positive, in any unit.
        loss: the mean loss at each size, positive.
        floor: fit E too; default None: from five sizes on. Without it E is 0.

    Returns:
        The law.

    >>> from nadaraya.study import fit_power_law
    >>> law = fit_power_law([1.0, 10.0, 100.0], [4.0, 2.0, 1.0])
    >>> round(law.scale, 6), round(law.exponent, 5)
    (4.0, 0.30103)
    """
    scale, exponent, lowest = _fits(np.asarray(compute, float), np.asarray(loss, float)[None], floor)
    return PowerLaw(float(scale[0]), float(exponent[0]), float(lowest[0]))


@dataclass(frozen=True)
class Estimate:
    """A figure with its interval, None where nothing tells how far it varies.

    Args:
        value: the figure.
        low: lower end of the interval of 95 %.
        high: upper end.

    >>> from nadaraya.study.fit import Estimate
    >>> Estimate(0.74, 0.69, 0.80).text()
    '0.74 (0.69–0.80)'
    """

    value: float
    low: float | None = None
    high: float | None = None

    def side_of(self, reference: float) -> int:
        """−1 where the interval is below a reference, 1 where it is above, 0 where neither is told."""
        if self.low is None or self.high is None:
            return 0
        return int(self.low > reference) - int(self.high < reference)

    def text(self, digits: int = 2, times: str = "") -> str:
        """Value and interval, with so many decimals."""
        shown = f"{self.value:.{digits}f}{times}"
        return shown if self.low is None else f"{shown} ({self.low:.{digits}f}–{self.high:.{digits}f})"


@dataclass(frozen=True)
class Comparison:
    """A variant against the baseline, at the sizes that both have.

    Attributes:
        difference: of the mean losses at each size, variant minus baseline.
        share: at each size, the variant's compute over that at which the baseline has the variant's loss:
            0.8 says "the same loss with 0.8 of the compute". None without a law of the baseline.
        mean_share: their geometric mean.
        trend: factor by which the share changes from one size to one of ten times the compute.
        seeds: the fewest that a cell has.
    """

    difference: list[Estimate]
    share: list[Estimate] | None
    mean_share: Estimate | None
    trend: Estimate | None
    seeds: int

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
        """−1 where the variant is better than the baseline, 1 where it is worse, 0 where not told apart."""
        if self.deciding is not None:
            return self.deciding.side_of(1.0)
        sides = {estimate.side_of(0.0) for estimate in self.difference}
        return sides.pop() if len(sides) == 1 else 0


Cells = Sequence[Sequence[float]]  # the losses of the seeds, size by size


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

    >>> from nadaraya.study.fit import compare
    >>> rope = [1.0, 10.0, 100.0], [[4.0], [2.0], [1.0]]
    >>> twice = [1.0, 10.0, 100.0], [[3.247], [1.6235], [0.8117]]
    >>> compare(rope, twice).mean_share.text()
    '0.50'
    """
    whole = reference or baseline
    base_compute = np.asarray(whole[0], float)
    compute = np.asarray(variant[0], float)
    count = len(compute)
    means = _Means([*whole[1], *variant[1]])
    base, ours = means.rows[:, :-count], means.rows[:, -count:]
    seeds = min(len(cell) for cell in (*baseline[1], *variant[1]))
    known = seeds > 1
    difference = [means.estimate(column, known) for column in (ours - base[:, :count]).T]
    if len(set(whole[0])) < 2:
        return Comparison(difference, None, None, None, seeds)
    _, exponent, floor = _fits(base_compute, base, below=ours.min(axis=1))
    if not exponent[0] > 0:  # the baseline has not become better with compute
        return Comparison(difference, None, None, None, seeds)
    exponent = np.where(exponent > 0, exponent, np.nan)
    above = (ours - floor[:, None]) / (base[:, :count] - floor[:, None])
    logs = np.log(compute / base_compute[:count]) + np.log(above) / exponent[:, None]
    share = [means.estimate(column, known, factor=True) for column in logs.T]
    trend = None
    if len(set(variant[0])) > 1:
        tenfold = np.log(10) * _slope(np.log(compute), logs)
        trend = means.estimate(tenfold, known, factor=True)
    return Comparison(difference, share, means.estimate(logs.mean(axis=1), known, factor=True), trend, seeds)


def exponent_of(compute: Sequence[float], cells: Cells) -> Estimate:
    """α of the law of one variant, with its interval.

    Args:
        compute: at each size.
        cells: losses of the seeds, size by size.

    >>> from nadaraya.study.fit import exponent_of
    >>> exponent_of([1.0, 10.0], [[4.0], [2.0]]).text(4)
    '0.3010'
    """
    means = _Means(cells)
    _, exponent, _ = _fits(np.asarray(compute, float), means.rows)
    return means.estimate(exponent, min(map(len, cells)) > 1)


@dataclass
class _Means:
    """The means of cells, and what a figure of them varies by.

    Attributes:
        rows: (1 + 2 cells, cells): all means; then one of them after the other a standard error higher, then
            lower.
    """

    cells: InitVar[Cells]
    rows: np.ndarray = field(init=False)
    _freedom: np.ndarray = field(init=False)

    def __post_init__(self, cells: Cells) -> None:
        counts = np.array([len(cell) for cell in cells])
        spread = np.array([np.std(cell, ddof=1) if len(cell) > 1 else 0.0 for cell in cells])
        step = np.diag(spread / np.sqrt(counts))
        self.rows = np.array([np.mean(cell) for cell in cells]) + np.vstack([0 * spread, step, -step])
        self._freedom = np.maximum(counts - 1, 1)

    def estimate(self, values: np.ndarray, known: bool, factor: bool = False) -> Estimate:
        """The first of a figure's values by row, and its interval; of logarithms, a `factor`."""
        from scipy.stats import t

        shown = np.exp if factor else np.asarray
        higher, lower = np.split(values[1:], 2)
        variances = ((higher - lower) / 2) ** 2
        variance = variances.sum()
        if not known or np.isnan(variance):
            return Estimate(float(shown(values[0])))
        freedom = variance**2 / (variances**2 / self._freedom).sum() if variance else 1.0
        half = t.ppf((1 + LEVEL) / 2, freedom) * np.sqrt(variance)
        return Estimate(*(float(shown(values[0] + side * half)) for side in (0, -1, 1)))


def _fits(
    compute: np.ndarray, losses: np.ndarray, floor: bool | None = None, below: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A, α and E for every row of losses, (rows, sizes); E stays under `below`, (rows,), too."""
    logs = np.log(compute)
    zero = np.zeros(len(losses))
    if floor is None:
        floor = len(compute) >= FLOOR_FROM
    if not floor:
        return *_lines(logs, np.log(losses)), zero
    highest = losses.min(axis=1) if below is None else np.minimum(losses.min(axis=1), below)
    low, high = zero, _HIGHEST * highest
    for _ in range(4):
        tried = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, _GRID)
        scale, exponent = _lines(logs, np.log(losses[:, None] - tried[:, :, None]))
        fitted = tried[:, :, None] + scale[:, :, None] * np.exp(-exponent[:, :, None] * logs)
        misfit = ((np.log(fitted) - np.log(losses)[:, None]) ** 2).sum(axis=-1)
        best = misfit.argmin(axis=1)
        rows, step = np.arange(len(losses)), (high - low) / (_GRID - 1)
        chosen = tried[rows, best]
        low, high = np.maximum(chosen - step, 0), np.minimum(chosen + step, _HIGHEST * highest)
    return scale[rows, best], exponent[rows, best], chosen


def _lines(logs: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A and α of log values = log A − α log C, fitted over the last axis."""
    slope = _slope(logs, values)
    return np.exp(values.mean(axis=-1) - slope * logs.mean()), -slope


def _slope(logs: np.ndarray, values: np.ndarray) -> np.ndarray:
    centred = logs - logs.mean()
    return (values @ centred) / (centred @ centred)

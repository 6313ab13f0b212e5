"""Gaps to the baseline over horizons: differences of runs of the same seed, in nats/token, with intervals.

Runs of one seed see the same windows in the same order, so a gap is taken within each seed. Intervals of 95 %
are those of Student's t over the seeds: mean ± t(n − 1) s / √n.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

import numpy as np

from nadaraya.study.file import Study
from nadaraya.study.fit import LEVEL, Estimate
from nadaraya.study.kept import Results, Row
from nadaraya.study.runs import chosen_rows

# By the side of zero on which a difference lies.
AGAINST = {-1: "is better than", 0: "is not told apart from", 1: "is worse than"}


@dataclass(frozen=True)
class SizeGap:
    """The gap at the end of the runs of one horizon.

    Attributes:
        size: its name.
        updates: of a run.
        seeds: that both have.
        gap: variant minus baseline, nats/token; without an interval where there is one seed.
    """

    size: str
    updates: int
    seeds: list[int]
    gap: Estimate


@dataclass(frozen=True)
class GapCurve:
    """The gap inside the runs of one horizon, at their validations.

    Attributes:
        size: its name.
        seeds: that both have.
        updates: of the validations.
        gaps: at each of them.
    """

    size: str
    seeds: list[int]
    updates: list[int]
    gaps: list[Estimate]


@dataclass(frozen=True)
class Gaps:
    """A variant against the baseline at several horizons.

    Attributes:
        sizes: every horizon that both have, by updates.
        trend: change of the gap per tenfold updates: the mean over seeds of the slope of each of them against
            the logarithm of the updates. None with one horizon.
        trend_sizes: names of the horizons that it rests on: those with several seeds where there are two.
        curves: of the longest horizon, and before it of the longest with several seeds where that is another.
    """

    sizes: list[SizeGap]
    trend: Estimate | None
    trend_sizes: list[str]
    curves: list[GapCurve]

    @property
    def longest(self) -> SizeGap:
        """The longest horizon that has an interval, or the longest of all."""
        return max(self.sizes, key=lambda found: (found.gap.low is not None, found.updates))

    def verdict(self, variant: str, baseline: str) -> str:
        """One sentence or two on the variant."""
        last = self.longest
        against = AGAINST[last.gap.side_of(0.0)]
        seeds = counted(len(last.seeds), "seed")
        few = "; an interval needs two seeds" if last.gap.low is None else ""
        line = (
            f"`{variant}` {against} `{baseline}` after {last.updates:,} updates ({seeds}{few}): its loss "
            f"differs by {signed(last.gap)} nats/token."
        )
        if self.trend is None:
            return line
        ends = [found.updates for found in self.sizes if found.size in self.trend_sizes]
        # A gap that shrinks changes towards zero.
        towards = self.trend.side_of(0.0) * (1 if last.gap.value < 0 else -1)
        how = {1: "shrinks: it changes", -1: "grows: it changes", 0: "shows no trend: it changes"}[towards]
        how = "changes" if self.trend.low is None else how
        return (
            f"{line} From {min(ends):,} to {max(ends):,} updates that gap {how} by {signed(self.trend)} per "
            "tenfold updates."
        )


def gaps_of(study: Study, results: Results) -> dict[str, Gaps]:
    """The gaps of every variant of a study of horizons that shares a finished seed with the baseline.

    Args:
        study: its sizes are horizons.
        results: content of its results.json.

    >>> from nadaraya.study import Study
    >>> from nadaraya.study.gaps import gaps_of
    >>> study = Study(recipe="demo", baseline="rope", variants={"rope": {}}, learning_rates=[1e-3])
    >>> gaps_of(study, {"cells": [], "runs": []})
    {}
    """
    rows = {cell: {row["seed"]: row for row in runs} for cell, runs in chosen_rows(study, results).items()}
    found = {}
    for variant in study.variants:
        pairs = {
            size: [(theirs[seed], ours[seed]) for seed in sorted({*theirs} & {*ours})]
            for size in study.sizes
            if (theirs := rows.get((study.baseline, size))) and (ours := rows.get((variant, size)))
        }
        pairs = {size: pair for size, pair in pairs.items() if pair}
        if variant != study.baseline and pairs:
            found[variant] = _gaps(pairs)
    return found


def mean_with_interval(values: Sequence[float]) -> Estimate:
    """The mean and its interval of 95 % by Student's t; without an interval for one value.

    >>> from nadaraya.study.gaps import mean_with_interval
    >>> mean_with_interval([1.0, 2.0, 3.0]).text()
    '2.00 (-0.48–4.48)'
    """
    from scipy.stats import t

    middle, n = mean(values), len(values)
    if n < 2:
        return Estimate(middle)
    half = float(t.ppf((1 + LEVEL) / 2, n - 1)) * stdev(values) / n**0.5
    return Estimate(middle, middle - half, middle + half)


def counted(number: int, unit: str) -> str:
    """A number and its unit, which has an s unless there is one."""
    return f"{number:,} {unit}" + ("" if number == 1 else "s")


def signed(estimate: Estimate) -> str:
    """A difference and its interval, with their signs."""
    interval = "" if estimate.low is None else f" ({estimate.low:+.4f} to {estimate.high:+.4f})"
    return f"{estimate.value:+.4f}{interval}"


def gap_table(gaps: Mapping[str, Gaps], baseline: str) -> list[str]:
    """Lines of Markdown: the gap of every variant at every horizon, and its trend."""
    sizes = {
        found.size: found.updates
        for gap in gaps.values()
        for found in sorted(gap.sizes, key=lambda found: found.updates)
    }
    ordered = sorted(sizes, key=lambda size: sizes[size])
    heads = [f"{size}: {sizes[size]:,} updates" for size in ordered]
    lines = [
        f"Gap to `{baseline}`: loss minus its loss in nats/token, run by run of the same seed; intervals of "
        "95 % by Student's t over seeds, none for one seed.",
        "",
        f"| {' | '.join(['variant', *heads, 'per tenfold updates'])} |",
        f"|---|{'---:|' * (len(heads) + 1)}",
    ]
    for variant, gap in gaps.items():
        at = {found.size: signed(found.gap) for found in gap.sizes}
        trend = "" if gap.trend is None else signed(gap.trend)
        lines.append(f"| {' | '.join([variant, *(at.get(size, '') for size in ordered), trend])} |")
    return lines


_Pairs = Sequence[tuple[Row, Row]]  # baseline and variant, seed by seed


def _gaps(pairs: Mapping[str, _Pairs]) -> Gaps:
    sizes = [
        SizeGap(
            size,
            rows[0][0]["steps"],
            [ours["seed"] for _, ours in rows],
            mean_with_interval([ours["loss"] - theirs["loss"] for theirs, ours in rows]),
        )
        for size, rows in pairs.items()
    ]
    sizes.sort(key=lambda found: found.updates)
    several = [found for found in sizes if len(found.seeds) > 1]
    trend, trend_sizes = _trend(pairs, several)
    if trend is None:
        trend, trend_sizes = _trend(pairs, sizes)
    drawn = dict.fromkeys(found.size for found in (*several[-1:], sizes[-1]))
    curves = [curve for size in drawn if (curve := _curve(size, pairs[size])).updates]
    return Gaps(sizes, trend, trend_sizes, curves)


def _trend(pairs: Mapping[str, _Pairs], sizes: Sequence[SizeGap]) -> tuple[Estimate | None, list[str]]:
    """The mean of the slopes of the seeds that all of some horizons have."""
    if len({found.updates for found in sizes}) < 2:
        return None, []
    seeds = set.intersection(*({*found.seeds} for found in sizes))
    if not seeds:
        return None, []
    logs = np.log10([found.updates for found in sizes])
    slopes = []
    for seed in sorted(seeds):
        along = [
            ours["loss"] - theirs["loss"]
            for found in sizes
            for theirs, ours in pairs[found.size]
            if ours["seed"] == seed
        ]
        slopes.append(float(np.polyfit(logs, along, 1)[0]))
    return mean_with_interval(slopes), [found.size for found in sizes]


def _curve(size: str, rows: _Pairs) -> GapCurve:
    """The gap at every validation that all of the runs have."""
    curves = [[dict(row.get("validation", ())) for row in pair] for pair in rows]
    shared = sorted(set.intersection(*(set(curve) for pair in curves for curve in pair)))
    gaps = [mean_with_interval([ours[step] - theirs[step] for theirs, ours in curves]) for step in shared]
    return GapCurve(size, [ours["seed"] for _, ours in rows], shared, gaps)

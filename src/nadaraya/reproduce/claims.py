"""Claims of the papers as data, each of a kind that code checks on the runs of a study.

A claim on losses rests on the interval of a gap: it agrees where the whole interval does, disagrees where all
of it contradicts, and is not told apart between the two. A claim on single models rests on the runs, one per
seed: it agrees where it holds in all, disagrees where it holds in none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from nadaraya.interpret import BankShape
from nadaraya.reproduce.findings import Findings
from nadaraya.study.fit import Estimate
from nadaraya.study.gaps import counted, mean_with_interval, signed
from nadaraya.study.probes import stored_histogram, stored_shapes
from nadaraya.training.schema import Section

Agreement = Literal["yes", "no", "not told apart", "not measured"]
_BY_SIDE: dict[int, Agreement] = {1: "yes", 0: "not told apart", -1: "no"}


@dataclass(frozen=True)
class Checked:
    """What was found of a claim.

    Attributes:
        ours: what was measured, in words.
        agrees: whether it is as the paper says.

    >>> from nadaraya.reproduce import Checked
    >>> Checked("nothing yet").agrees
    'not measured'
    """

    ours: str
    agrees: Agreement = "not measured"


_NOTHING = Checked("")


class _Claim(Section):
    """What every claim says."""

    says: str
    """The claim."""
    paper: str
    """The figure or the ordering that the paper reports."""
    variant: str
    """Of the study, whose runs are looked at."""

    def check(self, found: Findings) -> Checked:
        """Whether the runs agree."""
        raise NotImplementedError


class LossClaim(_Claim):
    """A claim on the losses of two variants."""

    other: str
    """The other variant."""

    def check(self, found: Findings) -> Checked:
        """By the gap at the most updates that several seeds have."""
        gaps = found.gaps(self.variant, self.other)
        if gaps is None:
            return _NOTHING
        last = gaps.longest
        return Checked(
            f"`{self.variant}` − `{self.other}`: {signed(last.gap)} nats/token after {last.updates:,} "
            f"updates, {counted(len(last.seeds), 'seed')}",
            self.agreement(last.gap),
        )

    def agreement(self, gap: Estimate) -> Agreement:
        """Whether a gap, variant minus other, is as the claim says."""
        raise NotImplementedError


class Lower(LossClaim):
    """The loss of a variant is lower than that of another one."""

    kind: Literal["lower"]

    def agreement(self, gap: Estimate) -> Agreement:
        """By the side of zero on which the interval lies."""
        return _BY_SIDE[-gap.side_of(0.0)]


class Level(LossClaim):
    """The losses of two variants are the same within a margin, as equivalence tests have it."""

    kind: Literal["level"]
    within: float
    """Nats/token that count as the same."""

    def agreement(self, gap: Estimate) -> Agreement:
        """Whether the interval lies inside the margin, or outside of it."""
        if gap.low is None or gap.high is None:
            return "not told apart"
        if -self.within <= gap.low and gap.high <= self.within:
            return "yes"
        return "no" if gap.low > self.within or gap.high < -self.within else "not told apart"


class KernelParameters(_Claim):
    """Kernels have so many parameters."""

    kind: Literal["kernel-parameters"]
    count: int

    def check(self, found: Findings) -> Checked:
        """By the count of the trained models."""
        counts = sorted({row["kernel_parameters"] for row in found.longest(self.variant)})
        if not counts:
            return _NOTHING
        return Checked(", ".join(f"{count:,}" for count in counts), "yes" if counts == [self.count] else "no")


class _ByRun(_Claim):
    """A claim on single models, which each run of the variant at the longest horizon answers."""

    def _of_runs(
        self, found: Findings, probe: str, answer: Callable[[dict[str, Any]], tuple[str, bool] | None]
    ) -> Checked:
        """What was answered for every run, in words and whether it is so; None where a run cannot tell."""
        rows = found.longest(self.variant, probe)
        answers = [given for row in rows if (given := answer(row["probes"][probe]))]
        if len(answers) < len(rows) or not rows:
            return _NOTHING
        seen = ", ".join(dict.fromkeys(words for words, _ in answers))
        true = sum(holds for _, holds in answers)
        agrees: Agreement = "yes" if true == len(answers) else "not told apart" if true else "no"
        runs = f"{counted(len(rows), 'run')} of {rows[0]['steps']:,} updates"
        return Checked(f"{seen}; so in {true} of {runs}", agrees)


class BankBump(_ByRun):
    """A bump of the heads of a layer, or the strongest, stands at a lag, put there by training; or not."""

    kind: Literal["bank-bump"]
    layer: int
    """From 0."""
    lag: int
    within: int
    """Lags to either side that count as there."""
    there: bool = True
    """Whether the claim is that it stands there, or that it does not."""
    strongest: bool = True
    """Whether the strongest bump alone counts, or any."""

    def check(self, found: Findings) -> Checked:
        """By `BankShape.shared_bumps`, of which the first is the strongest."""
        return self._of_runs(found, "banks", self._answer)

    def _answer(self, probed: dict[str, Any]) -> tuple[str, bool] | None:
        shape = _by_layer(probed).get(self.layer)
        if shape is None or self.lag + self.within >= shape.trained.shape[1]:  # beyond the context
            return None
        bumps = shape.shared_bumps()
        if not bumps:
            return "no bump", not self.there
        which, bump = "strongest", bumps[0]
        if not self.strongest:
            trained = [bump for bump in bumps if not bump.at_start] or bumps
            which, bump = "nearest", min(trained, key=lambda bump: abs(bump.lag - self.lag))
        words = f"{which} bump at lag {bump.lag}{', as at the start' if bump.at_start else ''}"
        near = abs(bump.lag - self.lag) <= self.within and not bump.at_start
        return words, near == self.there


class BanksAlike(_ByRun):
    """Heads of some layers have banks more alike than those of others have."""

    kind: Literal["banks-alike"]
    layers: list[int]
    """From 0."""
    more_than: list[int]
    """From 0."""

    def check(self, found: Findings) -> Checked:
        """By the mean correlation of two heads of a layer, lag by lag, and its difference over the seeds."""
        rows = found.longest(self.variant, "banks")
        shapes = [_by_layer(row["probes"]["banks"]) for row in rows]
        if not rows or not all({*self.layers, *self.more_than} <= set(each) for each in shapes):
            return _NOTHING
        sides = [
            [self._correlation([each[layer].trained for layer in layers]) for each in shapes]
            for layers in (self.layers, self.more_than)
        ]
        known = [[value for value in side if value is not None] for side in sides]
        if min(map(len, known)) < len(rows):
            return _NOTHING
        first, second = (mean_with_interval(values) for values in known)
        apart = mean_with_interval([one - other for one, other in zip(*known, strict=True)])
        return Checked(
            f"correlation of two heads {first.value:.2f} against {second.value:.2f}, difference "
            f"{signed(apart)} after {rows[0]['steps']:,} updates",
            _BY_SIDE[apart.side_of(0.0)],
        )

    def _correlation(self, tables: list[np.ndarray]) -> float | None:
        """The mean over the pairs of heads of each layer; a bank that is the same at all lags is in none."""
        varying = [table[np.isfinite(table).all(axis=1)] for table in tables]
        varying = [table[np.ptp(table, axis=1) > 0] for table in varying]
        pairs = [np.corrcoef(table)[np.triu_indices(len(table), 1)] for table in varying if len(table) > 1]
        return float(np.mean(np.concatenate(pairs))) if pairs else None


class ZeroBank(_ByRun):
    """A head of a layer has a bank G that is nearly zero at all lags beside the largest of the model."""

    kind: Literal["zero-bank"]
    layer: int
    """From 0."""
    below: float
    """Share of the largest max |G| under which a bank counts as zero."""

    def check(self, found: Findings) -> Checked:
        """By max |G| over the lags of every head."""
        return self._of_runs(found, "banks", self._answer)

    def _answer(self, probed: dict[str, Any]) -> tuple[str, bool] | None:
        strengths = {
            layer: np.abs(shape.trained if shape.added else np.exp(shape.trained)).max(axis=1)
            for layer, shape in _by_layer(probed).items()
        }
        if self.layer not in strengths:
            return None
        share = float(strengths[self.layer].min() / max(each.max() for each in strengths.values()))
        return f"weakest bank {share:.2f} of the strongest", share < self.below


class NewlinePeak(_ByRun):
    """The distances between newlines of a text have a peak at a lag."""

    kind: Literal["newline-peak"]
    text: Literal["corpus", "generated"]
    lag: int
    within: int
    """Lags to either side that count as there."""

    def check(self, found: Findings) -> Checked:
        """By `LagHistogram.peaks`."""
        return self._of_runs(found, "newlines", self._answer)

    def _answer(self, probed: dict[str, Any]) -> tuple[str, bool]:
        lags = sorted(peak.lag for peak in stored_histogram(probed, self.text).peaks())
        words = f"peaks at lags {', '.join(map(str, lags))}" if lags else "no peaks"
        return words, any(abs(lag - self.lag) <= self.within for lag in lags)


def _by_layer(probed: dict[str, Any]) -> dict[int, BankShape]:
    """The shapes that the probe `banks` has kept, by layer from 0."""
    return {shape.layer: shape for shape in stored_shapes(probed)}


Claim = Annotated[
    Lower | Level | KernelParameters | BankBump | BanksAlike | ZeroBank | NewlinePeak,
    Field(discriminator="kind"),
]

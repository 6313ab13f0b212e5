"""Claims of the papers as data, each of a kind that code checks on the runs of a study.

A claim on losses rests on the interval of a gap: it agrees where the whole interval does, disagrees where all
of it contradicts, and is not significant in between. A claim on single models rests on the runs, one per
seed: it agrees where it holds in all, disagrees where it holds in none, and else holds "in some runs".
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from nadaraya.interpret.banks import BankShape
from nadaraya.study import Findings
from nadaraya.study.probes import stored_histogram, stored_shapes
from nadaraya.study.statistics import Estimate, mean_with_interval, signed
from nadaraya.study.summary import counted
from nadaraya.training.schema import Section

Agreement = Literal["yes", "no", "not significant", "in some runs", "not measured"]
_BY_SIDE: dict[int, Agreement] = {1: "yes", 0: "not significant", -1: "no"}


@dataclass(frozen=True)
class Checked:
    """Outcome of a check of a claim.

    Attributes:
        ours: what was measured, in words.
        agrees: whether it is as the paper says.

    >>> from nadaraya.reproduce.claims import Checked
    >>> Checked("nothing yet").agrees
    'not measured'
    """

    ours: str
    agrees: Agreement = "not measured"


_NOTHING = Checked("")


class _Claim(Section):
    """A statement of a paper on a variant."""

    says: str
    paper: str  # the figure or the ordering that the paper reports
    variant: str  # of the study; its runs are looked at


class LossClaim(_Claim):
    """A claim on the losses of two variants, by the gap at the most updates that several seeds have."""

    other: str  # variant

    def check(self, found: Findings) -> Checked:
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
        """Return whether a gap, variant minus other, is as the claim says."""
        raise NotImplementedError


class Lower(LossClaim):
    """The loss of a variant is lower than that of another one: the interval lies below zero."""

    kind: Literal["lower"]

    def agreement(self, gap: Estimate) -> Agreement:
        return _BY_SIDE[-gap.side_of(0.0)]


class Level(LossClaim):
    """The losses of two variants are the same within a margin, as equivalence tests have it."""

    kind: Literal["level"]
    within: float  # nats/token that count as the same

    def agreement(self, gap: Estimate) -> Agreement:
        low, high = gap.interval or (-np.inf, np.inf)
        if -self.within <= low and high <= self.within:
            return "yes"
        return "no" if low > self.within or high < -self.within else "not significant"


class KernelParameters(_Claim):
    """Kernels of the trained models have so many parameters."""

    kind: Literal["kernel-parameters"]
    count: int

    def check(self, found: Findings) -> Checked:
        counts = sorted({row["kernel_parameters"] for row in found.longest(self.variant)})
        if not counts:
            return _NOTHING
        return Checked(", ".join(f"{count:,}" for count in counts), "yes" if counts == [self.count] else "no")


class _ByRun(_Claim):
    """A claim on single models, which each run of the variant at the longest horizon answers."""

    probe: ClassVar[str] = "banks"

    def check(self, found: Findings) -> Checked:
        rows = found.longest(self.variant, self.probe)
        answers = [self.answer(row["probes"][self.probe]) for row in rows]
        known = [answer for answer in answers if answer is not None]
        if len(known) < len(rows) or not rows:
            return _NOTHING
        seen = ", ".join(dict.fromkeys(words for words, _ in known))
        true = sum(holds for _, holds in known)
        agrees: Agreement = "yes" if true == len(known) else "in some runs" if true else "no"
        runs = f"{counted(len(rows), 'run')} of {rows[0]['steps']:,} updates"
        return Checked(f"{seen}; so in {true} of {runs}", agrees)

    def answer(self, probed: dict[str, Any]) -> tuple[str, bool] | None:
        """Return what a run shows in words, and whether the claim holds there; None where it cannot tell."""
        raise NotImplementedError


class BankBump(_ByRun):
    """A bump of the heads of a layer stands at a lag, put there by training; or not.

    The first of `BankShape.shared_bumps` is the strongest.
    """

    kind: Literal["bank-bump"]
    layer: int  # from 0
    lag: int
    within: int  # lags to either side that count as there
    there: bool = True  # false: the claim is that it does not stand there
    strongest: bool = True  # false: any bump counts, not the strongest alone

    def answer(self, probed: dict[str, Any]) -> tuple[str, bool] | None:
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


class BanksAlike(_Claim):
    """Heads of some layers have banks more alike than those of others have.

    By the mean correlation of two heads of a layer, lag by lag, and its difference over the seeds.
    """

    kind: Literal["banks-alike"]
    layers: list[int]  # from 0
    more_than: list[int]  # from 0

    def check(self, found: Findings) -> Checked:
        rows = found.longest(self.variant, "banks")
        shapes = [_by_layer(row["probes"]["banks"]) for row in rows]
        if not rows or not all({*self.layers, *self.more_than} <= set(each) for each in shapes):
            return _NOTHING
        more, less = (
            [_correlation([each[layer].trained for layer in layers]) for each in shapes]
            for layers in (self.layers, self.more_than)
        )
        if np.isnan([*more, *less]).any():
            return _NOTHING
        apart = mean_with_interval(np.subtract(more, less).tolist())
        return Checked(
            f"correlation of two heads {np.mean(more):.2f} against {np.mean(less):.2f}, difference "
            f"{signed(apart)} after {rows[0]['steps']:,} updates",
            _BY_SIDE[apart.side_of(0.0)],
        )


class ZeroBank(_ByRun):
    """A head of a layer has a bank G that is nearly zero at all lags beside the largest of the model."""

    kind: Literal["zero-bank"]
    layer: int  # from 0
    below: float  # share of the largest max |G| under which a bank counts as zero

    def answer(self, probed: dict[str, Any]) -> tuple[str, bool] | None:
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

    probe = "newlines"
    kind: Literal["newline-peak"]
    text: Literal["corpus", "generated"]
    lag: int
    within: int  # lags to either side that count as there

    def answer(self, probed: dict[str, Any]) -> tuple[str, bool]:
        lags = sorted(peak.lag for peak in stored_histogram(probed, self.text).peaks())
        words = f"peaks at lags {', '.join(map(str, lags))}" if lags else "no peaks"
        return words, any(abs(lag - self.lag) <= self.within for lag in lags)


def _by_layer(probed: dict[str, Any]) -> dict[int, BankShape]:
    """The shapes that the probe `banks` has kept, by layer from 0."""
    return {shape.layer: shape for shape in stored_shapes(probed)}


def _correlation(tables: list[np.ndarray]) -> float:
    """The mean over the pairs of heads of each layer; a bank that is the same at all lags is in none."""
    varying = [table[np.isfinite(table).all(axis=1)] for table in tables]
    varying = [table[np.ptp(table, axis=1) > 0] for table in varying]
    pairs = [np.corrcoef(table)[np.triu_indices(len(table), 1)] for table in varying if len(table) > 1]
    return float(np.mean(np.concatenate(pairs))) if pairs else float("nan")


Claim = Annotated[
    Lower | Level | KernelParameters | BankBump | BanksAlike | ZeroBank | NewlinePeak,
    Field(discriminator="kind"),
]

"""The summary of a study: a table of all cells, the laws, and one verdict for each variant."""

import math
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from nadaraya.files import reading
from nadaraya.study.file import Study
from nadaraya.study.results import RESULTS_FILE, Findings, Results
from nadaraya.study.statistics import Comparison, Estimate, Gaps, compare, exponent_of, signed

# What the laws are functions of, by what is matched: key of a cell, and its name.
_AXES = {
    "flops": ("flops", "training FLOPs"),
    "tokens": ("flops", "training FLOPs"),
    "parameters": ("parameters", "parameters"),
    "seconds": ("seconds", "seconds of training"),
}
# By the side of the baseline on which a variant lies, and by that on which a trend does.
_AGAINST = {-1: "is better than", 0: "does not differ significantly from", 1: "is worse than"}
_SHARE = {-1: "falls, which favours it", 0: "shows no trend", 1: "rises, which favours the baseline"}
_GAP = {-1: "grows: it changes", 0: "shows no trend: it changes", 1: "shrinks: it changes"}
_FEW = "; an interval needs two seeds"


@dataclass(frozen=True)
class CellResult:
    """The outcome of the runs of a variant at a size, at the learning rate that was chosen."""

    size: str
    variant: str
    parameters: int
    steps: int
    flops: int  # of the training of a run
    compute: float  # what the laws are functions of: FLOPs, parameters or seconds
    learning_rate: float
    losses: list[float]  # final validation loss of each seed, nats/token
    bits_per_byte: float  # their mean

    @property
    def loss(self) -> float:
        """The mean loss."""
        return mean(self.losses)


@dataclass(frozen=True)
class Summary:
    """The findings of a study.

    Attributes:
        baseline: name of the variant that the others are compared with.
        axis: what the laws are functions of, in words.
        cells: by variant, in the order of the study, those of its sizes that have a finished run.
        comparisons: of every other variant with the baseline, at the sizes that both have.
        exponents: α of the law of each variant that has two sizes.
        gaps: of every other variant, where the sizes are horizons; default none.
    """

    baseline: str
    axis: str
    cells: dict[str, list[CellResult]]
    comparisons: dict[str, Comparison]
    exponents: dict[str, Estimate]
    gaps: dict[str, Gaps] = field(default_factory=dict)

    def pairs(self, variant: str) -> list[tuple[CellResult, CellResult]]:
        """The cells of the baseline and a variant, size by size; those with several seeds alone, if any.

        Intervals rest on the spread of seeds at every size, so that one seed somewhere would leave none.
        """
        ours = {cell.size: cell for cell in self.cells[variant]}
        both = [(cell, ours[cell.size]) for cell in self.cells.get(self.baseline, []) if cell.size in ours]
        return [pair for pair in both if all(len(cell.losses) > 1 for cell in pair)] or both

    def shared(self, variant: str) -> list[str]:
        """The sizes at which a variant is compared with the baseline."""
        return [cell.size for cell, _ in self.pairs(variant)]

    def verdict(self, variant: str) -> str:
        """One sentence or two on a variant."""
        if variant in self.gaps:
            return self._verdict_on_gaps(variant, self.gaps[variant])
        found, sizes = self.comparisons[variant], self.shared(variant)
        where = f" at {sizes[-1]}" if found.deciding != found.mean_share else ""
        line = (
            f"`{variant}` {_AGAINST[found.side]} `{self.baseline}`{where} ({counted(len(sizes), 'size')}, "
            f"{counted(found.seeds, 'seed')}{_FEW if found.seeds < 2 else ''})"
        )
        if found.mean_share is None:
            each = zip(sizes, found.difference, strict=True)
            losses = ", ".join(f"{signed(estimate)} at {size}" for size, estimate in each)
            return f"{line}: its loss differs by {losses} nats/token."
        line += f": it reaches the same loss with {found.mean_share.text(2, '×')} of the {self.axis}"
        if found.share and len(found.share) > 1:
            line += f" over all sizes, with {found.share[-1].text(2, '×')} at {sizes[-1]}"
        if found.trend is None:
            return f"{line}."
        how = "changes" if found.trend.low is None else _SHARE[found.trend.side_of(1.0)]
        return f"{line}. That share {how}: {found.trend.text(2, '×')} per tenfold {self.axis}."

    def _verdict_on_gaps(self, variant: str, found: Gaps) -> str:
        last = found.longest
        line = (
            f"`{variant}` {_AGAINST[last.gap.side_of(0.0)]} `{self.baseline}` after {last.updates:,} updates "
            f"({counted(len(last.seeds), 'seed')}{'' if last.gap.interval else _FEW}): its loss differs by "
            f"{signed(last.gap)} nats/token."
        )
        if found.trend is None:
            return line
        ends = [size.updates for size in found.sizes if size.size in found.trend_sizes]
        # A gap that shrinks changes towards zero.
        towards = found.trend.side_of(0.0) * (1 if last.gap.value < 0 else -1)
        how = "changes" if found.trend.low is None else _GAP[towards]
        return (
            f"{line} From {min(ends):,} to {max(ends):,} updates that gap {how} by {signed(found.trend)} per "
            "tenfold updates."
        )

    def markdown(self) -> str:
        """Verdicts, a table of the variants or of the gaps, a table of all cells, the exponents."""
        horizons = {each.size: each.updates for found in self.gaps.values() for each in found.sizes}
        rows = [cell for row in self.cells.values() for cell in row]
        return render(
            "study/summary.md.jinja",
            summary=self,
            sizes=list(dict.fromkeys(cell.size for cell in rows)),
            horizons=dict(sorted(horizons.items(), key=lambda horizon: horizon[1])),
            variants=[name for name in (self.baseline, *self.ranked()) if name in self.cells],
            cells={(cell.variant, cell.size): cell for cell in rows},
            shares={
                (variant, size): share
                for variant, found in self.comparisons.items()
                for size, share in zip(self.shared(variant), found.share or (), strict=False)
            },
            means={variant: found.mean_share for variant, found in self.comparisons.items()},
            signed=signed,
            spread=mean_and_spread,
        )

    def plain(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {**asdict(self), "verdicts": {variant: self.verdict(variant) for variant in self.comparisons}}

    def ranked(self) -> list[str]:
        """The compared variants by their mean share of compute; those without one come last, by loss."""

        def place(variant: str) -> tuple[bool, float]:
            found = self.comparisons[variant]
            if found.mean_share is None:
                return True, mean(each.value for each in found.difference)
            return False, found.mean_share.value

        return sorted(self.comparisons, key=place)


def summarise(study: Study, results: Results, folder: Path = Path()) -> Summary:
    """The summary of what a study has found so far.

    Args:
        study: which variants, in which order, and the baseline.
        results: content of its results.json.
        folder: of that file, as errors name it.

    Returns:
        Cells, comparisons and laws; variants without a finished run are left out.

    Raises:
        InputError: the results are not those of a study.

    >>> from nadaraya.study import Study, summarise
    >>> study = Study(recipe="demo", baseline="rope", variants={"rope": {}}, learning_rates=[1e-3])
    >>> summarise(study, {"cells": [], "runs": []}).cells
    {}
    """
    key, axis = _AXES[study.match]
    found, summary = Findings(study, results), Summary(study.baseline, axis, {}, {}, {})
    with reading(folder / RESULTS_FILE, "the results of a study"):
        for variant, planned in product(study.variants, results["cells"]):
            runs = found.rows[variant, planned["size"]] if planned["variant"] == variant else []
            if runs and planned["size"] in study.sizes:
                facts: dict[str, Any] = {**planned, **runs[0]}
                names = ("size", "variant", "parameters", "steps", "flops", "learning_rate")
                cell = CellResult(
                    **{name: facts[name] for name in names},
                    compute=float(facts[key]),
                    losses=[row["loss"] for row in runs],
                    bits_per_byte=mean(row["bits_per_byte"] for row in runs),
                )
                summary.cells.setdefault(variant, []).append(cell)
        for variant, row in summary.cells.items():
            if not math.isnan((exponent := exponent_of(*_points(row))).value):
                summary.exponents[variant] = exponent
            pairs = summary.pairs(variant)
            if variant == study.baseline or not pairs:
                continue
            first, ours = ([pair[side] for pair in pairs] for side in (0, 1))
            whole = [*first, *(cell for cell in summary.cells[study.baseline] if cell not in first)]
            summary.comparisons[variant] = compare(_points(first), _points(ours), _points(whole))
            if study.horizons and (gaps := found.gaps(variant)):
                summary.gaps[variant] = gaps
    return summary


def counted(number: int, unit: str) -> str:
    """A number and its unit, which has an s unless there is one."""
    return f"{number:,} {unit}" + ("" if number == 1 else "s")


def mean_and_spread(losses: list[float]) -> str:
    """Mean and standard deviation of losses."""
    return f"{mean(losses):.4f}" + (f" ± {stdev(losses):.4f}" if len(losses) > 1 else "")


def render(template: str, **values: Any) -> str:
    """A Markdown document, by the path of its template in this package."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("nadaraya", ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(**values)


def _points(cells: list[CellResult]) -> tuple[list[float], list[list[float]]]:
    """Compute, and the losses of the seeds, cell by cell."""
    return [cell.compute for cell in cells], [cell.losses for cell in cells]

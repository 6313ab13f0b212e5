"""What a study found: a table of all cells, the laws, and one verdict for each variant, from results.json."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from nadaraya.errors import InputError
from nadaraya.files import reading, write_file
from nadaraya.study.file import Study
from nadaraya.study.fit import Comparison, Estimate, compare, exponent_of
from nadaraya.study.gaps import AGAINST, Gaps, counted, gap_table, gaps_of, signed
from nadaraya.study.kept import Results, Row
from nadaraya.study.runs import RESULTS_FILE, chosen_rows, merged_rows, read_results_file, results_text

SUMMARY_FILE = "summary.md"
# What the laws are functions of, by what is matched: key of a cell, and its name.
_AXES = {
    "flops": ("flops", "training FLOPs"),
    "tokens": ("flops", "training FLOPs"),
    "parameters": ("parameters", "parameters"),
    "seconds": ("seconds", "seconds of training"),
}


@dataclass(frozen=True)
class CellResult:
    """What the runs of a variant at a size reached, at the learning rate that was chosen.

    Attributes:
        size: name of the size.
        variant: name of the variant.
        parameters: of the model.
        steps: updates of a run.
        flops: of the training of a run.
        compute: what the laws are functions of: FLOPs, parameters or seconds.
        learning_rate: the best that was tried with the first seed.
        losses: final validation loss of each seed, nats/token.
        bits_per_byte: their mean.
    """

    size: str
    variant: str
    parameters: int
    steps: int
    flops: int
    compute: float
    learning_rate: float
    losses: list[float]
    bits_per_byte: float

    @property
    def loss(self) -> float:
        """The mean loss."""
        return mean(self.losses)

    def text(self) -> str:
        """Mean and standard deviation of the loss."""
        return f"{self.loss:.4f}" + (f" ± {stdev(self.losses):.4f}" if len(self.losses) > 1 else "")


@dataclass(frozen=True)
class Summary:
    """What a study found.

    Attributes:
        baseline: name of the variant that the others are compared with.
        axis: what the laws are functions of, in words.
        cells: by variant, in the order of the study, those of its sizes that have a finished run.
        comparisons: of every other variant with the baseline, at the sizes that both have.
        exponents: α of the law of each variant that has two sizes.
        gaps: of every other variant, where the sizes are horizons; default none.

    >>> from nadaraya.study import Summary
    >>> Summary("rope", "training FLOPs", {}, {}, {}).plain()["verdicts"]
    {}
    """

    baseline: str
    axis: str
    cells: dict[str, list[CellResult]]
    comparisons: dict[str, Comparison]
    exponents: dict[str, Estimate]
    gaps: dict[str, Gaps] = field(default_factory=dict)

    def shared(self, variant: str) -> list[str]:
        """The sizes at which a variant is compared with the baseline."""
        return [cell.size for cell, _ in _comparable(self.cells.get(self.baseline, []), self.cells[variant])]

    def verdict(self, variant: str) -> str:
        """One sentence or two on a variant."""
        if variant in self.gaps:
            return self.gaps[variant].verdict(variant, self.baseline)
        found = self.comparisons[variant]
        against = AGAINST[found.side]
        sizes = self.shared(variant)
        by = f"{counted(len(sizes), 'size')}, {counted(found.seeds, 'seed')}"
        where = f" at {sizes[-1]}" if found.deciding != found.mean_share else ""
        line = f"`{variant}` {against} `{self.baseline}`{where} ({by}"
        line += "; an interval needs two seeds)" if found.seeds < 2 else ")"
        if found.mean_share is None:
            losses = ", ".join(
                f"{signed(estimate)} at {size}"
                for size, estimate in zip(sizes, found.difference, strict=True)
            )
            return f"{line}: its loss differs by {losses} nats/token."
        line += f": it reaches the same loss with {found.mean_share.text(2, '×')} of the {self.axis}"
        if found.share and len(found.share) > 1:
            line += f" over all sizes, with {found.share[-1].text(2, '×')} at {sizes[-1]}"
        if found.trend is None:
            return f"{line}."
        words = {-1: "falls, which favours it", 0: "shows no trend", 1: "rises, which favours the baseline"}
        how = "changes" if found.trend.low is None else words[found.trend.side_of(1.0)]
        trend = f"{how}: {found.trend.text(2, '×')} per tenfold {self.axis}"
        return f"{line}. That share {trend}."

    def markdown(self) -> str:
        """Verdicts, a table of the variants, a table of all cells, the exponents."""
        lines = [f"- {self.verdict(variant)}" for variant in self.comparisons]
        lines += ["", *(gap_table(self.gaps, self.baseline) if self.gaps else self._by_variant())]
        lines += ["", "| size | variant | parameters | steps | FLOPs | rate | nats/token | bits/byte |"]
        lines += ["|---|---|---:|---:|---:|---:|---:|---:|"]
        for size in self._sizes():
            lines += [
                self._row(cell) for row in self.cells.values() for cell in row if cell.size == size
            ]  # fmt: skip
        if self.exponents:
            lines += ["", "| variant | α of loss ∝ compute^−α |", "|---|---:|"]
            lines += [f"| {variant} | {alpha.text(4)} |" for variant, alpha in self.exponents.items()]
        return "\n".join(lines) + "\n"

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

    def _sizes(self) -> list[str]:
        return list(dict.fromkeys(cell.size for row in self.cells.values() for cell in row))

    def _by_variant(self) -> list[str]:
        """A row for each variant, best first: its losses, and below them its shares of compute."""
        sizes = self._sizes()
        head = ["variant", "rates", *(f"{size}, nats/token" for size in sizes), f"share of {self.axis}"]
        lines = [f"| {' | '.join(head)} |", "|---|---|" + "---:|" * (len(sizes) + 1)]
        for variant in [name for name in (self.baseline, *self.ranked()) if name in self.cells]:
            cells = {cell.size: cell for cell in self.cells[variant]}
            rates = ", ".join(dict.fromkeys(f"{cell.learning_rate:g}" for cell in cells.values()))
            found = self.comparisons.get(variant)
            figures = {size: cells[size].text() if size in cells else "–" for size in sizes}
            if found and found.share:
                for size, of_size in zip(self.shared(variant), found.share, strict=True):
                    figures[size] += f"<br>{of_size.text()}"
            share = found.mean_share.text() if found and found.mean_share else ""
            whole = "1" if variant == self.baseline else share
            lines.append(f"| {' | '.join([f'`{variant}`', rates, *figures.values(), whole])} |")
        return lines

    def _row(self, cell: CellResult) -> str:
        figures = (
            f"{cell.parameters:,}", f"{cell.steps:,}", f"{cell.flops:.3g}", f"{cell.learning_rate:g}",
            cell.text(), f"{cell.bits_per_byte:.4f}",
        )  # fmt: skip
        return f"| {' | '.join([cell.size, cell.variant, *figures])} |"


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
    with reading(folder / RESULTS_FILE, "the results of a study"):
        rows = chosen_rows(study, results)
        by_variant = {
            variant: row
            for variant in study.variants
            if (
                row := [
                    _cell_result({**planned, **runs[0]}, runs, key)
                    for planned in results["cells"]
                    if planned["variant"] == variant and planned["size"] in study.sizes
                    if (runs := rows[variant, planned["size"]])
                ]
            )
        }
    baseline = by_variant.get(study.baseline, [])
    comparisons = {
        variant: comparison
        for variant, row in by_variant.items()
        if variant != study.baseline and (comparison := _compared(baseline, row))
    }
    exponents = {
        variant: exponent_of([cell.compute for cell in row], [cell.losses for cell in row])
        for variant, row in by_variant.items()
        if len({cell.compute for cell in row}) > 1
    }
    gaps = gaps_of(study, results) if study.horizons else {}
    return Summary(study.baseline, axis, by_variant, comparisons, exponents, gaps)


def read_results(folder: Path) -> Results:
    """The results of the folder of a study, with the runs that have finished since."""
    path = folder / RESULTS_FILE
    if not path.is_file():
        raise InputError(f"{folder} has no results of a study: it has no {RESULTS_FILE}")
    results = read_results_file(folder)
    results["runs"] = merged_rows(results["runs"], folder)
    return results


def write_summary(study: Study, folder: Path) -> Summary:
    """Write results.json, summary.md, curves.png and, of horizons, gaps.png of a study's folder anew."""
    from nadaraya.report import write_figure
    from nadaraya.study.draw import draw, draw_gaps

    results = read_results(folder)
    warnings = "".join(f"- {warning}\n" for warning in results.get("warnings", ()))
    summary = summarise(study, results, folder)
    write_file(folder / RESULTS_FILE, results_text(results))
    write_file(folder / SUMMARY_FILE, summary.markdown() + (warnings and f"\nWarnings:\n\n{warnings}"))
    if summary.cells:
        write_figure(draw(summary), folder / "curves.png")
    if summary.gaps:
        write_figure(draw_gaps(summary), folder / "gaps.png")
    return summary


def _cell_result(facts: Mapping[str, Any], runs: list[Row], key: str) -> CellResult:
    """A cell at the rate that its search has chosen, of its plan and the first of its finished runs."""
    return CellResult(
        **{name: facts[name] for name in ("size", "variant", "parameters", "steps", "flops")},
        compute=float(facts[key]),
        learning_rate=facts["learning_rate"],
        losses=[row["loss"] for row in runs],
        bits_per_byte=mean(row["bits_per_byte"] for row in runs),
    )


def _comparable(baseline: list[CellResult], row: list[CellResult]) -> list[tuple[CellResult, CellResult]]:
    """The cells of the sizes that both have; those with several seeds alone, where there are some.

    Intervals rest on the spread of seeds at every size, so that one seed somewhere would leave none.
    """
    ours = {cell.size: cell for cell in row}
    pairs = [(cell, ours[cell.size]) for cell in baseline if cell.size in ours]
    several = [pair for pair in pairs if all(len(cell.losses) > 1 for cell in pair)]
    return several or pairs


def _compared(baseline: list[CellResult], row: list[CellResult]) -> Comparison | None:
    """At the sizes of both, with the baseline's law through all of its own."""
    pairs = _comparable(baseline, row)
    if not pairs:
        return None
    first, ours = ([pair[side] for pair in pairs] for side in (0, 1))
    whole = [*first, *(cell for cell in baseline if cell not in first)]
    sides = [
        ([cell.compute for cell in cells], [cell.losses for cell in cells]) for cells in (first, ours, whole)
    ]
    return compare(sides[0], sides[1], reference=sides[2])

"""The findings of the runs of a study, as summaries, claims and drawings ask for them."""

from dataclasses import dataclass
from functools import cached_property

from nadaraya.study.file import Study
from nadaraya.study.kept import Results, Row
from nadaraya.study.probes import lacks
from nadaraya.study.statistics import Gaps, gaps_between


@dataclass(frozen=True)
class Findings:
    """The finished runs of a study at the learning rates that were chosen.

    Args:
        study: the study.
        results: content of its results.json.

    >>> from nadaraya.reproduce import load_experiment
    >>> from nadaraya.study import Findings
    >>> Findings(load_experiment("papers", "smoke").study, {"cells": [], "runs": []}).sizes("rope")
    {}
    """

    study: Study
    results: Results

    @cached_property
    def rows(self) -> dict[tuple[str, str], list[Row]]:
        """The runs of every variant at every size, by seed."""
        rates = {(cell["variant"], cell["size"]): cell["learning_rate"] for cell in self.results["cells"]}
        found: dict[tuple[str, str], list[Row]] = {cell: [] for cell in rates}
        for row in self.results["runs"]:
            cell = row["variant"], row["size"]
            chosen = rates.get(cell) == row["learning_rate"] and row["seed"] in self.study.seeds_of(cell[1])
            if "loss" in row and chosen:
                found[cell].append(row)
        return found

    def sizes(self, variant: str, *probes: str) -> dict[str, list[Row]]:
        """The runs of a variant by size, fewest updates first; those alone that have the probes named."""
        found = {
            size: [row for row in self.rows.get((variant, size), []) if not lacks(row, *probes)]
            for size in self.study.sizes
        }
        there = {size: rows for size, rows in found.items() if rows}
        return dict(sorted(there.items(), key=lambda item: item[1][0]["steps"]))

    def longest(self, variant: str, *probes: str) -> list[Row]:
        """The runs at the most updates that several seeds have, or at the most; none where there are none."""
        rows = self.sizes(variant, *probes).values()
        return max(rows, key=lambda rows: (len(rows) > 1, rows[0]["steps"]), default=[])

    def gaps(self, variant: str, than: str = "") -> Gaps | None:
        """A variant against another one, default the baseline, by size; None where no seed has both."""
        pairs = {}
        for size in self.study.sizes:
            theirs, ours = (
                {row["seed"]: row for row in self.rows.get((name, size), [])}
                for name in (than or self.study.baseline, variant)
            )
            pairs[size] = [(theirs[seed], ours[seed]) for seed in sorted({*theirs} & {*ours})]
        pairs = {size: rows for size, rows in pairs.items() if rows}
        return gaps_between(pairs) if pairs else None

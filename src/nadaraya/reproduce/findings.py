"""What the runs of a study have found, as claims and drawings ask for it."""

from dataclasses import dataclass
from functools import cached_property

from nadaraya.study import Study
from nadaraya.study.gaps import Gaps, gaps_of
from nadaraya.study.kept import Results
from nadaraya.study.probes import lacks
from nadaraya.study.runs import Row, chosen_rows


@dataclass(frozen=True)
class Findings:
    """The finished runs of a study at the learning rates that were chosen.

    Args:
        study: the study.
        results: content of its results.json.

    >>> from nadaraya.reproduce import Findings, load_experiment
    >>> Findings(load_experiment("papers", "smoke").study, {"cells": [], "runs": []}).sizes("rope")
    {}
    """

    study: Study
    results: Results

    @cached_property
    def _rows(self) -> dict[tuple[str, str], list[Row]]:
        return chosen_rows(self.study, self.results)

    def sizes(self, variant: str, probe: str = "") -> dict[str, list[Row]]:
        """The runs of a variant by size, fewest updates first; those alone that have a probe, if named."""
        found = {
            size: [row for row in self._rows.get((variant, size), []) if not (probe and lacks(row, probe))]
            for size in self.study.sizes
        }
        there = {size: rows for size, rows in found.items() if rows}
        return dict(sorted(there.items(), key=lambda item: item[1][0]["steps"]))

    def longest(self, variant: str, probe: str = "") -> list[Row]:
        """The runs at the most updates that several seeds have, or at the most; none where there are none."""
        rows = self.sizes(variant, probe).values()
        return max(rows, key=lambda rows: (len(rows) > 1, rows[0]["steps"]), default=[])

    def gaps(self, variant: str, than: str) -> Gaps | None:
        """A variant against any other one, by size; None where no seed has both."""
        against = self.study.model_copy(update={"baseline": than})
        return gaps_of(against, self.results).get(variant)

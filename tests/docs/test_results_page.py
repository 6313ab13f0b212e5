"""Figures of docs/results.md are those of the committed summaries that it links."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIGURE = r"\d\.\d{4} ± \d\.\d{4}|\d\.\d\d \(\d\.\d\d–\d\.\d\d\)"


def test_the_table_of_a_study_has_the_losses_and_shares_of_its_summary() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    section = page.split("## Language models at equal compute")[1].split("\n## ")[0]
    summary = (ROOT / "experiments/results/studies/gka-bytepairs/summary.md").read_text(encoding="utf-8")
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows
    for row in rows:
        variant = row.split("`")[1]
        of_variant = [line for line in summary.splitlines() if f" | {variant} | " in line]
        assert re.findall(FIGURE, row) == [
            figure for line in of_variant for figure in re.findall(FIGURE, line)
        ], variant

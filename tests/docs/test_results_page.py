"""Figures of docs/results.md are those of the committed summaries that it links."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_of_a_study_is_that_of_its_summary() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    section = page.split("## Language models at equal compute")[1].split("\n## ")[0]
    summary = (ROOT / "experiments/results/studies/gka-bytepairs/summary.md").read_text(encoding="utf-8")
    shown, found = (
        [line for line in text.splitlines() if line.startswith(("| variant | rates", "| `"))]
        for text in (section, summary)
    )
    assert len(shown) > 2
    assert shown == found

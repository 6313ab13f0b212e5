"""Figures of docs/results.md are those of the committed summaries that it links."""

import re
from pathlib import Path

import pytest

from nadaraya.study import Study, summarise
from nadaraya.study.summary import read_results

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
SUMMARIES = sorted(set(re.findall(r"\.\./(experiments/results/studies/[\w-]+/summary\.md)", PAGE)))


def test_the_tables_of_studies_are_those_of_their_summaries() -> None:
    shown = _tables(PAGE)
    texts = [(ROOT / summary).read_text(encoding="utf-8") for summary in SUMMARIES]
    found = [table for text in texts for table in _tables(text)]
    # Those of horizons have a table of gaps instead, which the page does not repeat.
    by_compute = [text for text in texts if "\nGap to `" not in text]
    assert len(found) == len(by_compute) > 0
    assert all(len(table) > 2 for table in found)
    assert sorted(shown) == sorted(found)


@pytest.mark.parametrize("summary", SUMMARIES)
def test_summaries_are_what_a_study_says_now_of_its_results(summary: str) -> None:
    path = ROOT / summary
    results = read_results(path.parent)
    made = summarise(Study(**results["study"]), results).markdown()
    assert path.read_text(encoding="utf-8").startswith(made)


def _tables(text: str) -> list[list[str]]:
    """The tables of losses by variant, each as its lines."""
    return [
        block.splitlines()
        for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
        if block.startswith("| variant | rates")
    ]

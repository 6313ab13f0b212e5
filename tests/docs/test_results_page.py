"""Figures of docs/results.md are those of the committed summaries that it links."""

import re
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from nadaraya.study import Study, summarise
from nadaraya.study.results import read_results, results_text

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
    # Written again they are the same file: keys keep their order.
    assert results_text(results) == (path.parent / "results.json").read_text(encoding="utf-8")


def test_the_table_of_ideas_is_that_of_their_runs() -> None:
    results = read_results(ROOT / "experiments/results/studies/beyond")
    runs = [run for run in results["runs"] if run["size"] == "u3000"]
    gaps = summarise(Study(**results["study"]), results).gaps
    (table,) = re.findall(r"^\| idea \| name in the study.*\n\|.*\n((?:\|.*\n)+)", PAGE, flags=re.MULTILINE)
    rows = {cells[2]: cells[3:7] for cells in (re.split(r" *\| *", line) for line in table.splitlines())}
    assert set(rows) == {f"`{run['variant']}`" for run in runs}
    for name, (seeds, loss, gap, far) in rows.items():
        own = [run for run in runs if f"`{run['variant']}`" == name]
        losses = [run["loss"] for run in own]
        assert int(seeds) == len(own), name
        assert loss == f"{mean(losses):.3f}" + (f" ± {stdev(losses):.3f}" if len(own) > 1 else ""), name
        assert far.replace("−", "-") == f"{mean(_change(run, 4096) for run in own):+.3f}", name
        if own[0]["variant"] != "gpa-rope":
            (found,) = [size.gap for size in gaps[own[0]["variant"]].sizes if size.size == "u3000"]
            interval = "" if found.low is None else f" ({found.low:+.3f} to {found.high:+.3f})"
            assert gap.replace("−", "-") == f"{found.value:+.3f}{interval}", name


def test_banks_have_the_losses_of_their_runs() -> None:
    results = read_results(ROOT / "experiments/results/studies/banks")
    losses = {run["variant"]: run["loss"] for run in results["runs"] if run["seed"] == 0}
    section = PAGE.split("## Orders, starts and sharing of banks, by character")[1].split("\n## ")[0]
    shown = re.findall(r"`([\w-]+)` (\d\.\d+)", section)
    assert {name for name, _ in shown} == set(losses)
    assert all(loss == f"{losses[name]:.3f}" for name, loss in shown)


def test_what_remains_beside_controls_is_what_was_found() -> None:
    found = (ROOT / "experiments/results/studies/controls/remains.md").read_text(encoding="utf-8")
    rows = [line for line in found.splitlines() if re.search(r"\d\.\d", line)]
    assert len(rows) >= 7
    assert all(row in PAGE for row in rows)


def _change(run: dict[str, Any], length: int) -> float:
    """The loss with so many tokens less that with the length of training."""
    (change,) = [row["change"] for row in run["probes"]["lengths"]["lengths"] if row["length"] == length]
    return float(change)


def _tables(text: str) -> list[list[str]]:
    """The tables of losses by variant, each as its lines."""
    return [
        block.splitlines()
        for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
        if block.startswith("| variant | rates")
    ]

"""Tables of the pages on results are those of the committed JSON; summaries are those of their results."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from nadaraya.study import Study, summarise
from nadaraya.study.results import read_results, results_text

ROOT = Path(__file__).parents[2]
SUMMARIES = sorted((ROOT / "experiments/results/studies").glob("*/summary.md"))


@pytest.fixture(scope="module")
def pages() -> Any:
    """The program that writes the tables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "experiments")
        yield importlib.import_module("write_pages")


def test_every_table_is_what_the_json_says_now(pages: Any) -> None:
    stale = []
    for page in pages.PAGES:
        text = page.read_text(encoding="utf-8")
        shown = dict(re.findall(r"<!-- table: ([\w-]+) -->\n\n(.*?)\n\n<!-- end -->", text, re.DOTALL))
        assert list(shown) == pages.names(text), page
        stale += [f"{page.name}: {name}" for name, table in shown.items() if table != pages.TABLES[name]()]
    assert not stale, f"run python experiments/write_pages.py for {stale}"


def test_every_table_stands_on_one_page_and_is_made_by_the_program(pages: Any) -> None:
    shown = [name for page in pages.PAGES for name in pages.names(page.read_text(encoding="utf-8"))]
    assert sorted(shown) == sorted(pages.TABLES)


def test_no_table_of_results_is_typed_by_hand(pages: Any) -> None:
    for page in pages.PAGES:
        if page.name not in ("README.md", "targets.md"):  # what is left to measure has no results
            assert not re.findall(r"^\|.*", pages.outside(page.read_text(encoding="utf-8")), re.M), page


def test_readme_shows_what_the_demo_printed() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^ (demo-[\w-]+) +(.*)$", text, re.M)
    found = json.loads((ROOT / "experiments/results/demo.json").read_text(encoding="utf-8"))
    runs = [
        (run["name"], run["variant"], str(run["step"]), f"{run['parameters']:,}",
         f"{run['kernel_parameters']:,}", f"{run['loss']:.4f}", f"{run['bits_per_byte']:.4f}",
         f"{1000 * run['step_seconds']:.1f}")
        for run in found["runs"]
    ]  # fmt: skip
    lengths = []
    for name, each in found["lengths"].items():
        first, *longer = each["rows"]
        losses = [first["full"], *(row[kind] for row in longer for kind in ("full", "window"))]
        lengths.append((name, *(f"{loss:.3f}" for loss in losses)))
    assert [(name, *rest.split()) for name, rest in shown] == [*runs, *lengths]


@pytest.mark.parametrize("path", SUMMARIES, ids=lambda path: path.parent.name)
def test_summaries_are_what_a_study_says_now_of_its_results(path: Path) -> None:
    results = read_results(path.parent)
    made = summarise(Study(**results["study"]), results).markdown()
    assert path.read_text(encoding="utf-8").startswith(made)
    # Written again they are the same file: keys keep their order.
    assert results_text(results) == (path.parent / "results.json").read_text(encoding="utf-8")

"""The tables of README, docs/results, docs/findings.md and docs/development/targets.md, from the JSON.

    python experiments/write_pages.py

A table stands in a page between `<!-- table: NAME -->` and `<!-- end -->`. The command writes all of them
again, and a test compares them with what it would write; text and headings are written by hand.
"""

import re

import pages_findings
import pages_language
import pages_papers
import pages_recall
import pages_regression
import pages_related
import pages_speed
import pages_targets
import pages_trained
from pages_format import ROOT, Tables

from nadaraya.files import write_file

DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *sorted((DOCS / "results").glob("*.md")),
    DOCS / "findings.md",
    DOCS / "development" / "targets.md",
]
TABLES: Tables = {
    **pages_findings.TABLES,
    **pages_language.TABLES,
    **pages_papers.TABLES,
    **pages_recall.TABLES,
    **pages_regression.TABLES,
    **pages_related.TABLES,
    **pages_speed.TABLES,
    **pages_targets.TABLES,
    **pages_trained.TABLES,
}
_BLOCK = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """A page with its tables as they are now."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{TABLES[block[2]]()}\n\n{block[3]}", text)


def names(text: str) -> list[str]:
    """The tables of a page, in their order."""
    return [block[2] for block in _BLOCK.finditer(text)]


def outside(text: str) -> str:
    """A page without its tables."""
    return _BLOCK.sub("", text)


def main() -> None:
    """Write the tables of all pages."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        write_file(page, filled(text))
        print(f"{page.relative_to(ROOT)}: {len(names(text))} tables")


if __name__ == "__main__":
    main()

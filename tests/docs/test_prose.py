"""Pages are for readers: no paragraph is a list of numbers, and no page grows without end."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from shown import DOCS, README, ROOT

markdown_it = pytest.importorskip("markdown_it")

MOST_NUMBERS = 3
LINES = {
    "README.md": 110,
    "notebook.md": 10_000,
    "variants.md": 180,
}  # of every other page 400, of guides 150
KILOBYTES = 260
# What is no quantity: code, formulas, links, years, days, versions, and what is numbered in a work.
NO_QUANTITY = (
    r"`[^`]*`",
    r"\$[^$]*\$",
    r"\]\([^)]*\)",
    r"\b(19|20)\d\d(-\d\d-\d\d)?[a-z]?\b",
    r"\b(figures?|tables?|section|chapters?|eq\.|equations?|appendix|algorithm|Python|torch|PyTorch|Triton|version)"
    r" [\d.]+[a-z]?(( and |, |–)[\d.]+[a-z]?)*",
    r"\b[A-Za-z]+[\d-]*-?\d+[a-z]?\b",  # wikitext2, sm_80, CIFAR-10, T5
    r"\bG\(0\) = 1\b",
)
NUMBER = re.compile(r"(?<![\w.])[-+−±]?\d[\d,. ]*\d|(?<![\w.])[-+−±]?\d")


def paragraphs(page: Path) -> Iterator[str]:
    """Paragraphs and items of lists as they are written; no tables, headings or code."""
    tokens = (
        markdown_it.MarkdownIt("commonmark").enable("table").parse(_body(page.read_text(encoding="utf-8")))
    )
    inside = ""
    for token in tokens:
        if token.type in ("table_open", "heading_open", "table_close", "heading_close"):
            inside = token.type.removesuffix("_open") if token.type.endswith("_open") else ""
        elif token.type == "inline" and not inside:
            yield token.content


def _body(text: str) -> str:
    """A page without the header of a notebook, comments and displayed formulas."""
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)
    return re.sub(r"<!--.*?-->|^\$\$.*?^\$\$", "", text, flags=re.DOTALL | re.MULTILINE)


def numbers(paragraph: str) -> list[str]:
    """The quantities that a paragraph states."""
    for pattern in NO_QUANTITY:
        paragraph = re.sub(pattern, " ", paragraph)
    return NUMBER.findall(paragraph)


def test_numbers_are_counted_as_a_reader_does() -> None:
    assert numbers("1.26 × at 2,048 tokens, 3–27 % (Chi et al. 2022), `x[3]`, figure 5a, CIFAR-10") == [
        "1.26", "2,048", "3", "27",
    ]  # fmt: skip
    assert numbers("0.76 ± 0.02 in PyTorch 2.11, G(0) = 1, [one](page2.md)") == ["0.76", "0.02"]


@pytest.mark.parametrize("page", [README, *DOCS], ids=lambda page: str(page.relative_to(ROOT)))
def test_no_paragraph_is_a_list_of_numbers(page: Path) -> None:
    if page.name == "notebook.md":
        return
    crowded = [text for text in paragraphs(page) if len(numbers(text)) > MOST_NUMBERS]
    assert not crowded


@pytest.mark.parametrize("page", [README, *DOCS], ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_short(page: Path) -> None:
    most = LINES.get(page.name, 150 if page.parent.name == "guides" else 400)
    assert len(page.read_text(encoding="utf-8").splitlines()) <= most


def test_all_pages_together_are_a_small_book() -> None:
    assert sum(page.stat().st_size for page in DOCS) <= KILOBYTES * 1024

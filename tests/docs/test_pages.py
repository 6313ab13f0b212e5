"""The site's pages: notebooks compile and run, links and tables of contents lead somewhere."""

import importlib
import os
import re
from pathlib import Path
from typing import Any

import pytest
from forked import Forked

read = pytest.importorskip("myst_nb.core.read", reason="the pages are read by the docs extra")
markdown_it = pytest.importorskip("markdown_it")

DOCS = Path(__file__).parents[2] / "docs"
TABLES = DOCS.parents[1] / "shared" / "data" / "regression"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)
NOTEBOOKS = [page for page in PAGES if read.is_myst_markdown_notebook(page.read_text(encoding="utf-8"))]
SHORT = (
    "guides/gallery.md", "tutorial/1-kernel-regression.md", "tutorial/4-attention.md",
    "tutorial/7-photograph.md",
)  # fmt: skip

# What makes a notebook quick; the site has it as it is.
SMALL = {
    "tutorial/2-masked-training.md": {
        "n_steps=100": "n_steps=4", "range(10)": "range(2)", "range(50)": "range(2)",
    },
    "tutorial/3-several-heads.md": {
        '"average": 0}': '"average": 0, "n_steps": 4}', "0).fit(": "0, n_steps=4).fit(",
        '"n_steps": 300, ': "", "(heads, **options)": "(heads, **{**options, 'n_steps': 4})",
        "range(5)": "range(2)",
    },
    "tutorial/5-real-data.md": {"order[:2000], order[2000:4000]": "order[:200], order[200:400]"},
    "tutorial/6-bank-on-text.md": {
        "0.1, 1000": "0.1, 4", "0.03, 3000": "0.03, 4", "training.steps=150": "training.steps=4",
        '"training.evaluate_every=150",': '"training.warmup_steps=0", "data.limit=60000",',
        "batch_size=12": "batch_size=2",
    },
    "tutorial/7-photograph.md": {"[90:218, 190:318]": "[90:130, 190:230]"},
}  # fmt: skip


def name(page: Path) -> str:
    return str(page.relative_to(DOCS))


def cells(page: Path, changes: dict[str, str] | None = None) -> list[Any]:
    """The code cells of a page, compiled, with their place in it for tracebacks."""
    text = page.read_text(encoding="utf-8")
    for given, instead in (changes or {}).items():
        assert given in text
        text = text.replace(given, instead)
    notebook = read.read_myst_markdown_notebook(text)
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return [compile(source, f"{name(page)}, cell {i}", "exec") for i, source in enumerate(sources, 1)]


def test_the_site_has_its_notebooks() -> None:
    assert [name(page) for page in NOTEBOOKS] == [
        "guides/gallery.md",
        "guides/regression.md",
        "tutorial/1-kernel-regression.md",
        "tutorial/2-masked-training.md",
        "tutorial/3-several-heads.md",
        "tutorial/4-attention.md",
        "tutorial/5-real-data.md",
        "tutorial/6-bank-on-text.md",
        "tutorial/7-photograph.md",
    ]


@pytest.mark.parametrize("page", NOTEBOOKS, ids=name)
def test_code_compiles(page: Path) -> None:
    assert cells(page)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=() if name(page) in SHORT else pytest.mark.slow) for page in NOTEBOOKS],
    ids=name,
)
def test_code_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(page.parent)  # as the build does
    if TABLES.is_dir() and "NADARAYA_DATA" not in os.environ:
        monkeypatch.setenv("NADARAYA_DATA", str(TABLES))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    with matplotlib.rc_context():
        pyplot.switch_backend("agg")
        try:
            for cell in cells(page, SMALL.get(name(page))):
                exec(cell, namespace)
            assert all(figure.axes for figure in map(pyplot.figure, pyplot.get_fignums()))
        finally:
            pyplot.close("all")


@pytest.fixture(scope="module")
def mathml() -> Any:
    """The site's own conversion of formulas."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS / "_ext")
        yield importlib.import_module("mathml").mathml


def test_every_formula_is_converted(mathml: Any) -> None:
    dollarmath = pytest.importorskip("mdit_py_plugins.dollarmath")
    parser = markdown_it.MarkdownIt("commonmark").enable("table").use(dollarmath.dollarmath_plugin)
    count = 0
    for page in PAGES:
        tokens = parser.parse(page.read_text(encoding="utf-8"))
        for token in (each for outer in tokens for each in (outer, *(outer.children or []))):
            if token.type.startswith("math"):
                display = "inline" if token.type == "math_inline" else "block"
                assert mathml(token.content, display).startswith("<math"), (page, token.content)
                count += 1
    assert count > 100


def test_a_command_that_is_not_known_is_an_error(mathml: Any) -> None:
    with pytest.raises(ValueError, match=r"\\kernal"):
        mathml(r"\kernal(x)")


def test_names_of_functions_stand_apart_from_their_arguments(mathml: Any) -> None:
    assert mathml(r"n \log n").count("<mspace") == 2
    assert "<mspace" not in mathml(r"\log(n)")


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Without running its notebooks, of which myst-nb then does not know the language: others do that."""
    options = ["-W", "--keep-going", "-q", "-b", "html", "-d", tmp_path / "doctrees"]
    options += ["-D", "nb_execution_mode=off", "-D", "suppress_warnings=myst-nb.lexer"]
    program = "import sys; from sphinx.cmd.build import main; sys.exit(main(sys.argv[1:]))"
    built = Forked(program, *options, DOCS, tmp_path / "html").end()
    assert built.status == 0, built.err
    assert (tmp_path / "html" / "index.html").is_file()


@pytest.mark.parametrize(
    "page",
    [*(DOCS.parent / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")), *PAGES],
    ids=lambda page: page.name,
)
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    tokens = markdown_it.MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))
    inline = [child for token in tokens for child in token.children or []]
    targets = [child.attrGet("href") or child.attrGet("src") for child in inline]
    local = [target for target in targets if target and not re.match(r"[a-z]+:", target)]
    missing = [target for target in local if not (page.parent / target.split("#")[0]).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_tables_of_contents_name_pages(page: Path) -> None:
    tokens = markdown_it.MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8"))
    trees = [token.content for token in tokens if token.type == "fence" and token.info == "{toctree}"]
    entries = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    assert all((page.parent / f"{entry}.md").is_file() for entry in entries), entries


def test_every_page_is_in_a_table_of_contents() -> None:
    listed = {DOCS / "index.md"}
    for page in PAGES:
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            listed |= {page.parent / f"{line}.md" for line in tree.splitlines() if line and line[0] != ":"}
    assert listed == set(PAGES)

"""Tables that verbs print are read on a terminal of 80 columns: nothing is cut or on its side."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from shown import ROOT

from nadaraya.cli.results import Result, render
from nadaraya.cli.tables import FigureTable

from .conftest import TINY, Command

WORDS = st.text("abcdefgh-", min_size=1, max_size=30)
FIGURE = st.text("0123456789.", min_size=1, max_size=15)


def lines(table: FigureTable, width: int) -> list[str]:
    """What a console of some width shows."""
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table)
    return captured.get().splitlines()


@given(
    names=st.lists(WORDS, min_size=1, max_size=3),
    figures=st.lists(FIGURE, min_size=1, max_size=12),
    rows=st.integers(1, 4),
    width=st.sampled_from([60, 80, 120]),
)
def test_every_figure_of_a_table_is_shown_whole_beside_the_names_of_its_row(
    names: list[str], figures: list[str], rows: int, width: int
) -> None:
    table = FigureTable([f"name {n}" for n in range(len(names))], [f"n{n}" for n in range(len(figures))])
    for row in range(rows):
        table.add_row(*(f"{row}{name}" for name in names), *(f"{row}:{figure}" for figure in figures))
    shown = lines(table, width)
    assert all(len(line) <= width for line in shown)
    for row in range(rows):
        of_row = [line.split() for line in shown if f" {row}:" in line]
        assert [cell for line in of_row for cell in line if ":" in cell] == [f"{row}:{f}" for f in figures]
        beginning = f"{row}{names[0]}"[
            :8
        ]  # a name folds at a hyphen or in the middle, never sooner than this
        assert all(f" {beginning.split('-')[0]}" in line for line in shown if f" {row}:" in line)


def test_columns_that_do_not_fit_follow_below() -> None:
    table = FigureTable(["variant"], [f"figure {number}" for number in range(12)])
    table.add_row("rope", *(f"{number}.000" for number in range(12)))
    shown = [line.split() for line in lines(table, 80)]
    assert [line[0] for line in shown if line].count("rope") == 2
    assert len(lines(table, 140)) == len(lines(table, 80)) // 2


def test_verbs_print_no_tables_but_these() -> None:
    own = [
        path.name
        for path in (ROOT / "src" / "nadaraya" / "cli").glob("*.py")
        if re.search(r"\bTable\(", path.read_text(encoding="utf-8")) and path.name != "tables.py"
    ]
    assert own == ["lags.py"]  # a histogram: two numbers and a bar


def test_text_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    table = FigureTable(["name"], ["n"])
    table.add_row("[b] :cat:", "1")
    render(Result(None, ["[b] :cat:\t1\f2", table]), as_json=False)
    line, shown = capsys.readouterr().out.split("\n", 1)
    assert line == "[b] :cat:\t1\f2"
    assert "[b] :cat:" in shown


@pytest.mark.parametrize(
    "words",
    [
        "banks RUN --null RUN --terms --top 3 --windows 2",
        "bench decode gka --tokens 2 --prompt 4 --rounds 1",
        "compare RUN RUN",
        "count RUN rope gka-loo-bank",
        "data list",
        "evaluate RUN --lengths 4,8",
        "heads RUN RUN --windows 2",
        "implied RUN --windows 2 --terms 2",
        "lags TEXT",
        "prune RUN --heads 0.1 --out SMALLER",
        "reproduce gpa-losses --scale paper --dry-run",
        pytest.param("study STUDY --dry-run --speed 1e9", marks=pytest.mark.slow),
    ],
)
def test_what_a_verb_prints_fits_80_columns(
    words: str, nadaraya: Command, trained_run: Path, shared_text: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("a").symlink_to(trained_run)  # sentences that name it are not tables, and may be long
    Path("study.yaml").write_text(
        "{recipe: demo, baseline: rope, learning_rates: [0.1], sizes: {a: {}}, variants: {rope: {}, gpa: {}}}"
    )
    monkeypatch.setenv("COLUMNS", "80")
    given = {"RUN": "a", "TEXT": shared_text, "STUDY": "study.yaml", "SMALLER": "smaller"}
    more = [f"data.corpus={shared_text}", *TINY] if words.startswith("study") else []
    outcome = nadaraya(*(given.get(word, word) for word in words.split()), *more)
    assert outcome.status == 0, outcome.err
    printed = outcome.out.splitlines()
    for number in (number for number, line in enumerate(printed) if "───" in line):
        end = next((end for end in range(number, len(printed)) if not printed[end].strip()), len(printed))
        assert max(map(len, printed[number - 1 : end])) <= 80
        assert "…" not in "".join(printed[number - 1 : end])
        assert all(len(line.strip()) > 1 for line in printed[number + 1 : end])  # no letter on its own

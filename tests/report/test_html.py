"""The report is one file that loads nothing, escapes everything and has every section."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import Page

from nadaraya.errors import InputError
from nadaraya.interpret.banks import bump_table
from nadaraya.interpret.lags import LEAST_SEPARATIONS
from nadaraya.report import write_report
from nadaraya.report.figures import draw_lengths
from nadaraya.report.html import render
from nadaraya.report.runs import labelled
from nadaraya.report.style import charts
from nadaraya.stored import read_stored
from nadaraya.training.lengths import LengthTable, write_length_file

LINES = ("x" * 69 + "\n\n") * 60

SECTIONS = ["reads", "results", "loss", "samples", "kernels", "lags", "made"]


@pytest.fixture(scope="module")
def runs(make_run: Callable[..., Any]) -> list[Any]:
    return [make_run("rope", loss=1.24), make_run("gpa-rope", loss=1.21), make_run("gpa-mul", loss=1.19)]


@pytest.fixture(scope="module")
def html(runs: list[Any]) -> str:
    return render(runs)


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_every_section_is_there_and_every_element_is_closed(page: Page) -> None:
    assert page.open == []
    assert [a["id"] for a in page.all("section")] == SECTIONS
    assert len(page.all("pre")) == 6


@pytest.mark.parametrize("variant", ["rope", "alibi"])
def test_one_run_is_enough(make_run: Callable[..., Any], variant: str) -> None:
    alone = Page(render([make_run(variant)]))
    shown = [section for section in SECTIONS if section != "kernels" or variant != "rope"]
    assert [a["id"] for a in alone.all("section")] == shown
    assert "compared" not in alone.words


def test_the_page_loads_nothing(html: str, page: Page) -> None:
    names = {tag for tag, _ in page.tags}
    assert names.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "base", "image"})
    assert "http" not in html
    assert "@import" not in html
    assert page.values("src") == []
    assert all(target.startswith("#") for target in page.values("href"))
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert len(html) < 1_500_000


def test_ids_are_unique_and_references_stay_inside(page: Page) -> None:
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {target[1:] for target in page.values("href")} <= set(ids)
    clips = {value.removeprefix("url(#").removesuffix(")") for value in page.values("clip-path")}
    assert clips
    assert clips <= set(ids)


def test_what_comes_from_a_run_is_escaped(make_run: Callable[..., Any]) -> None:
    hostile = "<script>alert(1)</script>\"'&amp;"
    texts = dict.fromkeys(("name", "folder", "setup", "recipe", "sample", "problem"), hostile)
    run = make_run("gpa-mul", **texts, corpus=(hostile, LINES))
    twin = make_run("gpa-mul", name="other")
    page = Page(render([run, twin]))
    assert page.all("script") == []
    assert page.words.count(hostile) >= 7  # each of them, and the label made of the name


def test_the_lowest_loss_is_marked_and_first(page: Page) -> None:
    classes = [row.get("class") for row in page.all("tr")]
    assert classes.count("best") == 1
    words = page.words[page.words.index("Results") :]
    assert words.index("gpa-mul") < words.index("gpa-rope") < words.index("1.2400")
    assert "−0.0500" in page.words


def test_losses_alone_are_bold(html: str) -> None:
    assert re.findall(r'class="least">([^<]+)<', html) == ["1.1900"]


def test_what_attention_reads_is_told_by_head(make_run: Callable[..., Any]) -> None:
    run = make_run("gpa-mul")
    html = render([run])
    cells = ["1, 4", "2, 7", "4, 14", "8, 27"]  # the lags within which 50 % and 90 % of the weight lie
    assert html.count("".join(f"<td>{cell}</td>" for cell in cells)) == 2
    pruned = replace(run.reads[1], heads=(0, 3), within=run.reads[1].within[[0, 3]])
    html = render([make_run("gpa-mul", reads=[run.reads[0], pruned])])
    assert "<td>1, 4</td><td>—</td><td>—</td><td>8, 27</td>" in html


def test_losses_beyond_the_training_length_have_a_line_and_a_row_per_attention(
    make_run: Callable[..., Any], tmp_path: Path
) -> None:
    rows = [{"length": 256, "full": 1.5}, {"length": 1024, "full": 2.25, "window": 1.625}]
    path = write_length_file(tmp_path, rows, context=256, window=128)
    table = read_stored(path, LengthTable, "losses by length")
    html = render([make_run("rope", lengths=table), make_run("gpa-mul")])
    section = html[html.index('id="lengths"') : html.index('id="samples"')]
    assert "<td>all</td><td>1.500</td><td>2.250</td>" in section
    assert "<td>last 128</td><td>—</td><td>1.625</td>" in section
    assert "gpa-mul" not in section
    with charts(300, 200) as (_, axes):
        draw_lengths(axes[0, 0], labelled([make_run("rope", lengths=table)]))
    full, window, trained = axes[0, 0].get_lines()
    np.testing.assert_array_equal(full.get_xydata(), [[256, 1.5], [1024, 2.25]])
    np.testing.assert_array_equal(window.get_xydata(), [[1024, 1.625]])
    assert (full.get_linestyle(), window.get_linestyle()) == ("-", "--")
    assert set(trained.get_xdata()) == {256}


def test_bumps_of_kernels_and_corpus_are_named(page: Page) -> None:
    words = " ".join(page.words.split())
    assert "line length of the corpus in the tokens of this run, lag 70." in words
    assert "Without a lag kernel: rope." in words
    assert "70 (lines of 69 characters and the newline)" in words


def test_an_unfinished_run_shows_what_it_has(make_run: Callable[..., Any]) -> None:
    run = make_run("gpa-mul", finished=False, sample="")
    words = " ".join(Page(render([run, make_run("rope")])).words.split())
    assert "unfinished, step 300" in words
    assert "without a model to look into: gpa-mul" in words
    assert "gpa-mul: no text was generated" in words


def test_an_unfinished_run_is_never_the_best(make_run: Callable[..., Any]) -> None:
    runs = [
        make_run("gpa-mul", finished=False, loss=0.5),
        make_run("gpa", loss=1.3),
        make_run("rope", loss=1.4),
    ]
    words = " ".join(Page(render(runs)).words.split())
    assert "gpa has the lowest validation loss, 1.3000 nats/token, 0.1000 below rope." in words
    assert "No run is finished yet." in Page(render(runs[:1])).words


def test_losses_on_different_texts_are_not_compared(make_run: Callable[..., Any]) -> None:
    page = Page(render([make_run("rope"), make_run("gpa-mul", text=("dickens",))]))
    assert "their losses do not compare" in page.words
    assert "lowest" not in page.words
    assert "best" not in page.values("class")


def test_too_little_generated_text_is_said(make_run: Callable[..., Any]) -> None:
    short = "a\n" * LEAST_SEPARATIONS
    words = Page(render([make_run("rope", sample=short)])).words
    assert f"{LEAST_SEPARATIONS - 1} newline separations, fewer than the {LEAST_SEPARATIONS}" in words
    assert "written by rope" in Page(render([make_run("rope", sample=short + "a\n")])).words


def test_a_corpus_that_is_gone_is_said(make_run: Callable[..., Any]) -> None:
    run = make_run("gpa-mul", corpus=None, problem="no file named old.txt")
    assert Page(render([run, run])).words.count("no file named old.txt") == 1


def test_runs_of_one_variant_are_told_apart(make_run: Callable[..., Any]) -> None:
    words = Page(render([make_run("rope", name="seed-1"), make_run("rope", name="seed-2")])).words
    assert "rope · seed-1" in words
    assert "rope · seed-2" in words


def test_the_page_is_the_same_every_time(runs: list[Any], html: str) -> None:
    assert render(runs) == html


def test_an_existing_file_is_kept_unless_forced(runs: list[Any], tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    out.write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        write_report(runs[:1], out)
    assert out.read_text() == "mine"
    assert write_report(runs[:1], out, force=True) == out
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_impossible_requests_are_refused(runs: list[Any], tmp_path: Path) -> None:
    for out in (tmp_path / "missing" / "report.html", tmp_path):
        with pytest.raises(InputError, match="out must be a file in a folder that exists"):
            write_report(runs, out, force=True)
    with pytest.raises(InputError, match=r"at least one run, got \[\]"):
        render([])


def test_pages_print_on_white_wrap_samples_and_fit_a_telephone(html: str, page: Page) -> None:
    style = html[html.index("<style>") : html.index("</style>")]
    assert style.count("@media screen and (prefers-color-scheme: dark)") == 2  # paper stays white
    assert "prefers-color-scheme: dark" not in style.replace("screen and (prefers-color-scheme: dark)", "")
    assert "@page" in style
    samples = [attributes for attributes in page.all("pre") if attributes.get("class") == "sample"]
    assert len(samples) == 3
    assert "pre.sample { white-space: pre-wrap" in style
    assert "width=device-width" in html


def test_bumps_are_counted_beside_those_of_the_start_and_of_chance(make_run: Callable[..., Any]) -> None:
    run = make_run("gpa-mul")
    html = render([run])
    table = bump_table(run.banks, [70])
    matches = table.matches()
    for words in (
        f"Bumps of gpa-mul: {matches['trained'].bumps}, and what chance shows",
        f"{matches['trained'].bumps} bumps in all layers, {matches['initial'].bumps} before training.",
        f"Within 3 tokens of lag 70 stands {matches['trained'].matched};",
        f"would put {matches['trained'].expected:.1f} there",
    ):
        assert words in " ".join(Page(html).words.split())
    for row in table.rows():
        cells = [", ".join(f"{row['layer']}.{head}" for head in row["heads"]), row["lag"]]
        cells += [f"{row['height']:.2f}", f"{row['width']:.1f}", row["as_high_at_start"]]
        assert "".join(f"<td>{cell}</td>" for cell in cells) in html

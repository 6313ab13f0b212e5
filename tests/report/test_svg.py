"""An inline figure refers to nothing but itself and follows the page's colours and font."""

import re

from matplotlib.figure import Figure

from nadaraya.report.page import inline_svg
from nadaraya.report.palette import COLOURS, DASHED
from nadaraya.report.style import charts


def drawn(colour: str = "blue") -> Figure:
    with charts(300, 200) as (figure, axes):
        axes[0, 0].plot([0, 1], [0, 1], color=COLOURS[colour][0], marker="o", linestyle=(0, DASHED))
        axes[0, 0].set_title("a title & <more>")
    return figure


def test_colours_are_variables_and_text_is_text() -> None:
    for colour in COLOURS:
        assert f"stroke: var(--{colour})" in inline_svg(drawn(colour), "a", "")
    svg = inline_svg(drawn(), "a", "")
    assert ">a title &amp; &lt;more&gt;</text>" in svg
    assert "font-family" not in svg
    assert not re.search(r"#[0-9a-f]{6}\b", svg)


def test_two_figures_share_no_id_and_refer_to_nothing_outside() -> None:
    first, second = inline_svg(drawn(), "a", ""), inline_svg(drawn(), "b", "")
    ids = [set(re.findall(r' id="([^"]+)"', svg)) for svg in (first, second)]
    assert ids[0].isdisjoint(ids[1])
    used = set(re.findall(r"url\(#([^)]+)\)", first)) | set(re.findall(r'href="#([^"]+)"', first))
    assert used == ids[0]
    assert "http" not in first
    assert "<style" not in first


def test_the_description_is_escaped() -> None:
    assert 'aria-label="1 &lt; 2 &quot;so&quot;"' in inline_svg(drawn(), "a", '1 < 2 "so"')

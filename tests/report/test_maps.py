"""The pages and files of attention maps: complete, self-contained, escaped, and never in another's place."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nadaraya.errors import InputError
from nadaraya.interpret.attention_maps import AttentionMaps, LayerMaps
from nadaraya.report import maps as maps_module
from nadaraya.report.maps import Subject, write_maps
from nadaraya.report.maps_image import ImageFigures
from nadaraya.report.maps_matrices import bandwidth_heatmap, bandwidth_lines
from nadaraya.report.maps_style import enlarged, limits, number, scaled
from nadaraya.report.maps_text import TextFigures, printable


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pixels: what is tested does not depend on them."""
    monkeypatch.setattr(maps_module, "_DPI", 30)


def attention(
    tokens: int, heads: int = 2, layers: int = 2, sigma: bool = True, **options: Any
) -> AttentionMaps:
    torch.manual_seed(0)
    found = []
    for layer in range(layers):
        weights = torch.rand(1, heads, tokens, tokens).pow(4).softmax(-1)
        bandwidth = torch.rand(heads) + 0.5 if sigma and layer == 0 else None
        found.append(LayerMaps(f"blocks.{layer}.attn", weights, bandwidth, 1e-7))
    return AttentionMaps(tuple(found), None, **{"reads": "cls", **options})


def image_figures(heads: int = 2, sigma: bool = True, **options: Any) -> ImageFigures:
    given = {"num_prefix_tokens": 1, "class_token": True, "grid": (3, 4), **options}
    maps = attention(given["num_prefix_tokens"] + 12, heads, sigma=sigma, **given)
    return ImageFigures(maps, np.random.default_rng(0).random((24, 32, 3)))


def text_figures(text: str = "to be, or not\nto be") -> TextFigures:
    causal = tuple(
        LayerMaps(layer.name, layer.weights.tril() / layer.weights.tril().sum(-1, keepdim=True), None, 0.0)
        for layer in attention(len(text)).layers
    )
    return TextFigures(AttentionMaps(causal, None, "last", tokens=(tuple(text),)))


SUBJECT = Subject("gka", "cat.png", "image", [("Run", "a")], [("cat", 0.75), ("dog", 0.25)])


class Page(HTMLParser):
    """Tags, ids, links and text of a page; closing tags must match."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.sources: list[str] = []
        self.open: list[str] = []
        self.words = ""
        self.feed(path.read_text(encoding="utf-8"))
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.ids |= {found["id"] or ""} if "id" in found else set()
        self.links += [found["href"] or ""] if "href" in found else []
        self.sources += [found["src"] or ""] if "src" in found else []
        if tag == "img":
            assert found["alt"]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_an_image_gets_all_six_kinds_and_a_self_contained_page(tmp_path: Path) -> None:
    record = write_maps(image_figures(), SUBJECT, tmp_path / "maps")
    names = {str(path.relative_to(tmp_path / "maps")) for path in (tmp_path / "maps").rglob("*.*")}
    assert names == {*record["files"], "maps.json"}
    assert names == {
        "index.html", "maps.json", "rollout/rollout.png", "bandwidths/heatmap.png", "bandwidths/lines.png",
        "layers/evolution.png", "matrices/all.png",
        *(f"{kind}/layer-{layer:02d}.png" for kind in ("heads", "queries") for layer in (1, 2)),
        *(f"matrices/layer-{layer:02d}-head-{head:02d}.png" for layer in (1, 2) for head in (1, 2)),
    }  # fmt: skip
    page = Page(tmp_path / "maps" / "index.html")
    assert len(page.sources) == 9  # all figures but the single matrices
    assert all(source.startswith("data:image/webp;base64,") for source in page.sources)
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert len(page.links) == 7
    assert not re.search(r"https?://|@import|url\(", (tmp_path / "maps" / "index.html").read_text())
    assert json.loads((tmp_path / "maps" / "maps.json").read_text()) == record
    assert record["sigma"][0][1] is None
    assert "layer 2" in page.words
    assert "75.0%" in page.words


def test_no_figure_is_of_one_colour(tmp_path: Path) -> None:
    for number_of, figures in enumerate((image_figures(heads=7), text_figures())):
        record = write_maps(figures, SUBJECT, tmp_path / str(number_of))
        for name in record["files"]:
            if name.endswith(".png"):
                with Image.open(tmp_path / str(number_of) / name) as picture:
                    colours = picture.convert("RGB").getcolors(1 << 20)
                assert colours is None or len(colours) > 20, name


def test_models_without_bandwidths_have_no_figure_of_them_and_the_page_says_why(tmp_path: Path) -> None:
    record = write_maps(image_figures(sigma=False), SUBJECT, tmp_path)
    assert record["sigma"] is None
    assert not (tmp_path / "bandwidths").exists()
    assert "No layer of this model has a bandwidth" in Page(tmp_path / "index.html").words


def test_names_are_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>&"
    write_maps(image_figures(), Subject(evil, evil, "image", [(evil, evil)], [(evil, 1.0)]), tmp_path)
    text = (tmp_path / "index.html").read_text()
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 7  # title and heading name model and file, then facts, prediction


def test_models_that_read_the_mean_say_so(tmp_path: Path) -> None:
    figures = image_figures(num_prefix_tokens=0, class_token=False, reads="mean")
    assert write_maps(figures, SUBJECT, tmp_path)["query"] == "the average over all patch queries"
    assert "the average over all patch queries" in Page(tmp_path / "index.html").words


@pytest.mark.parametrize(
    ("query", "words"),
    [(0, "prefix token 0"), (1, "row 0, column 0"), (8, "row 1, column 3"), ("last", "row 2, column 3")],
)
def test_queries_are_named_by_their_patch(query: str | int, words: str) -> None:
    figures = image_figures()
    assert words in ImageFigures(figures.maps, np.zeros((24, 32, 3)), query).query_name


def test_token_labels_name_prefix_and_patches() -> None:
    figures = image_figures(num_prefix_tokens=3)
    assert figures.token_labels(np.array([0, 1, 2, 3, 9])) == ["CLS", "reg 1", "reg 2", "0,0", "1,2"]
    registers = image_figures(num_prefix_tokens=2, class_token=False, reads="mean")
    assert registers.token_labels(np.array([0, 2])) == ["reg 0", "0,0"]


def test_maps_replace_maps_only_when_asked_and_nothing_else_ever(tmp_path: Path) -> None:
    write_maps(image_figures(heads=3), SUBJECT, tmp_path / "a")
    before = (tmp_path / "a" / "index.html").read_bytes()
    with pytest.raises(InputError, match="--force"):
        write_maps(image_figures(), SUBJECT, tmp_path / "a")
    assert (tmp_path / "a" / "index.html").read_bytes() == before
    record = write_maps(image_figures(), SUBJECT, tmp_path / "a", force=True)
    left = {str(path.relative_to(tmp_path / "a")) for path in (tmp_path / "a").rglob("*.png")}
    assert left == {name for name in record["files"] if name.endswith(".png")}  # head 3 is gone
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("mine")
    (tmp_path / "c").write_text("mine")
    for place in ("b", "c"):
        with pytest.raises(InputError, match=place):
            write_maps(image_figures(), SUBJECT, tmp_path / place, force=True)
    assert list((tmp_path / "b").iterdir()) == [tmp_path / "b" / "mine.txt"]


def test_figures_show_the_numbers_they_are_drawn_from() -> None:
    figures = image_figures()
    panels = figures.heads(1).axes
    assert len(panels) == 1 + 2 * 2  # the image, and two panels a head
    for head in range(2):
        row = figures.maps.weights[1][0, head, 0, 1:]
        drawn = panels[1 + 2 * head].images[0].get_array()
        np.testing.assert_allclose(np.asarray(drawn), row.reshape(3, 4).numpy())
        assert f"{number(float(row.min()))} … {number(float(row.max()))}" in panels[1 + 2 * head].get_title()
    assert len(figures.evolution().axes) == 2 * 3
    assert len(figures.queries(0).axes) == 1 + 2 * 4
    assert len(figures.rollout((0.0, 0.5, 0.9)).axes) == 1 + 2 * 3


def test_the_query_patch_is_boxed_where_it_is() -> None:
    panels = image_figures().queries(0).axes  # the picture, then four times grid and overlay
    assert [len(axes.patches) for axes in panels] == [4] + 8 * [1]
    box, large = panels[3].patches[0], panels[4].patches[0]  # the second query: row 1, column 2 of 3 x 4
    assert (box.get_x(), box.get_y(), box.get_width()) == (1.5, 0.5, 1)
    assert (large.get_x(), large.get_y(), large.get_width(), large.get_height()) == (16, 8, 8, 8)


def test_matrices_have_no_diagonal_and_at_most_fifty_tokens() -> None:
    figures = ImageFigures(
        attention(82, num_prefix_tokens=1, class_token=True, grid=(9, 9)), np.zeros((18, 18, 3))
    )
    axes = maps_module.attention_matrix(figures.maps, 0, 1, figures.token_labels).axes[0]
    drawn = np.asarray(axes.images[0].get_array())
    assert drawn.shape == (50, 50)
    assert not drawn.diagonal().any()
    assert axes.images[0].get_clim() == (0, drawn.max())
    assert axes.get_xticklabels()[0].get_text() == "CLS"
    assert len(maps_module.contact_sheet(figures.maps).axes) == 4


def test_bandwidths_are_written_into_their_cells_and_gaps_stay_gaps() -> None:
    sigma = np.array([[1.25, np.nan, 3.5], [0.5, np.nan, 2.0]])
    texts = [text.get_text() for text in bandwidth_heatmap(sigma).axes[0].texts]
    assert texts == ["1.25", "–", "3.50", "0.50", "–", "2.00"]
    lines = bandwidth_lines(sigma).axes[0].lines
    for line, row in zip(lines, sigma, strict=True):
        np.testing.assert_array_equal(np.asarray(line.get_ydata()), row)
    bandwidth_heatmap(np.ones((2, 3)))  # all alike: still a colour


@pytest.mark.parametrize("grid", [(3, 4), (14, 14), (1, 1)])
def test_enlarging_keeps_limits_and_constants(grid: tuple[int, int]) -> None:
    values = np.random.default_rng(0).random(grid)
    large = enlarged(values, 56, 56)
    assert large.shape == (56, 56)
    assert values.min() - 1e-6 <= large.min() <= large.max() <= values.max() + 1e-6
    np.testing.assert_allclose(enlarged(np.full(grid, 0.3), 20, 30), 0.3, rtol=1e-6)
    assert np.array_equal(enlarged(values, *grid), values.astype(np.float32))


def test_limits_leave_out_the_query_and_colours_are_clipped() -> None:
    values = np.array([[0.9, 0.1], [0.3, 0.2]])
    assert limits(values) == (0.1, 0.9)
    assert limits(values, leaving_out=0) == (0.1, 0.3)
    np.testing.assert_allclose(scaled(values, (0.1, 0.3)), [[1, 0], [1, 0.5]])
    assert not scaled(np.ones(3), (1.0, 1.0)).any()


def test_text_figures_show_every_token_on_its_place() -> None:
    figures = text_figures()
    (axes,) = (panel for panel in figures.heads(0).axes[:1])
    assert "".join(text.get_text() for text in axes.texts) == "to·be,·or·not⏎to·be"
    assert figures.query_name == "token 18, the last (e)"
    queries = figures.queries(0).axes
    assert len(queries) == 4
    later = [text.get_color() for text in queries[0].texts][5:]  # the first query is token 4
    assert len(set(later)) == 1
    assert figures.token_labels(np.array([0, 2, 13])) == ["t", "·", "⏎"]


def test_tokens_are_made_printable() -> None:
    assert [printable(token) for token in (" ", "\n", "\t", "\x07", "", "\u4e2d", " the")] == [
        "·", "⏎", "→", "□", "∅", "□", "·the"
    ]  # fmt: skip
    assert printable("incomprehensible") == "incompr…"
    assert printable("$x_2$") == "$x_2$"


def test_maps_without_patches_or_tokens_are_refused() -> None:
    with pytest.raises(InputError, match="grid"):
        ImageFigures(attention(5), np.zeros((8, 8, 3)))
    with pytest.raises(InputError, match="tokenizer"):
        TextFigures(attention(5, reads="last"))

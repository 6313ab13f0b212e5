"""The pages and files of attention maps: complete, self-contained, escaped, and never in another's place."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from nadaraya.errors import InputError
from nadaraya.interpret.attention_maps import AttentionMaps, LayerMaps
from nadaraya.interpret.rollout import Query, query_rows, rollout
from nadaraya.report import maps as maps_module
from nadaraya.report.maps import Subject, write_maps
from nadaraya.report.maps_image import ImageFigures
from nadaraya.report.maps_matrices import bandwidth_heatmap, bandwidth_lines
from nadaraya.report.maps_text import TextFigures, printable
from nadaraya.report.style import limits, number


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


SUBJECT = Subject("gka", "cat.png", [("Run", "a")], [("cat", 0.75), ("dog", 0.25)])
EVIL = "<script>alert('x')</script>&"


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


@pytest.fixture(scope="module")
def image_maps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder of maps of an image, and its record."""
    folder = tmp_path_factory.mktemp("maps") / "image"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(maps_module, "_DPI", 30)
        return folder, write_maps(image_figures(), SUBJECT, folder)


@pytest.fixture(scope="module")
def text_maps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder of maps of a text without bandwidths, whose names are markup, and its record."""
    folder = tmp_path_factory.mktemp("maps") / "text"
    subject = Subject(EVIL, EVIL, [(EVIL, EVIL)], [(EVIL, 1.0)])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(maps_module, "_DPI", 30)
        return folder, write_maps(text_figures(), subject, folder)


def test_an_image_gets_all_six_kinds_and_a_self_contained_page(
    image_maps: tuple[Path, dict[str, Any]],
) -> None:
    folder, record = image_maps
    names = {str(path.relative_to(folder)) for path in folder.rglob("*.*")}
    assert names == {*record["files"], "maps.json"}
    assert names == {
        "index.html", "maps.json", "rollout/rollout.png", "bandwidths/heatmap.png", "bandwidths/lines.png",
        "layers/evolution.png", "matrices/all.png",
        *(f"{kind}/layer-{layer:02d}.png" for kind in ("heads", "queries") for layer in (1, 2)),
        *(f"matrices/layer-{layer:02d}-head-{head:02d}.png" for layer in (1, 2) for head in (1, 2)),
    }  # fmt: skip
    page = Page(folder / "index.html")
    assert len(page.sources) == 9  # all figures but the single matrices
    assert all(source.startswith("data:image/webp;base64,") for source in page.sources)
    assert all(link.startswith("#") and link[1:] in page.ids for link in page.links)
    assert len(page.links) == 7
    assert not re.search(r"https?://|@import|url\(", (folder / "index.html").read_text())
    assert json.loads((folder / "maps.json").read_text()) == record
    assert record["kind"] == "image"
    assert record["sigma"][0][1] is None
    assert record["query"] == "the class token (CLS)"
    assert record["error"] == 1e-7
    assert "layer 2" in page.words
    assert "75.0%" in page.words


@pytest.mark.parametrize("maps", ["image_maps", "text_maps"])
def test_no_figure_is_of_one_colour(maps: str, request: pytest.FixtureRequest) -> None:
    folder, record = request.getfixturevalue(maps)
    for name in record["files"]:
        if name.endswith(".png"):
            with Image.open(folder / name) as picture:
                colours = picture.convert("RGB").getcolors(1 << 20)
            assert colours is None or len(colours) > 20, name


def test_models_without_bandwidths_have_no_figure_of_them_and_the_page_says_why(
    text_maps: tuple[Path, dict[str, Any]],
) -> None:
    folder, record = text_maps
    assert (record["kind"], record["sigma"]) == ("text", None)
    assert not (folder / "bandwidths").exists()
    assert "No layer of this model has a bandwidth" in Page(folder / "index.html").words


def test_names_are_escaped(text_maps: tuple[Path, dict[str, Any]]) -> None:
    text = (text_maps[0] / "index.html").read_text()
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 7  # title and heading name model and file, then facts, prediction


def test_models_that_read_the_mean_say_so() -> None:
    figures = image_figures(num_prefix_tokens=0, class_token=False, reads="mean")
    assert figures.query_name == "the average over all patch queries"


def test_many_heads_stand_in_bands() -> None:
    names = set(panels(image_figures(heads=7).heads(0)))
    assert names == {"image", *(f"{kind} {head}" for kind in ("grid", "overlay") for head in range(7))}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (0, "prefix token 0"),
        (1, "row 0, column 0"),
        (8, "row 1, column 3"),
        ((1, 3), "row 1, column 3"),
        ("last", "row 2, column 3"),
    ],
)
def test_queries_are_named_by_their_patch(query: Query, words: str) -> None:
    figures = image_figures()
    assert words in ImageFigures(figures.maps, np.zeros((24, 32, 3)), query).query_name


def test_token_labels_name_prefix_and_patches() -> None:
    figures = image_figures(num_prefix_tokens=3)
    assert figures.token_labels(np.array([0, 1, 2, 3, 9])) == ["CLS", "reg 1", "reg 2", "0,0", "1,2"]
    registers = image_figures(num_prefix_tokens=2, class_token=False, reads="mean")
    assert registers.token_labels(np.array([0, 2])) == ["reg 0", "0,0"]


def test_maps_replace_maps_only_when_asked_and_nothing_else_ever(
    image_maps: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    shutil.copytree(image_maps[0], tmp_path / "a")
    with pytest.raises(InputError, match="--force"):
        write_maps(image_figures(), SUBJECT, tmp_path / "a")
    page = (tmp_path / "a" / "index.html").read_bytes()
    assert page == (image_maps[0] / "index.html").read_bytes()
    record = write_maps(image_figures(heads=1, sigma=False), SUBJECT, tmp_path / "a", force=True)
    left = {str(path.relative_to(tmp_path / "a")) for path in (tmp_path / "a").rglob("*.png")}
    assert left == {name for name in record["files"] if name.endswith(".png")}  # head 2 and σ are gone
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine.txt").write_text("mine")
    (tmp_path / "c").write_text("mine")
    for place in ("b", "c"):
        with pytest.raises(InputError, match=place):
            write_maps(image_figures(), SUBJECT, tmp_path / place, force=True)
    assert list((tmp_path / "b").iterdir()) == [tmp_path / "b" / "mine.txt"]


def panels(figure: Figure) -> dict[str, Any]:
    """The panels of a mosaic by name."""
    return {axes.get_label(): axes for axes in figure.axes}


def test_figures_show_the_numbers_they_are_drawn_from() -> None:
    figures = image_figures()
    drawn = panels(figures.heads(1))
    assert list(drawn) == ["image", "grid 0", "grid 1", "overlay 0", "overlay 1"]
    for head in range(2):
        row = figures.maps.weights[1][0, head, 0, 1:]
        for axes in (drawn[f"grid {head}"], drawn[f"overlay {head}"]):
            image = axes.images[-1]
            np.testing.assert_array_equal(np.asarray(image.get_array()), row.reshape(3, 4).numpy())
            assert image.get_clim() == (float(row.min()), float(row.max()))
        title = drawn[f"grid {head}"].get_title(loc="left")
        assert f"head {head + 1}, patches {float(row.sum()):.1%}\n" in title
        assert f"{number(float(row.min()))} … {number(float(row.max()))}" in title
    assert len(figures.queries(0).axes) == 1 + 2 * 4


@pytest.mark.parametrize("make", [image_figures, text_figures])
def test_rollout_and_layers_show_the_numbers_they_are_drawn_from(make: Any) -> None:
    figures = make()
    evolution = np.reshape(figures.evolution().axes, (2, 3))
    for layer, (matrix, *_) in enumerate(evolution):
        fused = figures.maps.weights[layer][0].mean(0)
        np.testing.assert_array_equal(np.asarray(matrix.images[0].get_array()), fused.numpy())
    flows = [query_rows(rollout(figures.maps.weights, ratio), figures.maps)[0] for ratio in (0.0, 0.9)]
    drawn = figures.rollout((0.0, 0.9)).axes
    titles = [axes.get_title(loc="left") for axes in drawn if "discard" in axes.get_title(loc="left")]
    for ratio, flow, title in zip(("0", "0.9"), flows, titles, strict=True):
        seen = flow[figures.maps.num_prefix_tokens :]
        assert title.startswith(f"discard {ratio}")
        assert title.endswith(f"{number(float(seen.min()))} … {number(float(seen.max()))}")


def test_the_query_patch_is_boxed_where_it_is() -> None:
    figure = panels(image_figures().queries(0))
    assert [len(axes.patches) for axes in figure.values()] == [4] + 8 * [1]
    box, large = figure["grid 1"].patches[0], figure["overlay 1"].patches[0]  # row 1, column 2 of 3 x 4
    assert (box.get_x(), box.get_y(), box.get_width()) == (1.5, 0.5, 1)
    assert (large.get_x(), large.get_y(), large.get_width(), large.get_height()) == (16, 8, 8, 8)
    assert figure["grid 1"].get_title(loc="left").startswith("(1, 2), self ")
    fused = image_figures().maps.weights[0][0].mean(0)[1 + 6, 1:].numpy()  # after the class token
    image = figure["overlay 1"].images[-1]
    np.testing.assert_array_equal(np.asarray(image.get_array()), fused.reshape(3, 4))
    others = np.delete(fused, 6)
    assert image.get_clim() == (others.min(), others.max())


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
    (all_of_them,) = maps_module.contact_sheet(figures.maps).axes
    assert len(all_of_them.images) == 4
    corner = {(round(tile.get_extent()[0], 2), round(tile.get_extent()[3], 2)) for tile in all_of_them.images}
    assert corner == {(layer - 0.46, head - 0.36) for layer in (0, 1) for head in (0, 1)}
    np.testing.assert_array_equal(np.asarray(all_of_them.images[1].get_array()), drawn)


def test_bandwidths_are_written_into_their_cells_and_gaps_stay_gaps() -> None:
    sigma = np.array([[1.25, np.nan, 3.5], [0.5, np.nan, 2.0]])
    texts = [text.get_text() for text in bandwidth_heatmap(sigma).axes[0].texts]
    assert texts == ["1.25", "–", "3.50", "0.50", "–", "2.00"]
    lines = bandwidth_lines(sigma).axes[0].lines
    for line, row in zip(lines, sigma, strict=True):
        np.testing.assert_array_equal(np.asarray(line.get_ydata()), row)
    bandwidth_heatmap(np.ones((2, 3)))  # all alike: still a colour


def test_the_overlay_shows_the_values_of_its_patches() -> None:
    """The interpolation passes through the weights: the centre of a patch has the colour of its weight."""
    over = panels(image_figures().heads(0))["overlay 0"].images[1]
    pixels, _, _, _ = over.make_image(FigureCanvasAgg(over.figure).get_renderer(), unsampled=False)
    height, width = pixels.shape[:2]
    rows, columns = (np.arange(3) * 2 + 1) * height // 6, (np.arange(4) * 2 + 1) * width // 8
    centres = pixels[::-1][np.ix_(rows, columns)][..., :3]  # Agg draws from the bottom up
    expected = over.cmap(over.norm(np.asarray(over.get_array())))[..., :3]
    assert np.abs(centres / 255 - expected).max() < 0.1
    assert over.get_alpha() == 0.6


def test_limits_leave_out_the_query_and_colours_are_clipped() -> None:
    values = np.array([[0.9, 0.1], [0.3, 0.2]])
    assert (limits(values).vmin, limits(values).vmax) == (0.1, 0.9)
    ends = limits(values, 0)
    assert (ends.vmin, ends.vmax) == (0.1, 0.3)
    np.testing.assert_allclose(ends(values), [[1, 0], [1, 0.5]])
    assert not limits(np.ones(3))(np.ones(3)).any()


def test_text_figures_show_every_token_on_its_place() -> None:
    figures = text_figures()
    (axes,) = (panel for panel in figures.heads(0).axes[:1])
    assert "".join(text.get_text() for text in axes.texts) == "to·be,·or·not⏎to·be"
    assert figures.query_name == "token 18, the last (e)"
    row = figures.maps.weights[0][0, 0, 18]
    inferno = matplotlib.colormaps["inferno"]
    for position, share in ((int(row.argmax()), 1.0), (int(row.argmin()), 0.0)):
        expected = 0.6 * np.array(inferno(share)[:3]) + 0.4
        np.testing.assert_allclose(axes.patches[position].get_facecolor()[:3], expected)
    assert [patch.get_xy() for patch in axes.patches[:2]] == [(0, 0), (1, 0)]
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

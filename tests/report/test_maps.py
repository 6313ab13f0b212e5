"""The pages and files of attention maps: complete, self-contained, escaped, and never in another's place."""

import errno
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from made_maps import image_figures, text_figures
from pages import Page
from PIL import Image

from nadaraya.errors import InputError
from nadaraya.files import WriteFailed
from nadaraya.interpret import load_maps, save_maps
from nadaraya.report import maps as maps_module
from nadaraya.report.maps import Subject, write_maps


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pixels: what is tested does not depend on them."""
    monkeypatch.setattr(maps_module, "_DPI", 30)


SUBJECT = Subject("gka", "cat.png", [("Run", "a")], [("cat", 0.75), ("dog", 0.25)])
EVIL = "<script>alert('x')</script>&"


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
        "index.html", "maps.json", "weights.safetensors", "rollout/rollout.png",
        "bandwidths/heatmap.png", "bandwidths/lines.png",
        "layers/evolution.png", "matrices/all.png",
        *(f"{kind}/layer-{layer:02d}.png" for kind in ("heads", "queries") for layer in (0, 1)),
        *(f"matrices/layer-{layer:02d}-head-{head:02d}.png" for layer in (0, 1) for head in (0, 1)),
    }  # fmt: skip
    text = (folder / "index.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert all(image["alt"] for image in page.all("img"))
    assert all(source.startswith("data:image/webp;base64,") for source in page.values("src"))
    links, ids = page.values("href"), page.values("id")
    assert all(link.startswith("#") and link[1:] in ids for link in links)
    assert {"#rollout", "#bandwidths", "#heads", "#queries", "#layers", "#matrices", "#made"} < {*links}
    outside = re.sub(r"url\((data:|#)", "", text)
    assert not re.search(r"https?://|@import|url\(|src=\"(?!data:)", outside)
    assert text.count("background-image: url(data:") == 1  # the photograph, once
    assert json.loads((folder / "maps.json").read_text()) == record
    assert record["kind"] == "image"
    assert record["sigma"][0][1] is None
    assert record["query"] == "the class token (CLS)"
    assert record["error"] == 1e-7
    assert "layer 1" in page.words
    assert "75.0%" in page.words


@pytest.mark.parametrize("maps", ["image_maps", "text_maps"])
def test_no_figure_is_of_one_colour(maps: str, request: pytest.FixtureRequest) -> None:
    folder, record = request.getfixturevalue(maps)
    for name in record["files"]:
        if name.endswith(".png"):
            with Image.open(folder / name) as picture:
                colours = picture.convert("RGB").getcolors(1 << 20)
            assert colours is None or len(colours) > 20, name


def test_models_without_bandwidths_have_no_section_of_them(
    text_maps: tuple[Path, dict[str, Any]],
) -> None:
    folder, record = text_maps
    assert (record["kind"], record["sigma"]) == ("text", None)
    assert not (folder / "bandwidths").exists()
    page = Page((folder / "index.html").read_text(encoding="utf-8"))
    assert [section["id"] for section in page.all("section") if "id" in section] == [
        "tokens",
        "matrices",
        "made",
    ]
    assert page.values("href") == ["#tokens", "#matrices", "#made"]


def test_names_are_escaped(text_maps: tuple[Path, dict[str, Any]]) -> None:
    text = (text_maps[0] / "index.html").read_text()
    assert text.count("<script") == text.count("<script>\n") == 1  # that of the page itself
    assert text.count("&lt;script&gt;") == 7  # title and heading name model and file, then facts, prediction


def test_models_that_read_the_mean_say_so() -> None:
    figures = image_figures(num_prefix_tokens=0, class_token=False, reads="mean")
    assert figures.query_name == "the average over all patch queries"


def test_a_page_has_a_tab_per_layer_and_works_without_scripts(
    image_maps: tuple[Path, dict[str, Any]],
) -> None:
    text = (image_maps[0] / "index.html").read_text()
    for kind in ("heads", "queries", "matrices"):
        for layer in (1, 2):
            checked = " checked" if layer == 1 else ""
            assert f'<input type="radio" name="{kind}" id="{kind}-{layer}"{checked}>' in text
            assert f'<label for="{kind}-{layer}">layer {layer - 1}</label>' in text
    assert ".tabs > input:nth-of-type(2):checked ~ .tab:nth-of-type(2) { display: block; }" in text
    without = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert without.count("<figure data-rows") == 3 + 4 + 8 + 2  # rollout, heads, queries, layers
    assert text.count("<script>") == 1
    assert "onclick" not in text


def test_the_values_that_pointing_shows_are_the_weights(image_maps: tuple[Path, dict[str, Any]]) -> None:
    text = (image_maps[0] / "index.html").read_text()
    figures = image_figures()
    values = [list(map(float, found.split())) for found in re.findall(r'data-weights="([^"]+)"', text)]
    expected = figures.maps.weights[0][0, 1, 0, 1:] * 13  # after three rollouts and head 1
    np.testing.assert_allclose(values[4], expected.numpy(), rtol=0.06)


def test_tokens_of_a_text_are_chosen_by_pointer_or_keyboard_and_escaped(
    text_maps: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    page = Page((text_maps[0] / "index.html").read_text(encoding="utf-8"))
    assert page.open == []
    tokens = [span for span in page.all("span") if span.get("role") == "button"]
    assert [token["tabindex"] for token in tokens] == ["-1"] * 18 + ["0"]  # one stop, arrows go on from it
    assert len(page.all("select")) == 2
    write_maps(text_figures("<b>&"), SUBJECT, tmp_path / "a")
    text = (tmp_path / "a" / "index.html").read_text(encoding="utf-8")
    assert [text.count(f">{letter}</span>") for letter in ("&lt;", "b", "&gt;", "&amp;")] == [1] * 4


def test_the_weights_beside_the_pictures_are_those_of_the_maps(
    image_maps: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    maps, read = image_figures().maps, load_maps(image_maps[0] / "weights.safetensors")
    assert (read.grid, read.reads, read.num_prefix_tokens, read.class_token) == ((3, 4), "cls", 1, True)
    for layer, again in zip(maps.layers, read.layers, strict=True):
        assert torch.equal(layer.weights, again.weights)
        assert (layer.name, layer.error) == (again.name, again.error)
    assert torch.equal(maps.layers[0].bandwidth, read.layers[0].bandwidth)
    assert read.layers[1].bandwidth is None
    words = text_figures().maps
    save_maps(words, tmp_path / "text.safetensors")
    assert load_maps(tmp_path / "text.safetensors").tokens == words.tokens
    (tmp_path / "torn.safetensors").write_bytes((tmp_path / "text.safetensors").read_bytes()[:200])
    with pytest.raises(InputError, match=r"torn\.safetensors cannot be read as attention maps"):
        load_maps(tmp_path / "torn.safetensors")
    safetensors.torch.save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match=r"other\.safetensors cannot be read"):
        load_maps(tmp_path / "other.safetensors")


def test_a_full_disk_leaves_the_maps_as_they_were(
    image_maps: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(image_maps[0], tmp_path / "old")
    before = {path: path.read_bytes() for path in (tmp_path / "old").rglob("*.*")}
    written, write = [], Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        written.append(path)
        if len(written) % 4 == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    for folder in ("old", "new"):
        with pytest.raises(WriteFailed, match="the disk is full"):
            write_maps(image_figures(heads=1, sigma=False), SUBJECT, tmp_path / folder, force=True)
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in (tmp_path / "old").rglob("*.*")} == before
    assert not list((tmp_path / "new").iterdir())
    write_maps(text_figures(), SUBJECT, tmp_path / "new")  # the same folder serves when there is room


def test_notes_among_the_figures_stay(image_maps: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    shutil.copytree(image_maps[0], tmp_path / "a")
    (tmp_path / "a" / "heads" / "notes.txt").write_text("mine")
    (tmp_path / "a" / "mine.txt").write_text("mine")
    write_maps(image_figures(), SUBJECT, tmp_path / "a", force=True)
    assert (tmp_path / "a" / "heads" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "a" / "mine.txt").read_text() == "mine"


def test_every_figure_is_announced_before_it_is_drawn(tmp_path: Path) -> None:
    said: list[tuple[str, int, int]] = []
    record = write_maps(text_figures(), SUBJECT, tmp_path / "a", drawing=lambda *step: said.append(step))
    assert [name for name, _, _ in said] == record["files"][2:]
    assert [number for _, number, _ in said] == list(range(1, len(said) + 1))
    assert {total for _, _, total in said} == {len(said)}


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

"""`nadaraya maps`: runs on images and on texts, timm models with a checkpoint, and one line for bad input."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from matplotlib.figure import Figure
from PIL import Image
from safetensors.torch import save_file

import nadaraya.models.vit  # noqa: F401 - registers the models
from nadaraya.interpret import ImageModel
from nadaraya.interpret.attention_maps import capture_attention
from nadaraya.report import maps as maps_module
from nadaraya.training import Run, load_recipe, train

Command = Callable[..., Any]
SMALL = ("model.image_size=16", "data.padding_crop=2", "data.rand_augment=null", "data.repeats=1")
TINY_VIT = "model.options={patch_size: 4, embed_dim: 16, depth: 2, num_heads: 2}"


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few pixels and one thread: what is tested does not depend on them."""
    monkeypatch.setattr(maps_module, "_DPI", 30)
    torch.set_num_threads(1)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A picture of 40 x 30 pixels."""
    path = tmp_path / "picture.png"
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def blank(monkeypatch: pytest.MonkeyPatch) -> None:
    """One blank figure of each kind: what is in them is tested in tests/report."""
    drawn = {f"{kind}/all.png": lambda: Figure(figsize=(1, 1)) for kind in maps_module.KINDS}
    monkeypatch.setattr(maps_module, "_steps", lambda *_: drawn)


@pytest.fixture(scope="module")
def image_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a small GKA on noise in three classes."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("runs")
    np.savez(
        folder / "noise.npz",
        train_images=rng.integers(0, 256, (24, 16, 16, 3), dtype=np.uint8),
        train_labels=np.arange(24) % 3,
        test_images=rng.integers(0, 256, (6, 16, 16, 3), dtype=np.uint8),
        test_labels=np.arange(6) % 3,
        class_names=np.array(["ant", "bee", "cow"]),
    )
    short = ("training.epochs=1", "training.warmup_epochs=0", "training.batch_size=8")
    recipe = load_recipe("cifar-cpu", [f"data.source={folder / 'noise.npz'}", *SMALL, TINY_VIT, *short])
    train(recipe, folder / "image-run", progress=False)
    return folder / "image-run"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of gka_tiny_patch16_224 with four classes."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "gka.safetensors"
    save_file(timm.create_model("gka_tiny_patch16_224", num_classes=4).state_dict(), path)
    return path


def test_a_run_on_images_by_its_own_size_and_classes(
    nadaraya: Command, image_run: Path, image: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    outcome = nadaraya("maps", image_run, image, "--out", tmp_path / "maps", "--json")
    assert outcome.status == 0, outcome.err
    figures = json.loads(outcome.out)
    assert (figures["layers"], figures["tokens"], figures["kind"]) == (2, 17, "image")
    assert {row["class"] for row in figures["predictions"]} == {"ant", "bee", "cow"}
    assert sum(row["probability"] for row in figures["predictions"]) == pytest.approx(1)
    assert all((tmp_path / "maps" / name).is_file() for name in figures["files"])

    from nadaraya.data.images.transforms import evaluation_transform

    run = Run(image_run)
    with Image.open(image) as opened:
        inputs = evaluation_transform(run.image_recipe().augmentation(), 3)(opened)
    chances = capture_attention(run.load_model(), inputs[None]).output[0].softmax(-1)
    assert figures["predictions"][0]["probability"] == pytest.approx(chances.max().item(), rel=1e-5)

    request.getfixturevalue("blank")  # the figures were drawn once
    outcome = nadaraya("maps", image_run, image, "--out", tmp_path / "patch", "--query", "1,2")
    assert outcome.status == 0, outcome.err
    assert "the patch at row 1, column 2" in outcome.out
    assert figures["predictions"][0]["class"] in outcome.out
    assert str(tmp_path / "patch" / "index.html") in outcome.out


@pytest.mark.usefixtures("blank")
def test_a_run_on_text(nadaraya: Command, finished_run: Path, tmp_path: Path) -> None:
    outcome = nadaraya("maps", finished_run, "--text", "aaa the 0 of", "--out", tmp_path / "a", "--json")
    assert outcome.status == 0, outcome.err
    figures = json.loads(outcome.out)
    assert (figures["kind"], figures["tokens"], figures["sigma"]) == ("text", 12, None)
    assert figures["query"] == "token 11, the last (f)"
    (tmp_path / "some.txt").write_text("aaa the 0 of")
    outcome = nadaraya(
        "maps",
        finished_run,
        "--text",
        tmp_path / "some.txt",
        "--query",
        "2",
        "--out",
        tmp_path / "b",
        "--json",
    )
    from_file = json.loads(outcome.out)
    assert (from_file["given"], from_file["query"]) == ("some.txt", "token 2 (a)")
    assert from_file["predictions"] == figures["predictions"]


@pytest.mark.usefixtures("blank")
def test_maps_are_replaced_only_when_asked(nadaraya: Command, finished_run: Path, tmp_path: Path) -> None:
    given = ("maps", finished_run, "--text", "aaa the", "--out", tmp_path / "maps")
    assert nadaraya(*given).status == 0
    page = tmp_path / "maps" / "index.html"
    page.write_text("mine")
    nadaraya(*given).refuses("--force")
    assert page.read_text() == "mine"
    assert nadaraya(*given, "--force").status == 0
    assert page.read_text() != "mine"


def test_a_folder_that_refuses_is_one_line(nadaraya: Command, finished_run: Path) -> None:
    outcome = nadaraya("maps", finished_run, "--text", "aaa the", "--out", "/proc/maps")
    assert outcome.status != 0
    assert outcome.err.count("\n") == 1
    assert "/proc/maps" in outcome.err


@pytest.mark.usefixtures("blank")
def test_runs_mark_the_bandwidths_that_training_started_from(
    nadaraya: Command, image_run: Path, image: Path, tmp_path: Path
) -> None:
    assert nadaraya("maps", image_run, image, "--out", tmp_path / "maps").status == 0
    assert "dashed: before training" in (tmp_path / "maps" / "index.html").read_text()
    start = ImageModel.from_run(Run(image_run)).sigma_start
    assert start is not None
    np.testing.assert_allclose(start, start[0, 0])  # all heads start alike


def test_bad_texts_are_one_line(nadaraya: Command, finished_run: Path, image: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "maps")
    nadaraya("maps", finished_run, *out).refuses("--text")
    for device in ("abacus", "meta", "cuda:99"):
        nadaraya("maps", finished_run, "--text", "aaa", "--device", device, *out).refuses("--device", device)
    nadaraya("maps", finished_run, image, *out).refuses("--text", "no image")
    nadaraya("maps", finished_run, "--text", "a", *out).refuses("2 to 16 tokens", "got 1 tokens")
    nadaraya("maps", finished_run, "--text", "a" * 17, *out).refuses("2 to 16 tokens", "got 17 tokens")
    nadaraya("maps", finished_run, "--text", "aZa", *out).refuses("'Z'")
    nadaraya("maps", finished_run, "--text", "aaa", "--query", "cls", *out).refuses("cls")
    nadaraya("maps", finished_run, "--text", "aaa", "--query", "3", *out).refuses("0 to 2")
    nadaraya("maps", finished_run, "--text", "aaa", "--query", "1,1", *out).refuses("query must be", "(1, 1)")
    nadaraya("maps", finished_run, "--text", "aaa", "--checkpoint", "x", *out).refuses("--checkpoint")
    (finished_run / "metrics.jsonl").write_text("")
    nadaraya("maps", finished_run, "--text", "aaa", *out).refuses("no trained model yet")
    (tmp_path / "empty").mkdir()
    nadaraya("maps", tmp_path / "empty", image, *out).refuses("not a run folder")
    assert not (tmp_path / "maps").exists()


def test_bad_images_are_one_line(nadaraya: Command, image_run: Path, image: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "maps")
    nadaraya("maps", image_run, *out).refuses("IMAGE")
    nadaraya("maps", image_run, "--text", "aaa", *out).refuses("takes an image")
    nadaraya("maps", image_run, tmp_path / "absent.png", *out).refuses(
        "image must be an image file", "absent.png"
    )
    (tmp_path / "letter.png").write_text("Dear reader")
    nadaraya("maps", image_run, tmp_path / "letter.png", *out).refuses("letter.png", "not a known image")
    (tmp_path / "cut.png").write_bytes(image.read_bytes()[:300])
    nadaraya("maps", image_run, tmp_path / "cut.png", *out).refuses("cut.png", "as an image")
    nadaraya("maps", image_run, image, "--query", "4,0", *out).refuses("rows 0 to 3")
    nadaraya("maps", image_run, image, "--query", "head", *out).refuses("query must be", "'head'")
    nadaraya("maps", image_run, image, "--out", image).refuses("out must be a folder of maps or an empty one")
    nadaraya("maps", image_run, image, "--out", image_run).refuses("out must be", "image-run")
    assert not (tmp_path / "maps").exists()


@pytest.mark.slow
def test_a_timm_model_with_a_checkpoint(
    nadaraya: Command, checkpoint: Path, image: Path, tmp_path: Path
) -> None:
    given = ("maps", "gka_tiny_patch16_224", image, "--checkpoint", checkpoint)
    outcome = nadaraya(*given, "--out", tmp_path / "maps", "--json")
    assert outcome.status == 0, outcome.err
    figures = json.loads(outcome.out)
    assert (figures["layers"], figures["tokens"]) == (12, 197)
    assert np.array(figures["sigma"]).shape == (3, 12)
    assert {row["class"][:6] for row in figures["predictions"]} == {"class "}


@pytest.mark.usefixtures("blank")
def test_a_timm_model_of_another_size_and_kernel(nadaraya: Command, image: Path, tmp_path: Path) -> None:
    options = ["img_size=32", "patch_size=8", "depth=2", "pattern=GA", "variant=gka-loo", "num_classes=4"]
    torch.manual_seed(0)
    model = timm.create_model(
        "gka_tiny_patch16_224", img_size=32, patch_size=8, depth=2, pattern="GA", num_classes=4
    )
    save_file(model.state_dict(), tmp_path / "small.safetensors")
    given = ["maps", "gka_tiny_patch16_224", image, "--checkpoint", tmp_path / "small.safetensors"]
    chosen = [part for option in options for part in ("--option", option)]
    outcome = nadaraya(*given, *chosen, "--out", tmp_path / "maps", "--json")
    assert outcome.status == 0, outcome.err
    figures = json.loads(outcome.out)
    assert (figures["layers"], figures["tokens"]) == (2, 17)
    nadaraya(*given, *chosen[:2], "--out", tmp_path / "other").refuses("another model")
    nadaraya(*given, "--option", "img_size=x", "--out", tmp_path / "other").refuses("img_size")


def test_bad_models_are_one_line(nadaraya: Command, checkpoint: Path, image: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "maps")
    nadaraya("maps", "gka_tiny", image, *out).refuses("neither a run folder nor")
    nadaraya("maps", "hf-hub:some/model", image, *out).refuses("hf-hub:some/model is not a run folder")
    nadaraya("maps", "gka_tiny_patch16_224", image, *out).refuses("--checkpoint")
    for name in ("gka_small_patch16_224", "vit_tiny_patch16_224"):
        nadaraya("maps", name, image, "--checkpoint", checkpoint, *out).refuses("another model", name)
    nadaraya("maps", "gka_tiny_patch16_224", image, "--checkpoint", image, *out).refuses("cannot be read")
    nadaraya("maps", "gka_tiny_patch16_224", image, "--checkpoint", tmp_path / "none", *out).refuses("none")
    torch.manual_seed(0)
    save_file(timm.create_model("resnet10t", num_classes=2).state_dict(), tmp_path / "resnet.safetensors")
    resnet = ("resnet10t", image, "--checkpoint", tmp_path / "resnet.safetensors", *out)
    nadaraya("maps", *resnet).refuses()
    nadaraya("maps", "gka_tiny_patch16_224", "--checkpoint", checkpoint, *out).refuses("IMAGE")
    assert not (tmp_path / "maps").exists()

"""`train`, `evaluate` and `compare` on image runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nadaraya.training import Run, load_recipe, train
from nadaraya.training.metrics import digest_of


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An .npz of 24 and 10 images of 16 × 16 pixels in four classes."""
    random = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 24), ("test", 10)):
        arrays[f"{part}_images"] = random.integers(0, 255, (count, 16, 16, 3)).astype(np.uint8)
        arrays[f"{part}_labels"] = np.arange(count) % 4
    path = tmp_path_factory.mktemp("cli-images") / "images.npz"
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="session")
def arguments(images: Path) -> tuple[str, ...]:
    """Arguments of `nadaraya train` for an image run of a fraction of a second."""
    return (
        "cifar-cpu",
        f"data.source={images}",
        "model.image_size=16",
        "model.options={patch_size: 8, embed_dim: 16, depth: 1, num_heads: 2}",
        "training.epochs=1",
        "training.batch_size=8",
    )


@pytest.fixture(scope="session")
def image_run(arguments: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished image run, to be read."""
    source, *overrides = arguments
    recipe = load_recipe(source, overrides)
    return train(recipe, tmp_path_factory.mktemp("cli-image-run") / "image", progress=False).path


def test_train_prints_top_1_of_the_model_and_of_its_average(
    nadaraya: Any, arguments: tuple[str, ...], image_run: Path
) -> None:
    final = Run(image_run).final
    assert final is not None
    out = nadaraya("train", *arguments, "--run", image_run).out
    assert f"top-1 {final['top1']:.2%} (EMA {final['ema_top1']:.2%})" in out
    assert f"{final['loss']:.4f} nats/image" in out


def test_evaluate_classifies_the_validation_images(nadaraya: Any, image_run: Path, images: Path) -> None:
    final = Run(image_run).final
    assert final is not None
    for source in ((), ("--images", images)):
        printed = json.loads(nadaraya("evaluate", image_run, *source, "--json").out)
        assert printed["loss"] == pytest.approx(final["ema_loss"], rel=1e-5)
        assert (printed["top1"], printed["images"]) == (final["ema_top1"], 10)
    assert f"top-1 {final['ema_top1']:.2%}" in nadaraya("evaluate", image_run).out


def test_compare_ranks_by_top_1_and_draws(
    nadaraya: Any, arguments: tuple[str, ...], image_run: Path, tmp_path: Path
) -> None:
    better = tmp_path / "better"
    nadaraya("train", *arguments, "name=better", "--run", better, "--quiet")
    lines = [json.loads(line) for line in (better / "metrics.jsonl").read_text().splitlines()]
    lines[-1] |= {"ema_top1": 0.99, "loss": 9.0}
    digests = lines[-1].pop("sha256")
    lines[-1]["sha256"] = {**digests, "metrics.jsonl": digest_of(lines)}
    (better / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    plot = tmp_path / "curves.png"
    rows = json.loads(nadaraya("compare", image_run, better, "--json", "--plot", plot).out)
    assert [row["name"] for row in rows] == ["better", Run(image_run).name]
    final = Run(image_run).final
    assert final is not None
    for key in ("top1", "ema_top1", "loss", "parameters", "kernel_parameters", "images_per_second"):
        assert rows[1][key] == final[key]
    assert (rows[1]["step"], rows[1]["steps"]) == (3, 3)
    assert plot.read_bytes().startswith(b"\x89PNG")
    table = nadaraya("compare", image_run, better).out
    assert "99.00" in table
    assert "gka_tiny_patch16_224" in table


def test_runs_of_two_tasks_are_not_compared(nadaraya: Any, image_run: Path, finished_run: Path) -> None:
    nadaraya("compare", finished_run, image_run).refuses("must be of one task", "on text", "on images")


def test_verbs_of_text_refuse_an_image_run_and_the_other_way_round(
    nadaraya: Any, image_run: Path, finished_run: Path, images: Path, tmp_path: Path
) -> None:
    nadaraya("generate", image_run).refuses("must be a run on text")
    nadaraya("evaluate", image_run, "--text", "embedded").refuses("must be a run on text")
    nadaraya("evaluate", finished_run, "--images", images).refuses("must be a run on images")
    nadaraya("evaluate", image_run, "--images", tmp_path / "absent").refuses("no such images")

"""The benchmark of loading images, on a tiny model and a few made-up images."""

import json
from pathlib import Path

import numpy as np
import pytest
from scripts import run_script

pytest.importorskip("timm")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "image_loading.py"
TINY = [
    "model.image_size=32",
    "model.options.patch_size=8",
    "model.options.embed_dim=24",
    "model.options.depth=1",
]
SMALL = ["training.batch_size=8", "training.warmup_epochs=0", "training.compile=false"]


@pytest.fixture
def source(tmp_path: Path) -> str:
    generator = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 16), ("val", 8)):
        arrays[f"{split}_images"] = generator.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"{split}_labels"] = np.arange(count) % 4
    np.savez(tmp_path / "noise.npz", **arrays)
    return str(tmp_path / "noise.npz")


@pytest.mark.slow
def test_speeds_are_compared_with_those_of_one_batch(source: str, tmp_path: Path) -> None:
    path = tmp_path / "loading.json"
    options = ["--workers", "0", "1", "--updates", "2", "--rounds", "1", "--set", *TINY, *SMALL]
    run_script(SCRIPT, "deit", "--source", source, "--json", path, *options)
    speeds = json.loads(path.read_text())["speeds"]
    assert list(speeds) == ["synthetic", "0 workers", "1 workers"]
    for row in speeds.values():
        assert 0 < row["low"] <= row["images_per_second"] <= row["high"]
        own = speeds["synthetic"]["images_per_second"]
        assert row["of_synthetic"] == pytest.approx(row["images_per_second"] / own)


def test_a_recipe_of_text_is_refused(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_script(SCRIPT, "demo", "--source", source)
    assert ended.value.code == 2
    assert (
        capsys.readouterr().err == "image_loading.py: RECIPE must be a recipe with task: image, got 'demo'\n"
    )

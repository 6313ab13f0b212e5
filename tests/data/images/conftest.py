"""Small labelled images, written as a folder, as tar shards or as an .npz: the same pixels in each."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nadaraya.data.images import open_images
from nadaraya.data.images.sources import ImageSet

CIFAR = Path(__file__).parents[4] / "shared" / "data" / "cifar10" / "cifar10_jpeg.npz"
CLASSES = ("ant", "bee", "cat")
COUNTS = {"train": (7, 6, 5), "val": (3, 2, 4)}


def pixels_of(split: str) -> tuple[np.ndarray, np.ndarray]:
    """(N, 12, 12, 3) smooth random colours, sorted by class, and their labels."""
    counts = COUNTS[split]
    coarse = np.random.default_rng(len(split)).integers(0, 256, (sum(counts), 4, 4, 3), dtype=np.uint8)
    return coarse.repeat(3, axis=1).repeat(3, axis=2), np.repeat(np.arange(len(counts)), counts)


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def write_folder(root: Path) -> Path:
    for split in COUNTS:
        for index, (pixels, label) in enumerate(zip(*pixels_of(split), strict=True)):
            folder = root / split / CLASSES[label]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{index:03}.png").write_bytes(png(pixels))
    return root


def write_shards(root: Path) -> Path:
    for split in COUNTS:
        pixels, labels = pixels_of(split)
        for shard, numbers in enumerate(np.array_split(np.arange(len(labels)), 2)):
            members: dict[str, bytes] = {}
            for index in numbers:
                members[f"{index:03}.png"] = png(pixels[index])
                if index % 2:
                    members[f"{index:03}.cls"] = f"{labels[index]}\n".encode()
                else:
                    members[f"{index:03}.json"] = f'{{"label": {labels[index]}, "other": "x"}}'.encode()
            write_tar(root / f"some-{split}-{shard:06}.tar", members)
    (root / "classes.txt").write_text("\n".join(CLASSES) + "\n")
    return root


def write_npz(path: Path) -> Path:
    arrays = {}
    for split in COUNTS:
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = pixels_of(split)
    np.savez(path, **arrays, class_names=np.array(CLASSES))
    return path


def write_packed_npz(path: Path) -> Path:
    arrays = {}
    for split in COUNTS:
        pixels, arrays[f"{split}_labels"] = pixels_of(split)
        files = [png(image) for image in pixels]
        arrays[f"{split}_jpeg"] = np.frombuffer(b"".join(files), dtype=np.uint8)
        arrays[f"{split}_offsets"] = np.cumsum([0, *map(len, files)])
    np.savez(path, **arrays, class_names=np.array(CLASSES))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "insects")


@pytest.fixture
def tar_file() -> Callable[[Path, dict[str, bytes]], Path]:
    return write_tar


@pytest.fixture
def every_form(tmp_path: Path) -> dict[str, str]:
    """The same images as each kind of source."""
    return {
        "folder": str(write_folder(tmp_path / "folder")),
        "shards": str(write_shards(tmp_path / "shards")),
        "npz": str(write_npz(tmp_path / "arrays.npz")),
        "packed": str(write_packed_npz(tmp_path / "packed.npz")),
    }


@pytest.fixture
def insects(tmp_path: Path) -> ImageSet:
    return open_images(str(write_npz(tmp_path / "arrays.npz")))


@pytest.fixture(scope="session")
def cifar() -> ImageSet:
    if not CIFAR.is_file():
        pytest.skip("CIFAR-10 is not here")
    return open_images(str(CIFAR))

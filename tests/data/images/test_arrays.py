"""Arrays: their forms are checked, nothing is unpickled, torchvision's sets come from the cache folder."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nadaraya.data.images import open_images
from nadaraya.data.images.arrays import ArrayImages
from nadaraya.errors import InputError

GOOD: dict[str, Any] = {
    "train_images": np.zeros((4, 5, 6), np.uint8),
    "train_labels": np.array([0, 1, 2, 0]),
    "test_images": np.zeros((2, 5, 6), np.uint8),
    "test_labels": np.array([0, 2]),
}
PACKED = {
    "train_images": None,
    "train_jpeg": np.zeros(9, np.uint8),
    "train_offsets": np.array([0, 2, 4, 6, 8]),
}


def opened(path: Path, changes: dict[str, Any]) -> Any:
    arrays = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    np.savez(path, **arrays)
    return open_images(str(path))


def test_grey_arrays_have_one_channel(tmp_path: Path) -> None:
    images = opened(tmp_path / "a.npz", {})
    assert (images.name, images.channels, images.classes) == ("a", 1, ("0", "1", "2"))
    assert images.train.read(0).mode == "L"
    assert images.train.read(0).size == (6, 5)


def test_array_without_colours_is_grey_by_itself() -> None:
    grey, colour = (ArrayImages(np.zeros((2, 5, 6, c), np.uint8), np.arange(2), "zeros") for c in (1, 3))
    assert (grey.channels, grey.read(1).mode, colour.channels, colour.read(1).mode) == (1, "L", 3, "RGB")


def test_val_goes_before_test_and_columns_of_labels_are_read(tmp_path: Path) -> None:
    val = {"val_images": np.zeros((3, 5, 6, 1), np.uint8), "val_labels": np.array([[0], [1], [2]])}
    assert len(opened(tmp_path / "a.npz", val).validation) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_images": None}, "no array train_images"),
        ({"test_labels": None}, "no array val_images"),
        ({"train_labels": None}, "no array train_labels"),
        (
            {"train_images": np.zeros((4, 5, 6), np.float32)},
            r"train_images .* must be uint8 of .*, got float32 of shape \(4, 5, 6\)",
        ),
        ({"train_images": np.zeros((4, 3, 5, 6), np.uint8)}, r"got uint8 of shape \(4, 3, 5, 6\)"),
        (
            {"train_labels": np.array([0, 1])},
            r"labels of train_images .* must be integers of shape \(4,\), got int64 of shape \(2,\)",
        ),
        (
            {"train_labels": np.array([0.0, 1, 2, 0])},
            "labels of train_images .* must be integers .*, got float64",
        ),
        ({"train_labels": np.array([0, 1, 2, -1])}, "label -1 of image 3 of train_images .* out of range"),
        ({"test_labels": np.array([0, 3])}, "label 3 of image 1 of test_images .* there are 3 classes"),
        ({"class_names": np.array(["a", "b"])}, "label 2 .* there are 2 classes"),
        (
            {"train_images": np.zeros((0, 5, 6), np.uint8), "train_labels": np.zeros(0, int)},
            "holds no images",
        ),
        ({"train_images": np.array([None] * 4)}, "Python objects, which are not loaded"),
        ({**PACKED, "train_offsets": None}, "no array train_offsets"),
        ({**PACKED, "train_offsets": np.array([0, 2, 4, 6, 10])}, "do not rise within its 9 bytes"),
        ({**PACKED, "train_offsets": np.array([0, 4, 2, 6, 8])}, "do not rise within"),
    ],
)
def test_bad_arrays_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        opened(tmp_path / "a.npz", changes)


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("content", ["pickle", "npy", "text", "nothing", "cut"])
def test_not_an_npz(tmp_path: Path, content: str) -> None:
    path, sprung = tmp_path / "a.npz", tmp_path / "sprung"
    if content == "pickle":
        path.write_bytes(pickle.dumps(Trap(sprung)))
    elif content == "text":
        path.write_text("a table of numbers")
    elif content == "npy":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    else:
        np.savez(path, **GOOD)
        path.write_bytes(path.read_bytes()[: 0 if content == "nothing" else 300])
    with pytest.raises(InputError, match=r"a\.npz must be an \.npz of several arrays") as caught:
        open_images(str(path))
    assert "allow_pickle" not in str(caught.value)
    assert not sprung.exists()


def test_objects_inside_are_never_loaded(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "a.npz", **{**GOOD, "class_names": np.array([Trap(tmp_path / "sprung")], dtype=object)}
    )
    with pytest.raises(InputError, match="Python objects, which are not loaded") as caught:
        open_images(str(tmp_path / "a.npz"))
    assert "allow_pickle" not in str(caught.value)
    assert not (tmp_path / "sprung").exists()


def write_idx(path: Path, array: np.ndarray) -> None:
    """The format of MNIST's files: two zeros, type 8 (bytes), number of dimensions, sizes, values."""
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def test_set_of_torchvision_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NADARAYA_CACHE", str(tmp_path))
    raw = tmp_path / "torchvision" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for split, count in (("train", 30), ("t10k", 12)):
        write_idx(raw / f"{split}-images-idx3-ubyte", rng.integers(0, 256, (count, 28, 28)))
        write_idx(raw / f"{split}-labels-idx1-ubyte", np.arange(count) % 10)
    images = open_images("torchvision:MNIST")
    assert (images.name, images.channels, len(images.train), len(images.validation)) == ("MNIST", 1, 30, 12)
    assert images.classes[3] == "3 - three"
    assert images.validation.labels.tolist() == [*range(10), 0, 1]


def test_pickle_that_is_not_the_published_one_is_never_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision.datasets import CIFAR10, cifar

    monkeypatch.setenv("NADARAYA_CACHE", str(tmp_path))

    def no_network(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(cifar, "download_and_extract_archive", no_network)
    folder = tmp_path / "torchvision" / CIFAR10.base_folder
    folder.mkdir(parents=True)
    for name, _ in [*CIFAR10.train_list, *CIFAR10.test_list]:
        (folder / name).write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(InputError, match=r"cannot have torchvision's CIFAR10 in .*: no network"):
        open_images("torchvision:CIFAR10")
    assert not (tmp_path / "sprung").exists()


def test_unknown_set_of_torchvision() -> None:
    with pytest.raises(InputError, match="did you mean 'CIFAR10'"):
        open_images("torchvision:CIFAR11")
    with pytest.raises(InputError, match="validation must be None: torchvision:CIFAR10 has its own"):
        open_images("torchvision:CIFAR10", validation="x")

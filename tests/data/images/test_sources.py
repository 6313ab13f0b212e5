"""A set is the same whatever form it is stored in; its digest follows the data; bad images are named."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from nadaraya.data.images import CorruptImageError, open_images
from nadaraya.data.images import sources as module
from nadaraya.errors import InputError


def test_every_form_holds_the_same_images(every_form: dict[str, str]) -> None:
    reference = open_images(every_form.pop("npz"))
    for source in every_form.values():
        images = open_images(source)
        assert images.classes == reference.classes == ("ant", "bee", "cat")
        assert images.channels == 3
        for ours, theirs in ((images.train, reference.train), (images.validation, reference.validation)):
            np.testing.assert_array_equal(ours.labels, theirs.labels)
            for index in range(len(theirs)):
                np.testing.assert_array_equal(np.asarray(ours.read(index)), np.asarray(theirs.read(index)))


def test_real_images_have_their_classes(cifar: module.ImageSet) -> None:
    assert (len(cifar.train), len(cifar.validation), cifar.channels) == (50_000, 10_000, 3)
    assert cifar.classes[3] == "cat"
    assert (np.bincount(cifar.train.labels) == 5000).all()
    assert cifar.train.read(0).size == (32, 32)


@pytest.mark.parametrize("form", ["folder", "shards"])
@pytest.mark.parametrize("limit", [module.CONTENT_LIMIT, 0])
def test_digest_follows_the_data(
    every_form: dict[str, str], form: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONTENT_LIMIT", limit)
    root = Path(every_form[form])
    before = open_images(str(root)).sha256
    assert open_images(str(root)).sha256 == before
    moved = shutil.copytree(root, root.with_name("moved"))
    assert open_images(str(moved)).sha256 == before

    file = sorted(file for file in moved.rglob("*") if file.suffix in (".png", ".tar"))[-1]
    content = bytearray(file.read_bytes())
    content[600 if file.suffix == ".tar" else 100] ^= 1  # of an image, its size the same
    file.write_bytes(content)
    os.utime(file, ns=(1, 1))
    assert open_images(str(moved)).sha256 != before


def test_digest_follows_split_labels_and_classes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "train_images": rng.integers(0, 255, (6, 4, 4), dtype=np.uint8),
        "train_labels": np.array([0, 1, 0, 1, 0, 1]),
        "test_images": rng.integers(0, 255, (2, 4, 4), dtype=np.uint8),
        "test_labels": np.array([0, 1]),
        "class_names": np.array(["a", "b"]),
    }
    changes = {
        "train_images": arrays["train_images"][::-1],
        "train_labels": arrays["train_labels"][::-1],
        "test_images": arrays["test_images"] ^ 1,
        "test_labels": np.array([1, 0]),
        "class_names": np.array(["a", "c"]),
    }
    digests = set()
    for number, change in enumerate([{}, *({key: value} for key, value in changes.items())]):
        np.savez(tmp_path / f"{number}.npz", **{**arrays, **change})
        digests.add(open_images(str(tmp_path / f"{number}.npz")).sha256)
    assert len(digests) == 6


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"])
def test_corrupt_image_is_named_in_one_line(folder: Path, content: bytes) -> None:
    broken = folder / "train" / "bee" / "009.png"
    broken.write_bytes(content)
    with pytest.raises(CorruptImageError, match=r"bee/009\.png: ") as caught:
        open_images(str(folder)).train.read(9)
    assert "\n" not in str(caught.value)


def test_truncated_image_is_corrupt(folder: Path) -> None:
    broken = folder / "train" / "bee" / "009.png"
    broken.write_bytes(broken.read_bytes()[:-30])
    with pytest.raises(CorruptImageError, match=r"bee/009\.png: "):
        open_images(str(folder)).train.read(9)


def test_vanished_file_is_bad_input_but_not_corrupt(folder: Path) -> None:
    images = open_images(str(folder))
    (folder / "train" / "bee" / "009.png").unlink()
    with pytest.raises(InputError, match=r"cannot read .*009\.png: No such file") as caught:
        images.train.read(9)
    assert not isinstance(caught.value, CorruptImageError)


def test_channels_are_guessed_from_all_of_a_sample(tmp_path: Path, folder: Path) -> None:
    from PIL import Image

    for file in folder.rglob("*.png"):
        Image.open(file).convert("L").save(file)
    assert open_images(str(folder)).channels == 1
    assert open_images(str(folder)).train.read(0).mode == "L"
    assert open_images(str(folder), channels=3).train.read(0).mode == "RGB"
    one = folder / "train" / "cat" / "015.png"
    Image.open(one).convert("RGB").save(one)
    assert open_images(str(folder)).channels == 3

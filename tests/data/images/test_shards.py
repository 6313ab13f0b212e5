"""Tar shards: webdataset's own writer is read, damage is named, nothing is unpickled."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nadaraya.data.images import open_images
from nadaraya.data.images.files import read_shards
from nadaraya.errors import InputError

Tar = Callable[[Path, dict[str, bytes]], Path]


def test_what_webdataset_writes_is_read(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for index, image in enumerate(pixels):
            writer.write({"__key__": f"part/{index:04}", "png": Image.fromarray(image), "cls": index % 2})
    images = read_shards([tmp_path / "a.tar"], "a.tar")
    np.testing.assert_array_equal(images.labels, [0, 1, 0, 1, 0])
    for index, image in enumerate(pixels):
        np.testing.assert_array_equal(np.asarray(images.read(index)), image)


def test_key_ends_at_the_first_dot_of_the_file_name(tmp_path: Path, tar_file: Tar) -> None:
    shard = tar_file(
        tmp_path / "a.tar", {"v1.0/a.JPG": b"", "v1.0/a.cls": b"3", "v1.0/b.jpg": b"", "v1.0/b.cls": b"1"}
    )
    images = read_shards([shard], "a.tar")
    np.testing.assert_array_equal(images.labels, [3, 1])
    assert images.name(0) == f"v1.0/a.JPG in {shard}"


def test_other_members_are_passed_over(tmp_path: Path, tar_file: Tar) -> None:
    members = {"README": b"", "info.json": b"{}", "0.txt": b"a caption", "0.png": b"", "0.cls": b"0"}
    assert len(read_shards([tar_file(tmp_path / "a.tar", members)], "a.tar")) == 1


def test_names_of_classes_from_dataset_info(every_form: dict[str, str]) -> None:
    root = Path(every_form["shards"])
    (root / "classes.txt").unlink()
    assert open_images(str(root)).classes == ("0", "1", "2")
    (root / "dataset_info.json").write_text('{"features": {"label": {"names": ["x", "y", "z"]}}}')
    assert open_images(str(root)).classes == ("x", "y", "z")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"0.png": b""}, r"no label for the image 0\.png"),
        ({"0.cls": b"0"}, r"the label 0 but no image of the key 0"),
        ({"0.png": b"", "0.cls": b"cat"}, r"0\.cls in .* must be an integer of at least 0"),
        ({"0.png": b"", "0.cls": b"-1"}, r"0\.cls in .* must be an integer of at least 0"),
        ({"0.png": b"", "0.cls": b"\xff"}, r"0\.cls in .* must be an integer of at least 0"),
        ({"0.png": b"", "0.cls": pickle.dumps(1)}, r"0\.cls in .* must be an integer of at least 0"),
        ({"0.png": b"", "0.json": b'{"label": "cat"}'}, r"0\.json in .* must be an integer of at least 0"),
        ({"0.png": b"", "0.json": 100_000 * b"["}, r"0\.json in .* must be an integer"),
        ({"0.png": b"", "0.json": b'{"label": 1}', "0.cls": b"2"}, "two labels of the key 0: 1 and 2"),
        ({"0.png": b"", "0.jpg": b"", "0.cls": b"0"}, "two images of the key 0"),
        ({"README": b""}, "no image in 1 tar shards"),
    ],
)
def test_bad_members_are_named(
    tmp_path: Path, tar_file: Tar, members: dict[str, bytes], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_shards([tar_file(tmp_path / "a.tar", members)], "a.tar")


def test_truncated_member_is_named(tmp_path: Path, tar_file: Tar) -> None:
    shard = tar_file(tmp_path / "a.tar", {"0.cls": b"0", "0.png": bytes(5000)})
    shard.write_bytes(shard.read_bytes()[:4000])
    with pytest.raises(InputError, match=r"a\.tar is truncated: it ends within its member 0\.png"):
        read_shards([shard], "a.tar")


@pytest.mark.parametrize("content", [b"", b"not a tar" * 200, b"\x1f\x8b" + bytes(600)])
def test_not_a_tar(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.tar must be a whole, uncompressed tar"):
        read_shards([tmp_path / "a.tar"], "a.tar")


@pytest.mark.parametrize("cut", [0, 99])
def test_shard_that_ends_at_or_in_a_header_has_not_lost_its_rest_in_silence(
    tmp_path: Path, tar_file: Tar, cut: int
) -> None:
    shard = tar_file(tmp_path / "a.tar", {f"{i}.{kind}": b"0" for i in range(2) for kind in ("png", "cls")})
    data = shard.read_bytes()
    shard.write_bytes(data[: data.index(b"1.png") + cut])
    with pytest.raises(InputError, match=r"a\.tar is truncated or damaged at byte 2048"):
        read_shards([shard], "a.tar")


def test_label_that_no_number_of_classes_reaches_is_refused(tmp_path: Path, tar_file: Tar) -> None:
    for split in ("train", "val"):
        tar_file(tmp_path / f"{split}.tar", {"0.png": b"", "0.cls": b"2147483647"})
    with pytest.raises(InputError, match=r"labels of .* must be below 1,000,000, got 2147483647"):
        open_images(str(tmp_path))

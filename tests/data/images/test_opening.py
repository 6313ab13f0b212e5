"""Splits are found, classes must agree, and what is wrong with a source is said in one line."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nadaraya.data.images import open_images
from nadaraya.errors import InputError

Tar = Callable[[Path, dict[str, bytes]], Path]


@pytest.mark.parametrize("name", ["val", "validation", "test"])
def test_validation_folder_has_one_of_three_names(folder: Path, name: str) -> None:
    (folder / "val").rename(folder / name)
    assert len(open_images(str(folder)).validation) == 9


def test_val_goes_before_test(folder: Path) -> None:
    shutil.copytree(folder / "train", folder / "test")
    assert len(open_images(str(folder)).validation) == 9


def test_validation_may_lie_elsewhere(folder: Path) -> None:
    (folder / "val").rename(folder.with_name("elsewhere"))
    images = open_images(str(folder / "train"), validation=str(folder.with_name("elsewhere")))
    assert (len(images.train), len(images.validation)) == (18, 9)


def test_shards_by_glob_and_by_validation(every_form: dict[str, str]) -> None:
    root = every_form["shards"]
    images = open_images(f"{root}/*-train-*.tar", validation=f"{root}/some-val-000000.tar")
    assert (len(images.train), len(images.validation)) == (18, 5)
    assert len(open_images(f"{root}/some*").validation) == 9


def test_folder_and_shards_can_be_mixed(every_form: dict[str, str]) -> None:
    images = open_images(every_form["folder"] + "/train", validation=every_form["shards"] + "/*-val-*.tar")
    assert (len(images.train), len(images.validation)) == (18, 9)


@pytest.mark.parametrize(
    ("missing", "message"), [("val", "none of val/, validation/, test/"), ("train", "no train")]
)
def test_missing_split(folder: Path, missing: str, message: str) -> None:
    shutil.rmtree(folder / missing)
    with pytest.raises(InputError, match=message):
        open_images(str(folder))


@pytest.mark.parametrize("source", ["absent", "absent.npz", "absent/*.tar", "absent.tar"])
def test_no_such_source(tmp_path: Path, source: str) -> None:
    with pytest.raises(InputError, match=r"no such images|no train split"):
        open_images(str(tmp_path / source))


def test_class_only_in_one_split_is_named(folder: Path) -> None:
    (folder / "val" / "cat").rename(folder / "val" / "dog")
    with pytest.raises(InputError, match=r"train and .*val differ: only the first has cat"):
        open_images(str(folder))
    shutil.copytree(folder / "train" / "cat", folder / "val" / "cat")
    with pytest.raises(InputError, match=r"val and .*train differ: only the first has dog"):
        open_images(str(folder))


def test_empty_class_folder_is_named(folder: Path) -> None:
    (folder / "train" / "dog").mkdir()
    with pytest.raises(InputError, match=r"train/dog holds no image; files must end in \.jpg"):
        open_images(str(folder))


@pytest.mark.parametrize("target", ["..", "../bee"])
def test_links_that_lead_to_images_twice_are_named(folder: Path, target: str) -> None:
    (folder / "train" / "ant" / "more").symlink_to(target)
    with pytest.raises(InputError, match=r"train/\S+ links to .*train\S*, whose files would count twice"):
        open_images(str(folder))


def test_linked_class_folders_are_read(folder: Path) -> None:
    (folder / "train" / "ant").rename(folder / "elsewhere")
    (folder / "train" / "ant").symlink_to(folder / "elsewhere")
    images = open_images(str(folder))
    assert len(images.train) == 18
    assert images.train.name(0) == str(folder / "train" / "ant" / "000.png")


def test_folder_without_classes(folder: Path) -> None:
    for file in (folder / "val").rglob("*.png"):
        file.rename(folder / "val" / file.name)
    for place in (folder / "val").iterdir():
        if place.is_dir():
            place.rmdir()
    with pytest.raises(InputError, match="no class folders"):
        open_images(str(folder))


def test_shards_of_no_known_split(tmp_path: Path, tar_file: Tar) -> None:
    tar_file(tmp_path / "a.tar", {"0.png": b"", "0.cls": b"0"})
    with pytest.raises(InputError, match="do not say their split"):
        open_images(str(tmp_path))


def test_validation_label_beyond_the_training_ones(tmp_path: Path, tar_file: Tar) -> None:
    tar_file(tmp_path / "train.tar", {"0.png": b"", "0.cls": b"0", "1.png": b"", "1.cls": b"1"})
    tar_file(tmp_path / "val.tar", {"7.png": b"", "7.cls": b"2"})
    with pytest.raises(
        InputError, match=r"label 2 of image 7\.png in .*val\.tar is out of range: there are 2"
    ):
        open_images(str(tmp_path))


def test_options_are_checked(folder: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'skip'"):
        open_images(str(folder), corrupt="skipp")
    with pytest.raises(InputError, match="channels must be 1"):
        open_images(str(folder), channels=4)
    with pytest.raises(InputError, match="neither a folder nor a tar"):
        open_images(str(folder / "train" / "ant" / "000.png"), validation=str(folder))


@pytest.mark.parametrize("place", ["train/ant/pipe.png", "a.npz", "train/pipe.tar"])
def test_pipes_are_refused_unread(folder: Path, place: str) -> None:
    os.mkfifo(folder / place)
    source = folder / "a.npz" if place == "a.npz" else folder
    with pytest.raises(InputError, match="must be a regular file, got a folder, device, pipe or socket"):
        open_images(str(source)).train.read(7)


def test_class_that_is_a_link_to_itself_is_no_class(folder: Path) -> None:
    (folder / "train" / "loop").symlink_to("loop")
    assert open_images(str(folder)).classes == ("ant", "bee", "cat")


def test_source_that_no_path_can_be_is_one_short_line() -> None:
    with pytest.raises(InputError, match=r"^'a+ … is no path: File name too long$"):
        open_images("a" * 5000)

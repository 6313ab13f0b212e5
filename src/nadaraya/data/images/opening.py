"""`open_images`: finds out what a source is, and checks that training and validation agree."""

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nadaraya.data.images.arrays import PREFIX, VALIDATION_NAMES, read_npz, read_torchvision
from nadaraya.data.images.folder import FolderImages
from nadaraya.data.images.shards import ShardImages
from nadaraya.data.images.sources import ImageSet, ImageSource
from nadaraya.errors import InputError, unknown_name

_SHOWN = 5
_ACCEPTED = (
    "accepted are a folder with train/ and val/ (or validation/, test/), a training folder with validation=,"
    " tar shards (a folder or a glob), an .npz file, or torchvision:CIFAR10 and the like"
)


class _Part(NamedTuple):
    source: ImageSource
    classes: tuple[str, ...] | None
    place: str


def open_images(
    source: str, *, validation: str | None = None, corrupt: str = "fatal", channels: int | None = None
) -> ImageSet:
    """Images to train and validate on, from a folder, tar shards, an .npz file or torchvision.

    - A folder with `train/` and `val/` (or `validation/`, `test/`), each with one folder a class; or the
      training folder alone, with the other one as `validation`.
    - Tar shards in webdataset's form (KEY.jpg with KEY.cls or KEY.json): a folder of them with `train/` and
      `val/` as above, or a folder or glob whose shards are told apart by "train" and "val", "validation" or
      "test" in their file names, or `validation`. Names of classes come from `classes.txt` or
      `dataset_info.json` beside them; without, they are numbers.
    - An .npz with `train_images`, `train_labels` and `val_` or `test_` ones, or `train_jpeg` (image files end
      to end), `train_offsets`, `train_labels` and so on; `class_names` if it has them.
    - "torchvision:CIFAR10", CIFAR100, MNIST, FashionMNIST or KMNIST, downloaded into the cache folder.

    Args:
        source: what to open.
        validation: where the validation images are, when `source` is training images alone.
        corrupt: what to do with an image that cannot be decoded: "fatal" (default) stops, "skip" warns once
            and goes on, see `ImageSet`.
        channels: 3 for colour, 1 for grey; default: 1 when every one of up to 64 training images, evenly
            spaced, is grey, else 3.

    Returns:
        The set; images are decoded when they are read.

    Raises:
        InputError: no such source, a split is missing, classes differ between the splits, or a damaged file.
    """
    if corrupt not in ("fatal", "skip"):
        raise unknown_name("treatment of corrupt images", corrupt, ("fatal", "skip"))
    if channels not in (None, 1, 3):
        raise InputError(f"channels is {channels!r}; accepted are 1 (grey), 3 (colour) or None")
    train, held_out = _parts(source, validation)
    classes = _agree(train, held_out)
    number = channels or train.source.guess_channels()
    train.source.channels = held_out.source.channels = number
    name = source.removeprefix(PREFIX) if source.startswith(PREFIX) else Path(source).absolute().stem
    return ImageSet(name, classes, number, train.source, held_out.source, corrupt)


def _parts(source: str, validation: str | None) -> tuple[_Part, _Part]:
    if source.startswith(PREFIX) or source.endswith(".npz"):
        if validation is not None:
            raise InputError(
                f"{source} has its own validation images; validation={validation!r} has no place"
            )
        names: tuple[str, ...] | None
        if source.startswith(PREFIX):
            train, held_out, names = read_torchvision(source.removeprefix(PREFIX))
        else:
            train, held_out, names = read_npz(_existing(source))
        return _Part(train, names, f"the training images of {source}"), _Part(
            held_out, names, f"the validation images of {source}"
        )
    if validation is not None:
        return _open(source), _open(validation)
    if Path(source, "train").is_dir():
        for name in VALIDATION_NAMES:
            if Path(source, name).is_dir():
                return _open(str(Path(source, "train"))), _open(str(Path(source, name)))
        raise InputError(f"{source} has train/ but none of val/, validation/, test/; give validation=")
    if shards := _find_shards(source):
        held_out_shards = [shard for shard in shards if _names_split(shard, VALIDATION_NAMES)]
        train_shards = [shard for shard in shards if _names_split(shard, ("train", "training"))]
        if train_shards and held_out_shards:
            return _open_shards(train_shards, source), _open_shards(held_out_shards, source)
        raise InputError(
            f"the {len(shards)} shards of {source} are not told apart: give validation=, or have"
            " 'train' and 'val' (or 'validation', 'test') in their names"
        )
    raise InputError(f"no train split: {_existing(source)} has no folder train/; {_ACCEPTED}")


def _existing(source: str) -> Path:
    if not Path(source).exists():
        raise InputError(f"no such images: {source}; {_ACCEPTED}")
    return Path(source)


def _open(place: str) -> _Part:
    if shards := _find_shards(place):
        return _open_shards(shards, place)
    folder = _existing(place)
    if not folder.is_dir():
        raise InputError(f"{place} is neither a folder nor a tar file; {_ACCEPTED}")
    images = FolderImages(folder)
    return _Part(images, images.classes, place)


def _open_shards(shards: Sequence[Path], place: str) -> _Part:
    images = ShardImages(shards)
    return _Part(images, images.classes, place)


def _find_shards(place: str) -> list[Path]:
    path = Path(place)
    if path.is_dir():
        return sorted(path.glob("*.tar"))
    if path.is_file():
        return [path] if path.suffix == ".tar" else []
    return [Path(found) for found in sorted(glob.glob(place)) if found.endswith(".tar")]  # noqa: PTH207


def _names_split(shard: Path, names: Sequence[str]) -> bool:
    words = "".join(letter if letter.isalpha() else " " for letter in shard.stem.lower()).split()
    return any(name in words for name in names)


def _agree(train: _Part, held_out: _Part) -> tuple[str, ...]:
    """The classes of both parts."""
    for part in (train, held_out):
        if not len(part.source):
            raise InputError(f"{part.place} holds no images")
    ours, theirs = train.classes, held_out.classes
    if ours is not None and theirs is not None and ours != theirs:
        for here, there, these, those in ((train, held_out, ours, theirs), (held_out, train, theirs, ours)):
            if only := [name for name in these if name not in set(those)]:
                shown = ", ".join(only[:_SHOWN]) + (
                    f" and {len(only) - _SHOWN} more" if len(only) > _SHOWN else ""
                )
                raise InputError(
                    f"the classes of {here.place} and {there.place} differ: only the first has {shown}"
                )
        raise InputError(f"the classes of {train.place} and {held_out.place} are in different orders")
    classes = ours or theirs or tuple(str(number) for number in range(int(train.source.labels.max()) + 1))
    for part in (train, held_out):
        bad = np.flatnonzero((part.source.labels < 0) | (part.source.labels >= len(classes)))
        if len(bad):
            index = int(bad[0])
            raise InputError(
                f"the label {part.source.labels[index]} of image {part.source.name(index)} is out of range:"
                f" there are {len(classes)} classes, from 0 to {len(classes) - 1}"
            )
    return classes

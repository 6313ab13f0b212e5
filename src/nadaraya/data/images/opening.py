"""`open_images`: finds out what a source is, and checks that training and validation agree."""

import glob
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nadaraya.data.images.arrays import VALIDATION_NAMES, read_npz, read_torchvision
from nadaraya.data.images.files import read_folder, read_shards
from nadaraya.data.images.sources import ImageSet, ImageSource
from nadaraya.errors import InputError, check_name, must_be
from nadaraya.files import is_folder

_TORCHVISION = "torchvision:"
_MOST_CLASSES = 1_000_000  # of which there are no names: more are not numbers of classes
_ACCEPTED = (
    "a source is a folder with train/ and val/ (or validation/, test/), a training folder with validation=,"
    " tar shards (a folder or a glob), an .npz file, or torchvision:CIFAR10 and the like"
)


def open_images(
    source: str, *, validation: str | None = None, corrupt: str = "fatal", channels: int | None = None
) -> ImageSet:
    """Images to train and validate on, from a folder, tar shards, an .npz file or torchvision.

    - A folder with `train/` and `val/` (or `validation/`, `test/`), each with one folder per class; or the
      training folder alone, with the other one as `validation`.
    - Tar shards in webdataset's form (KEY.jpg with KEY.cls or KEY.json): a folder of them with `train/` and
      `val/` as above, or a folder or glob whose shards have "train" and "val", "validation" or "test" in
      their file names, or `validation`. Names of classes come from `classes.txt` or `dataset_info.json`
      beside them; without, they are numbers.
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

    >>> import numpy as np
    >>> from nadaraya.data.images import open_images
    >>> pixels, labels = np.zeros((4, 8, 8, 3), np.uint8), np.array([0, 1, 0, 1])
    >>> np.savez("tiny.npz", train_images=pixels, train_labels=labels, val_images=pixels, val_labels=labels)
    >>> open_images("tiny.npz").classes
    ('0', '1')
    """
    check_name("corrupt", corrupt, ("fatal", "skip"))
    if channels not in (None, 1, 3):
        raise must_be("channels", "1 (grey), 3 (colour) or None", channels)
    for place in filter(None, (source, validation)):
        is_folder(Path(place))  # refuses what no path can be
    train, held_out = _open_parts(source, validation)
    classes = _agree(train, held_out)
    for part in (train, held_out):
        labels = part.labels
        for index in np.flatnonzero((labels < 0) | (labels >= len(classes))):
            raise InputError(
                f"the label {labels[index]} of image {part.name(int(index))} is out of range:"
                f" there are {len(classes)} classes, from 0 to {len(classes) - 1}"
            )
    train.channels = held_out.channels = channels or train.guess_channels()
    name = source.removeprefix(_TORCHVISION)
    name = Path(source).absolute().stem if name == source else name
    return ImageSet(name, classes, train.channels, train, held_out, corrupt)


def _open_parts(source: str, validation: str | None) -> tuple[ImageSource, ImageSource]:
    if source.startswith(_TORCHVISION) or source.endswith(".npz"):
        if validation is not None:
            raise must_be("validation", f"None: {source} has its own validation images", validation)
        name = source.removeprefix(_TORCHVISION)
        return read_npz(_existing(source)) if name == source else read_torchvision(name)
    if validation is not None:
        return _open(source), _open(validation)
    if Path(source, "train").is_dir():
        for name in VALIDATION_NAMES:
            if Path(source, name).is_dir():
                return _open(str(Path(source, "train"))), _open(str(Path(source, name)))
        raise InputError(f"{source} has train/ but none of val/, validation/, test/; give validation=")
    if shards := _find_shards(source):
        train = [shard for shard in shards if _names_split(shard, ("train", "training"))]
        held_out = [shard for shard in shards if _names_split(shard, VALIDATION_NAMES)]
        if train and held_out:
            return read_shards(train, source), read_shards(held_out, source)
        raise InputError(
            f"the {len(shards)} shards of {source} do not say their split: give validation=, or have"
            " 'train' and 'val' (or 'validation', 'test') in their names"
        )
    raise InputError(f"no train split: {_existing(source)} has no folder train/; {_ACCEPTED}")


def _open(place: str) -> ImageSource:
    if shards := _find_shards(place):
        return read_shards(shards, place)
    folder = _existing(place)
    if not folder.is_dir():
        raise InputError(f"{place} is neither a folder nor a tar file; {_ACCEPTED}")
    return read_folder(folder)


def _existing(source: str) -> Path:
    if not Path(source).exists():
        raise InputError(f"no such images: {source}; {_ACCEPTED}")
    return Path(source)


def _find_shards(place: str) -> list[Path]:
    path = Path(place)
    if path.is_dir():
        return sorted(path.glob("*.tar"))
    if path.is_file():
        return [path] if path.suffix == ".tar" else []
    return [Path(found) for found in sorted(glob.glob(place)) if found.endswith(".tar")]  # noqa: PTH207


def _names_split(shard: Path, names: Sequence[str]) -> bool:
    return not set(names).isdisjoint(re.split(r"[^a-z]+", shard.stem.lower()))


def _agree(train: ImageSource, held_out: ImageSource) -> tuple[str, ...]:
    """The classes of both parts, which must be the same."""
    for part in (train, held_out):
        if not len(part):
            raise InputError(f"{part.place} holds no images")
    if train.classes is None or held_out.classes is None or train.classes == held_out.classes:
        numbers = range(int(train.labels.max()) + 1)
        if len(numbers) > _MOST_CLASSES and not (train.classes or held_out.classes):
            raise must_be(f"labels of {train.place}", f"below {_MOST_CLASSES:,}", numbers[-1])
        return train.classes or held_out.classes or tuple(map(str, numbers))
    for here, there in ((train, held_out), (held_out, train)):
        theirs = set(there.classes or ())
        if only := [name for name in here.classes or () if name not in theirs]:
            more = f" and {len(only) - 5} more" if len(only) > 5 else ""
            raise InputError(
                f"the classes of {here.place} and {there.place} differ: only the first has"
                f" {', '.join(only[:5])}{more}"
            )
    raise InputError(f"the classes of {train.place} and {held_out.place} are in different orders")

"""Images held in memory: arrays of pixels, or image files end to end; from .npz files and torchvision."""

import io
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from nadaraya.data.images.sources import ImageSource, arrays_digest, reason
from nadaraya.data.textfile import check_regular
from nadaraya.errors import InputError, check_name, must_be
from nadaraya.files import cache_folder

VALIDATION_NAMES = ("val", "validation", "test")
_TORCHVISION = ("CIFAR10", "CIFAR100", "FashionMNIST", "KMNIST", "MNIST")
_FORM = (
    "an .npz holds train_images (uint8, (N, H, W) or (N, H, W, 3)) and train_labels, with val_ or test_ ones,"
    " or train_jpeg (image files end to end), train_offsets and train_labels, likewise"
)


class ArrayImages(ImageSource):
    """Images in arrays that are held once: workers are forked and share them.

    `data` is uint8, (N, H, W) or (N, H, W, 1) grey, (N, H, W, 3) RGB; or (bytes,) with (N + 1,) `offsets`:
    image i is then the file data[offsets[i]:offsets[i + 1]]. The `place` names them in messages.
    """

    def __init__(
        self,
        data: np.ndarray,
        labels: np.ndarray,
        place: str,
        classes: tuple[str, ...] | None = None,
        offsets: np.ndarray | None = None,
    ) -> None:
        count, channels = len(data), 3
        if offsets is None:
            data = data[..., 0] if data.ndim == 4 and data.shape[3] == 1 else data
            if data.dtype != np.uint8 or not (data.ndim == 3 or (data.ndim == 4 and data.shape[3] == 3)):
                raise _form_error(place, "uint8 of shape (N, H, W), (N, H, W, 1) or (N, H, W, 3)", data)
            channels = 1 if data.ndim == 3 else 3
        else:
            if data.dtype != np.uint8 or data.ndim != 1:
                raise _form_error(place, "uint8 of shape (bytes,)", data)
            if offsets.ndim != 1 or len(offsets) < 2 or offsets.dtype.kind not in "iu":
                raise _form_error(f"the offsets of {place}", "at least two integers", offsets)
            if offsets[0] < 0 or offsets[-1] > len(data) or (offsets[1:] < offsets[:-1]).any():
                raise InputError(f"the offsets of {place} do not rise within its {len(data)} bytes")
            count = len(offsets) - 1
        if labels.dtype.kind not in "iu" or labels.shape not in ((count,), (count, 1)):
            raise _form_error(f"the labels of {place}", f"integers of shape ({count},)", labels)
        super().__init__(labels.reshape(count), channels, place=place, classes=classes)
        self._data, self._offsets = data, offsets

    def name(self, index: int) -> str:
        return f"{index} of {self.place}"

    def digest(self) -> bytes:
        offsets = () if self._offsets is None else (self._offsets,)
        return arrays_digest(self._data, *offsets, self.labels)

    def _open(self, index: int) -> Image.Image:
        if self._offsets is None:
            return Image.fromarray(self._data[index])
        return Image.open(io.BytesIO(self._data[self._offsets[index] : self._offsets[index + 1]].tobytes()))


def _form_error(name: str, accepted: str, given: np.ndarray) -> InputError:
    return InputError(f"{name} must be {accepted}, got {given.dtype} of shape {given.shape}")


def read_npz(path: Path) -> tuple[ImageSource, ImageSource]:
    """Training and validation images of an .npz file, with its `class_names`; nothing is unpickled."""
    try:
        check_regular(path, path.stat().st_mode)
        if not zipfile.is_zipfile(path):  # numpy would take it for a pickle
            raise must_be(str(path), "an .npz of several arrays", "a file of another form")
        with np.load(path, allow_pickle=False) as archive:
            held_out = next((name for name in VALIDATION_NAMES if f"{name}_labels" in archive), "val")
            return _read_split(archive, "train", path), _read_split(archive, held_out, path)
    except InputError:
        raise
    except Exception as error:  # the decompressors and numpy have no common class for a damaged file
        why = reason(error)
        if "allow_pickle" in why:
            why = "an array in it holds Python objects, which are not loaded because that can run any code"
        raise InputError(f"cannot read {path}: {why}") from None


def _read_split(archive: np.lib.npyio.NpzFile, split: str, path: Path) -> ImageSource:
    def array(kind: str) -> np.ndarray:
        key = f"{split}_{kind}"
        if key not in archive:
            raise InputError(f"{path} has no array {key}; {_FORM}")
        return archive[key]

    kind = "jpeg" if f"{split}_jpeg" in archive else "images"
    data, offsets = array(kind), array("offsets") if kind == "jpeg" else None
    classes = tuple(map(str, archive["class_names"].ravel())) if "class_names" in archive else None
    return ArrayImages(data, array("labels"), f"{split}_{kind} of {path}", classes, offsets)


def read_torchvision(name: str) -> tuple[ImageSource, ImageSource]:
    """Training and test images of a torchvision data set; it is downloaded the first time.

    torchvision reads CIFAR from the published pickles, after it has compared their digests with its own.
    """
    from torchvision import datasets

    check_name("torchvision data set", name, _TORCHVISION)
    root = cache_folder() / "torchvision"
    try:
        train, test = (getattr(datasets, name)(root, train=part, download=True) for part in (True, False))
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"cannot have torchvision's {name} in {root}: {reason(error)}") from error
    training, held_out = (
        ArrayImages(
            np.asarray(data.data), np.asarray(data.targets), f"{part} of {name}", tuple(train.classes)
        )
        for data, part in ((train, "the training images"), (test, "the test images"))
    )
    return training, held_out

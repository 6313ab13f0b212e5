"""Images held in memory: arrays of pixels, or image files end to end; from .npz files and torchvision."""

import io
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from nadaraya.data.cache import cache_folder
from nadaraya.data.images.decode import reason
from nadaraya.data.images.sources import ImageSource, arrays_digest
from nadaraya.data.textfile import check_regular
from nadaraya.errors import InputError, must_be, unknown_name

VALIDATION_NAMES = ("val", "validation", "test")
_TORCHVISION = ("CIFAR10", "CIFAR100", "FashionMNIST", "KMNIST", "MNIST")
_FORM = (
    "an .npz holds train_images (uint8, (N, H, W) or (N, H, W, 3)) and train_labels, with val_ or test_ ones,"
    " or train_jpeg (image files end to end), train_offsets and train_labels, likewise"
)


class _HeldImages(ImageSource):
    """Images in arrays that are held once: workers are forked and share them.

    Labels are (N,) or (N, 1) integers; `origin` is what the arrays are part of, for messages.
    """

    def __init__(self, arrays: tuple[np.ndarray, ...], count: int, labels: np.ndarray, origin: str) -> None:
        if labels.dtype.kind not in "iu" or labels.shape not in ((count,), (count, 1)):
            raise _form_error(f"the labels of {origin}", f"integers of shape ({count},)", labels)
        super().__init__(labels.reshape(count))
        self._arrays, self._origin = arrays, origin

    def name(self, index: int) -> str:
        return f"{index} of {self._origin}"

    def digest(self) -> bytes:
        return arrays_digest(*self._arrays, self.labels)


class ArrayImages(_HeldImages):
    """Images as one uint8 array: (N, H, W) or (N, H, W, 1) grey or (N, H, W, 3) RGB."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray, origin: str) -> None:
        if pixels.ndim == 4 and pixels.shape[3] == 1:
            pixels = pixels[..., 0]
        if pixels.dtype != np.uint8 or not (pixels.ndim == 3 or (pixels.ndim == 4 and pixels.shape[3] == 3)):
            raise _form_error(origin, "uint8 of shape (N, H, W), (N, H, W, 1) or (N, H, W, 3)", pixels)
        super().__init__((pixels,), len(pixels), labels, origin)
        self.channels = 1 if pixels.ndim == 3 else 3

    def _open(self, index: int) -> Image.Image:
        return Image.fromarray(self._arrays[0][index])


class PackedImages(_HeldImages):
    """Image files end to end in one uint8 array; image i is data[offsets[i]:offsets[i + 1]]."""

    def __init__(self, data: np.ndarray, offsets: np.ndarray, labels: np.ndarray, origin: str) -> None:
        if data.dtype != np.uint8 or data.ndim != 1:
            raise _form_error(origin, "uint8 of shape (bytes,)", data)
        if offsets.ndim != 1 or len(offsets) < 2 or offsets.dtype.kind not in "iu":
            raise _form_error(f"the offsets of {origin}", "at least two integers", offsets)
        if offsets[0] < 0 or offsets[-1] > len(data) or (offsets[1:] < offsets[:-1]).any():
            raise InputError(f"the offsets of {origin} do not rise within its {len(data)} bytes")
        super().__init__((data, offsets), len(offsets) - 1, labels, origin)

    def _open(self, index: int) -> Image.Image:
        data, offsets = self._arrays
        return Image.open(io.BytesIO(data[offsets[index] : offsets[index + 1]].tobytes()))


def _form_error(name: str, accepted: str, given: np.ndarray) -> InputError:
    return InputError(f"{name} must be {accepted}, got {given.dtype} of shape {given.shape}")


def read_npz(path: Path) -> tuple[ImageSource, ImageSource, tuple[str, ...] | None]:
    """Training and validation images of an .npz file, and its `class_names` if any; nothing is unpickled."""
    try:
        check_regular(path, path.stat().st_mode)
        if not zipfile.is_zipfile(path):  # numpy would take it for a pickle
            raise must_be(str(path), "an .npz of several arrays", "a file of another form")
        with np.load(path, allow_pickle=False) as archive:
            held_out = next((name for name in VALIDATION_NAMES if f"{name}_labels" in archive), "val")
            train, validation = (_read_split(archive, split, path) for split in ("train", held_out))
            names = tuple(map(str, archive["class_names"].ravel())) if "class_names" in archive else None
    except InputError:
        raise
    except Exception as error:  # the decompressors and numpy have no common class for a damaged file
        why = reason(error)
        if "allow_pickle" in why:
            why = "an array in it holds Python objects, which are not loaded because that can run any code"
        raise InputError(f"cannot read {path}: {why}") from None
    return train, validation, names


def _read_split(archive: np.lib.npyio.NpzFile, split: str, path: Path) -> ImageSource:
    def array(kind: str) -> np.ndarray:
        key = f"{split}_{kind}"
        if key not in archive:
            raise InputError(f"{path} has no array {key}; {_FORM}")
        return archive[key]

    if f"{split}_jpeg" in archive:
        return PackedImages(array("jpeg"), array("offsets"), array("labels"), f"{split}_jpeg of {path}")
    return ArrayImages(array("images"), array("labels"), f"{split}_images of {path}")


def read_torchvision(name: str) -> tuple[ImageSource, ImageSource, tuple[str, ...]]:
    """Training and test images of a torchvision data set, and class names; it is downloaded the first time.

    torchvision reads CIFAR from the published pickles, after it has compared their digests with its own.
    """
    from torchvision import datasets

    if name not in _TORCHVISION:
        raise unknown_name("torchvision data set", name, _TORCHVISION)
    root = cache_folder() / "torchvision"
    try:
        train, test = (getattr(datasets, name)(root, train=part, download=True) for part in (True, False))
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"cannot have torchvision's {name} in {root}: {reason(error)}") from error
    sources = [
        ArrayImages(np.asarray(data.data), np.asarray(data.targets), f"the {part} images of {name}")
        for part, data in (("training", train), ("test", test))
    ]
    return sources[0], sources[1], tuple(train.classes)

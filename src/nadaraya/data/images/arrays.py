"""Images held in memory: arrays of pixels, or image files end to end; from .npz files and torchvision."""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from nadaraya.data.cache import cache_folder
from nadaraya.data.images.sources import EncodedImages, ImageSource, arrays_digest
from nadaraya.errors import InputError, unknown_name

PREFIX = "torchvision:"
VALIDATION_NAMES = ("val", "validation", "test")
_TORCHVISION = ("CIFAR10", "CIFAR100", "FashionMNIST", "KMNIST", "MNIST")
_FORM = (
    "accepted are train_images (uint8, (N, H, W) or (N, H, W, 3)) and train_labels, with val_ or test_ ones,"
    " or train_jpeg (image files end to end), train_offsets and train_labels, likewise"
)


class ArrayImages(ImageSource):
    """Images as one array, held once: workers are forked and share it.

    Args:
        pixels: (N, H, W) or (N, H, W, 1) grey or (N, H, W, 3) RGB, uint8.
        labels: (N,) or (N, 1) integers.
        origin: what the arrays are part of, for messages.

    Raises:
        InputError: another type or shape.
    """

    def __init__(self, pixels: np.ndarray, labels: np.ndarray, origin: str) -> None:
        if pixels.ndim == 4 and pixels.shape[3] == 1:
            pixels = pixels[..., 0]
        if pixels.dtype != np.uint8 or not (pixels.ndim == 3 or (pixels.ndim == 4 and pixels.shape[3] == 3)):
            raise InputError(
                f"{origin} are {pixels.dtype} of shape {pixels.shape};"
                " accepted is uint8 of shape (N, H, W), (N, H, W, 1) or (N, H, W, 3)"
            )
        super().__init__(_labels(labels, len(pixels), origin), channels=1 if pixels.ndim == 3 else 3)
        self._pixels = pixels
        self._origin = origin

    def name(self, index: int) -> str:
        return f"{index} of {self._origin}"

    def digest(self) -> bytes:
        return arrays_digest(self._pixels, self.labels)

    def _open(self, index: int) -> Image.Image:
        return Image.fromarray(self._pixels[index])


class PackedImages(EncodedImages):
    """Image files end to end in one array, held once: workers are forked and share it.

    Args:
        data: (bytes,) uint8.
        offsets: (N + 1,) integers; image i is data[offsets[i]:offsets[i + 1]].
        labels: (N,) or (N, 1) integers.
        origin: what the arrays are part of, for messages.

    Raises:
        InputError: the offsets do not lie in the data in rising order, or another type or shape.
    """

    def __init__(self, data: np.ndarray, offsets: np.ndarray, labels: np.ndarray, origin: str) -> None:
        if data.dtype != np.uint8 or data.ndim != 1:
            raise InputError(
                f"{origin} are {data.dtype} of shape {data.shape}; accepted is uint8 of shape (bytes,)"
            )
        if offsets.ndim != 1 or len(offsets) < 2 or offsets.dtype.kind not in "iu":
            raise InputError(f"the offsets of {origin} are no list of at least two integers")
        if offsets[0] < 0 or offsets[-1] > len(data) or (offsets[1:] < offsets[:-1]).any():
            raise InputError(f"the offsets of {origin} do not rise within its {len(data)} bytes")
        super().__init__(_labels(labels, len(offsets) - 1, origin))
        self._data, self._offsets, self._origin = data, offsets, origin

    def name(self, index: int) -> str:
        return f"{index} of {self._origin}"

    def data(self, index: int) -> bytes:
        return self._data[self._offsets[index] : self._offsets[index + 1]].tobytes()

    def digest(self) -> bytes:
        return arrays_digest(self._data, self._offsets, self.labels)


def _labels(labels: np.ndarray, count: int, origin: str) -> np.ndarray:
    if labels.dtype.kind not in "iu" or labels.shape not in ((count,), (count, 1)):
        raise InputError(
            f"the labels of {origin} are {labels.dtype} of shape {labels.shape};"
            f" accepted are integers of shape ({count},)"
        )
    return labels.reshape(count)


def read_npz(path: Path) -> tuple[ImageSource, ImageSource, tuple[str, ...] | None]:
    """Training and validation images of an .npz file, and class names when it has `class_names`.

    Args:
        path: the file; nothing in it is ever unpickled.

    Returns:
        Both sources, and the names or None.

    Raises:
        InputError: not an .npz, an array is missing, needs pickle or has another form.
    """
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise InputError(f"{path} is one array, not an .npz of several; {_FORM}")
        with archive:
            train = _split(archive, "train", path)
            validation = _split(archive, _validation_name(archive), path)
            names = archive["class_names"] if "class_names" in archive else None  # noqa: SIM401  (no .get there)
    except InputError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"cannot read {path} as an .npz without pickle: {reason}") from None
    return train, validation, None if names is None else tuple(map(str, names.ravel()))


def _validation_name(archive: Mapping[str, np.ndarray]) -> str:
    return next((name for name in VALIDATION_NAMES if f"{name}_labels" in archive), VALIDATION_NAMES[0])


def _split(archive: Mapping[str, np.ndarray], split: str, path: Path) -> ImageSource:
    packed = f"{split}_jpeg" in archive
    needed = [
        f"{split}_{kind}" for kind in (("jpeg", "offsets", "labels") if packed else ("images", "labels"))
    ]
    if missing := [key for key in needed if key not in archive]:
        raise InputError(f"{path} has no array {missing[0]}; {_FORM}")
    origin = f"{needed[0]} of {path}"
    arrays = [archive[key] for key in needed]
    if packed:
        data, offsets, labels = arrays
        return PackedImages(data, offsets, labels, origin)
    pixels, labels = arrays
    return ArrayImages(pixels, labels, origin)


def read_torchvision(name: str) -> tuple[ImageSource, ImageSource, tuple[str, ...]]:
    """A data set of torchvision, downloaded into the cache folder the first time.

    torchvision reads CIFAR from the published pickles, after it has compared their checksums with its own.

    Args:
        name: CIFAR10, CIFAR100, FashionMNIST, KMNIST or MNIST.

    Returns:
        Training source, validation source (its test images) and the class names.

    Raises:
        InputError: another name, or it cannot be downloaded.
    """
    from torchvision import datasets

    if name not in _TORCHVISION:
        raise unknown_name("torchvision data set", name, _TORCHVISION)
    root = cache_folder() / "torchvision"
    sources = []
    for train in (True, False):
        try:
            data = getattr(datasets, name)(root, train=train, download=True)
        except (OSError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"cannot have torchvision's {name} in {root}: {reason}") from error
        part = "training" if train else "test"
        sources.append(
            ArrayImages(np.asarray(data.data), np.asarray(data.targets), f"the {part} images of {name}")
        )
    return sources[0], sources[1], tuple(data.classes)

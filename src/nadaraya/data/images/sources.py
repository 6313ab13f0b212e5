"""Sources of labelled images, read by number as pictures of one form, upright 8-bit RGB or 8-bit grey."""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from nadaraya.data.textfile import check_regular
from nadaraya.errors import InputError

CONTENT_LIMIT = 2**30
MODES = {1: "L", 3: "RGB"}


class CorruptImageError(InputError):
    """An image that cannot be decoded; the message names it and says why.

    >>> from nadaraya.data.images import CorruptImageError
    >>> raise CorruptImageError("cannot decode the image cats/7.jpg: not a known image format")
    Traceback (most recent call last):
    nadaraya.data.images.sources.CorruptImageError: cannot decode the image cats/7.jpg: ...
    """


def is_grey(image: Image.Image) -> bool:
    """Test whether an image has no colours by its mode (a palette counts as colours)."""
    return image.mode in ("1", "L", "LA", "La") or image.mode.startswith("I")


def to_channels(image: Image.Image, channels: int) -> Image.Image:
    """Decode an opened image to mode "L" or "RGB", turned upright by the orientation tag of cameras.

    Transparent pixels are laid on white; 16-bit grey keeps the high byte, as Pillow does for 16-bit colour;
    of an animation the first frame counts. Pixels without a fixed range are a ValueError.
    """
    image.load()
    # Only where there may be tags: looking for them costs a tenth of decoding a small file.
    if "exif" in image.info or image.format == "TIFF":
        with suppress(Exception):  # damaged tags of an image whose pixels are whole: it stays as it is
            ImageOps.exif_transpose(image, in_place=True)
    if 0 in image.size:
        raise ValueError("it has no pixels")
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise ValueError("integer pixels beyond 16 bits")
        has_8_bits = image.mode == "I" and values.max() <= 0xFF  # in 32 bits
        pixels = (values if has_8_bits else values >> 8).astype(np.uint8)
        pixels[values == image.info.get("transparency")] = 255  # Pillow would cut 16 bits off at 255
        image = Image.fromarray(pixels)
    elif image.has_transparency_data:
        image = image.convert("LA") if image.mode == "La" else image  # the one way that Pillow has from it
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    elif image.mode == "F":
        raise ValueError("floating-point pixels have no fixed range")
    elif image.mode == "LAB":
        image = image.convert("RGB")  # likewise
    return image if image.mode == MODES[channels] else image.convert(MODES[channels])


def reason(error: Exception) -> str:
    """Why Pillow could not decode an image, in one line."""
    if isinstance(error, UnidentifiedImageError):
        return "not a known image format"
    return " ".join(str(error).split()) or type(error).__name__


class ImageSource(ABC):
    """Images that are read by number, each with a label; a subclass says how one is opened.

    Attributes:
        labels: (N,) int64 numbers of the classes.
        channels: 3 for pictures in mode "RGB", 1 for mode "L".
        place: name of the source in messages, default "the source".
        classes: names of the classes where they are known, default None.

    >>> import numpy as np
    >>> from PIL import Image
    >>> from nadaraya.data.images.sources import ImageSource
    >>> class Blank(ImageSource):
    ...     def name(self, index): return f"blank {index}"
    ...     def digest(self): return b"blank"
    ...     def _open(self, index): return Image.new("L", (8, 8))
    >>> len(Blank(np.array([0, 1]))), Blank(np.array([0, 1])).read(1).mode
    (2, 'RGB')
    """

    def __init__(
        self,
        labels: np.ndarray,
        channels: int = 3,
        *,
        place: str = "the source",
        classes: tuple[str, ...] | None = None,
    ) -> None:
        self.labels = np.ascontiguousarray(labels, dtype=np.int64)
        self.channels, self.place, self.classes = channels, place, classes

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def name(self, index: int) -> str:
        """The name of an image in messages: its file, shard and member, or number."""

    @abstractmethod
    def digest(self) -> bytes:
        """A digest of the images and their labels, for `ImageSet.sha256`."""

    @abstractmethod
    def _open(self, index: int) -> Image.Image:
        """The image, of any mode; it need not be decoded yet."""

    def read(self, index: int) -> Image.Image:
        """Decode one image.

        Args:
            index: its number, from 0 to N - 1.

        Returns:
            A picture in mode "RGB" or "L", by `channels`.

        Raises:
            CorruptImageError: it cannot be decoded; the message names it.
            InputError: its file cannot be read.
        """
        try:
            return to_channels(self._open(index), self.channels)
        except (InputError, MemoryError):
            raise
        except Exception as error:  # the exceptions of Pillow's decoders have no common class
            raise CorruptImageError(f"cannot decode the image {self.name(index)}: {reason(error)}") from None

    def guess_channels(self) -> int:
        """1 when each of up to 64 images, evenly spaced over the source, is grey by its mode; else 3."""
        grey = False
        for index in np.unique(np.linspace(0, len(self) - 1, num=64).astype(int)):
            try:
                grey = is_grey(self._open(int(index)))
            except InputError:
                raise
            except Exception:  # a corrupt image says nothing; reading it will say so
                continue
            if not grey:
                return 3
        return 1 if grey else 3


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images to train on and images to validate on, with the same classes.

    Args:
        name: what to call it in tables and plots.
        classes: names of the classes; a label is a position in it.
        channels: 3 for colour, 1 for grey; both sources give pictures of that form.
        train: images to train on.
        validation: images to validate on.
        corrupt: what the batches do with an image that cannot be decoded: "fatal" stops with a
            `CorruptImageError`, "skip" warns once and takes the next readable one (validation leaves it out).

    >>> import numpy as np
    >>> from nadaraya.data.images.sources import ImageSet
    >>> from nadaraya.data.images.arrays import ArrayImages
    >>> blank = ArrayImages(np.zeros((8, 32, 32), np.uint8), np.arange(8) % 2, "blank images")
    >>> ImageSet("blank", ("even", "odd"), 1, train=blank, validation=blank).sha256[:8]
    '...'
    """

    name: str
    classes: tuple[str, ...]
    channels: int
    train: ImageSource
    validation: ImageSource
    corrupt: str = "fatal"
    warned: set[str] = field(default_factory=set, init=False, repr=False)

    @cached_property
    def sha256(self) -> str:
        """64 hexadecimal digits that change when the images, labels, classes or the split do.

        Files are digested with their content when those of a source hold up to 1 GiB together, else by
        names, sizes and times of modification, so that ImageNet need not be read twice.
        """
        total = hashlib.sha256(repr((self.classes, self.channels)).encode())
        for source in (self.train, self.validation):
            total.update(source.digest())
        return total.hexdigest()


def arrays_digest(*arrays: np.ndarray) -> bytes:
    """SHA-256 of the types, shapes and values of arrays."""
    total = hashlib.sha256()
    for array in arrays:
        total.update(f"{array.dtype.str}{array.shape}".encode())
        total.update(np.ascontiguousarray(array).data)
    return total.digest()


def files_digest(root: Path, names: Iterable[str]) -> bytes:
    """SHA-256 of files and their names: with their content up to `CONTENT_LIMIT`, see `ImageSet.sha256`."""
    total, names = hashlib.sha256(), list(names)
    try:
        states = [os.stat(root / name) for name in names]  # noqa: PTH116  (a million files: no Path.stat)
        for name, state in zip(names, states, strict=True):
            check_regular(root / name, state.st_mode)
        with_content = sum(state.st_size for state in states) <= CONTENT_LIMIT
        for name, state in zip(names, states, strict=True):
            total.update(f"{name}\0{state.st_size}\0".encode("utf-8", "surrogateescape"))
            if with_content:
                with (root / name).open("rb") as file:
                    total.update(hashlib.file_digest(file, "sha256").digest())
            else:
                total.update(f"{state.st_mtime_ns}\0".encode())
    except OSError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror}") from error
    return total.digest()

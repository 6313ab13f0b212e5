"""Pictures of one form, upright 8-bit RGB or 8-bit grey, from image files of any mode."""

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from nadaraya.errors import InputError

MODES = {1: "L", 3: "RGB"}
_GREY = ("1", "L", "LA", "La")


class CorruptImageError(InputError):
    """An image that cannot be decoded; the message names it and says why.

    >>> from nadaraya.data.images import CorruptImageError
    >>> raise CorruptImageError("cannot decode the image cats/7.jpg: not a known image format")
    Traceback (most recent call last):
    nadaraya.data.images.decode.CorruptImageError: cannot decode the image cats/7.jpg: ...
    """


def is_grey(image: Image.Image) -> bool:
    """Whether an image has no colours by its mode (a palette counts as colours)."""
    return image.mode in _GREY or image.mode.startswith("I")


def to_channels(image: Image.Image, channels: int) -> Image.Image:
    """Decode an opened image to 8 bits per channel, turned upright by the orientation tag of cameras.

    Transparent pixels are laid on white; 16-bit grey keeps the high byte, as Pillow does for 16-bit colour;
    palettes, CMYK, YCbCr and one-bit images are converted by Pillow; of an animation the first frame counts.

    Args:
        image: as `PIL.Image.open` gives it.
        channels: 1 or 3.

    Returns:
        The image in mode "L" or "RGB", loaded.

    Raises:
        ValueError: the pixels have no fixed range (floating point, or integers beyond 16 bits).
        Exception: whatever Pillow raises for a file that it cannot decode.
    """
    image.load()
    # Only where there may be tags: looking for them costs a tenth of decoding a small file.
    if "exif" in image.info or image.format == "TIFF":
        _turn_upright(image)
    wanted = MODES[channels]
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    elif image.mode == "F":
        raise ValueError("floating-point pixels have no fixed range")
    elif image.mode.startswith("I"):
        image = Image.fromarray(_high_bytes(np.asarray(image), image.mode))
    return image if image.mode == wanted else image.convert(wanted)


def _turn_upright(image: Image.Image) -> None:
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except Exception:  # damaged tags of an image whose pixels are whole: it stays as it is
        return


def _high_bytes(values: np.ndarray, mode: str) -> np.ndarray:
    """8 bits of integer pixels; 32-bit ones without a value above 255 have 8 bits already."""
    if values.min() < 0 or values.max() > 0xFFFF:
        raise ValueError("integer pixels beyond 16 bits")
    shift = 0 if mode == "I" and values.max() <= 0xFF else 8
    return (values >> shift).astype(np.uint8)


def reason(error: Exception) -> str:
    """Why Pillow could not decode an image, in one line."""
    if isinstance(error, UnidentifiedImageError):
        return "not a known image format"
    return " ".join(str(error).split()) or type(error).__name__

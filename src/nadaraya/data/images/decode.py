"""Pictures of one form, upright 8-bit RGB or 8-bit grey, from image files of any mode."""

from contextlib import suppress

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from nadaraya.errors import InputError

MODES = {1: "L", 3: "RGB"}


class CorruptImageError(InputError):
    """An image that cannot be decoded; the message names it and says why.

    >>> from nadaraya.data.images import CorruptImageError
    >>> raise CorruptImageError("cannot decode the image cats/7.jpg: not a known image format")
    Traceback (most recent call last):
    nadaraya.data.images.decode.CorruptImageError: cannot decode the image cats/7.jpg: ...
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

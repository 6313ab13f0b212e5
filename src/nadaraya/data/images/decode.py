"""Pictures of one form, 8-bit RGB or 8-bit grey, from image files of any mode."""

import numpy as np
from PIL import Image, UnidentifiedImageError

from nadaraya.errors import InputError

MODES = {1: "L", 3: "RGB"}
_GREY = ("1", "L", "LA", "La")


class CorruptImageError(InputError):
    """An image that cannot be decoded; the message names it and says why."""


def is_grey(image: Image.Image) -> bool:
    """Whether an image has no colours by its mode (a palette counts as colours)."""
    return image.mode in _GREY or image.mode.startswith("I")


def to_channels(image: Image.Image, channels: int) -> Image.Image:
    """Decode an opened image to 8 bits a channel.

    Transparent pixels are laid on white; 16-bit grey keeps the high byte, as Pillow does for 16-bit colour;
    palettes, CMYK, YCbCr and one-bit images are converted by Pillow; of an animation the first frame counts.
    The orientation tag of cameras is not applied, as in torchvision and timm.

    Args:
        image: as `PIL.Image.open` gives it.
        channels: 1 or 3.

    Returns:
        The image in mode "L" or "RGB", loaded.

    Raises:
        ValueError: the pixels have no fixed range (floating point, or integers beyond 16 bits).
        Exception: whatever Pillow raises for a file that it cannot decode.
    """
    wanted = MODES[channels]
    if image.mode == wanted and not image.has_transparency_data:
        image.load()
        return image
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    elif image.mode == "F":
        raise ValueError("floating-point pixels have no fixed range")
    elif image.mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise ValueError("integer pixels beyond 16 bits")
        image = Image.fromarray((values >> 8).astype(np.uint8))
    return image.convert(wanted)


def reason(error: Exception) -> str:
    """Why Pillow could not decode an image, in one line."""
    if isinstance(error, UnidentifiedImageError):
        return "not a known image format"
    return " ".join(str(error).split()) or type(error).__name__

"""Small pictures inside a page: photographs, and maps of weights that lie over them, as data URLs."""

import base64
import io
from collections.abc import Sequence

import matplotlib
import numpy as np
from markupsafe import Markup
from PIL import Image

from nadaraya.report.style import WEIGHTS

#: opacity of the largest weight over a photograph; that of the smallest is 0
_STRONGEST = 0.85


def photograph(image: np.ndarray, largest: int = 448) -> Markup:
    """A (height, width, 3) picture of values 0 … 1 as a data URL; shrunk where a side is above `largest`."""
    picture = Image.fromarray((255 * np.clip(image, 0, 1)).round().astype(np.uint8))
    picture.thumbnail((largest, largest))
    if max(picture.size) < 128:  # so that a browser does not blur the pixels that the model saw
        times = -(-128 // max(picture.size))
        picture = picture.resize((times * picture.width, times * picture.height), Image.Resampling.NEAREST)
    return data_url(picture, quality=85)


def glass(weights: np.ndarray, scale: float) -> np.ndarray:
    """Weights as (rows, columns, 4) colours to lie over a photograph: clear at 0, strong from `scale` on."""
    share = np.clip(np.asarray(weights, dtype=float) / scale, 0, 1)
    colours = matplotlib.colormaps[WEIGHTS](0.3 + 0.65 * share)
    colours[..., 3] = _STRONGEST * share**0.8
    return colours


def over(weights: np.ndarray, scale: float, side: int = 112) -> Markup:
    """`glass` as a data URL, enlarged bilinearly: between the middles of two patches, what lies between."""
    picture = _picture(glass(weights, scale))
    times = max(1, side // max(picture.size))
    size = (picture.width * times, picture.height * times)
    return data_url(picture.resize(size, Image.Resampling.BILINEAR), quality=60)


def pixels(weights: np.ndarray, scale: float, low: float = 0.0) -> Markup:
    """Weights on the colours of inferno, black at `low` and yellow from `scale` on, one pixel per weight."""
    share = np.clip((np.asarray(weights, dtype=float) - low) / ((scale - low) or 1.0), 0, 1)
    return data_url(_picture(matplotlib.colormaps[WEIGHTS](share)))


def side_by_side(tables: Sequence[np.ndarray]) -> np.ndarray:
    """Tables of one height in a row, a column of NaN between two."""
    gap = np.full((len(tables[0]), 1), np.nan)
    return np.concatenate([part for table in tables for part in (gap, table)][1:], axis=1)


def data_url(picture: Image.Image, quality: int | None = None) -> Markup:
    """A picture as a `data:` URL in WebP; lossless without a quality (1 to 100)."""
    copy = io.BytesIO()
    options = {"lossless": True} if quality is None else {"quality": quality}
    picture.save(copy, format="WEBP", method=4, **options)
    return Markup("data:image/webp;base64," + base64.b64encode(copy.getvalue()).decode("ascii"))


def _picture(colours: np.ndarray) -> Image.Image:
    return Image.fromarray((255 * colours).round().astype(np.uint8), "RGBA")

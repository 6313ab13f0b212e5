"""Small pictures inside a page: photographs, and maps of weights that lie over them, as data URLs."""

import base64
import io
from collections.abc import Sequence

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.colors import Normalize
from PIL import Image

from nadaraya.report.style import OVER_IMAGE, WEIGHTS


def photograph(image: np.ndarray, largest: int = 448) -> Markup:
    """A (height, width, 3) picture of values 0 … 1 as a data URL; shrunk where a side is above `largest`."""
    picture = Image.fromarray((255 * np.clip(image, 0, 1)).round().astype(np.uint8))
    picture.thumbnail((largest, largest))
    if max(picture.size) < 128:  # so that a browser does not blur the pixels that the model saw
        times = -(-128 // max(picture.size))
        picture = picture.resize((times * picture.width, times * picture.height), Image.Resampling.NEAREST)
    return data_url(picture, quality=85)


def over(weights: np.ndarray, ends: Normalize, side: int = 112) -> Markup:
    """Weights to lie over a photograph, clear at the lower end, enlarged bilinearly between the patches."""
    picture = _picture(OVER_IMAGE(ends(weights)))
    times = max(1, side // max(picture.size))
    size = (picture.width * times, picture.height * times)
    return data_url(picture.resize(size, Image.Resampling.BILINEAR), quality=60)


def pixels(weights: np.ndarray, ends: Normalize) -> Markup:
    """Weights on the colours of inferno, one pixel per weight; what is NaN is clear."""
    colours = matplotlib.colormaps[WEIGHTS](ends(weights))
    colours[np.isnan(weights), 3] = 0
    return data_url(_picture(colours))


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

"""What all pictures of attention share: sheets of panels at exact places, colours, limits written out."""

import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nadaraya.report.palette import COLOURS

#: the document's colour map of weights, and its share of colour in an overlay
WEIGHTS, ALPHA = "inferno", 0.6
#: boxes around query patches: a colour that the map of weights does not have
QUERY = "#00e5ff"
_LETTER = 0.063  # inches, the width of a letter of a note at most
_INK, _MUTED = COLOURS["ink"][0], COLOURS["muted"][0]
_RC: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlecolor": _INK,
    "axes.titlepad": 4,
    "axes.edgecolor": COLOURS["rule"][0],
    "axes.labelcolor": _MUTED,
    "axes.linewidth": 0.6,
    "xtick.color": COLOURS["rule"][0],
    "ytick.color": COLOURS["rule"][0],
    "xtick.labelcolor": _MUTED,
    "ytick.labelcolor": _MUTED,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "text.color": _INK,
}


class Sheet:
    """A figure of panels on a grid, all of one size, with room for a title of two lines over each.

    Args:
        rows: rows of panels.
        columns: columns of panels.
        width: of a panel, in inches.
        height: of a panel, in inches.
        left: room for labels on the left, in inches; default 0.12.
        right: room for labels on the right, in inches; default 0.
        title: room for the title over each panel, in inches; default 0.42.
        bottom: room for labels under each panel, in inches; default 0.
        note: at the foot of the figure, in as many lines as it takes.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        width: float,
        height: float,
        *,
        left: float = 0.12,
        right: float = 0.0,
        title: float = 0.42,
        bottom: float = 0.0,
        note: str = "",
    ) -> None:
        self._width, self._height, self._left, self._title, self._bottom = width, height, left, title, bottom
        whole = left + columns * (width + 0.12) + right
        lines = textwrap.wrap(note, int((whole - left) / _LETTER))
        foot = 0.1 + 0.14 * len(lines) + (0.1 if lines else 0)
        self._total = (whole, rows * (title + height + bottom) + foot)
        self.figure = Figure(figsize=self._total)
        if lines:
            self.figure.text(
                left / whole, 0.08 / self._total[1], "\n".join(lines), color=_MUTED, fontsize=7.5, va="bottom"
            )

    def panel(self, row: int, column: int, rows: int = 1, columns: int = 1) -> Axes:
        """Axes in a cell of the grid, or over several; a square picture is centred in them.

        Args:
            row: first row, from the top.
            column: first column.
            rows: how many rows.
            columns: how many columns.
        """
        pitch = self._title + self._height + self._bottom
        width = columns * self._width + (columns - 1) * 0.12
        height = rows * pitch - self._title - self._bottom
        x = self._left + column * (self._width + 0.12)
        y = self._total[1] - row * pitch - self._title - height
        return self.figure.add_axes(
            (x / self._total[0], y / self._total[1], width / self._total[0], height / self._total[1])
        )


@contextmanager
def sheet(rows: int, columns: int, width: float, height: float, **options: Any) -> Iterator[Sheet]:
    """A `Sheet` in the house style; draw inside the context."""
    with matplotlib.rc_context(_RC):
        yield Sheet(rows, columns, width, height, **options)


def number(value: float) -> str:
    """A weight or a bandwidth with two significant digits, or three from 100 on."""
    if value == 0:
        return "0"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.2g}" if value >= 1e-4 else f"{value:.0e}".replace("e-0", "e-").replace("-", "−")


def share(part: float) -> str:
    """A share of 1 in percent."""
    percent = 100 * part
    return f"{percent:.0f} %" if percent >= 9.95 else f"{number(percent)} %"


def limits(values: np.ndarray, leaving_out: int | None = None) -> tuple[float, float]:
    """Smallest and largest of some weights, which are the ends of a panel's colours.

    Args:
        values: weights, any shape.
        leaving_out: flat position of a value that does not count, such as the query's own; default none.
    """
    flat = values.ravel()
    if leaving_out is not None and flat.size > 1:
        flat = np.delete(flat, leaving_out)
    return float(flat.min()), float(flat.max())


def span(ends: tuple[float, float]) -> str:
    """Limits as they are written over a panel."""
    return f"{number(ends[0])} … {number(ends[1])}"


def scaled(values: np.ndarray, ends: tuple[float, float]) -> np.ndarray:
    """Weights on 0 … 1 between the limits, for the colour map."""
    low, high = ends
    return np.clip((values - low) / (high - low), 0, 1) if high > low else np.zeros_like(values)


def enlarged(values: np.ndarray, height: int, width: int) -> np.ndarray:
    """A patch grid at the size of an image, by bicubic interpolation (document D, section 7.8).

    Section 7.4 of the document says bilinear. Bicubic interpolation may go beyond the values that it joins;
    it is cut at their limits.

    Args:
        values: (rows, columns).
        height: of the result.
        width: of the result.
    """
    grid = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))[None, None]
    large = F.interpolate(grid, size=(height, width), mode="bicubic", align_corners=False)[0, 0]
    return large.clamp(float(grid.min()), float(grid.max())).numpy()


def colours(shares: np.ndarray) -> np.ndarray:
    """Shares 0 … 1 as colours of the map of weights, (..., 3)."""
    return matplotlib.colormaps[WEIGHTS](shares)[..., :3]


def bare(axes: Axes) -> None:
    """No ticks and no frame."""
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def readable_on(colour: np.ndarray) -> str:
    """Black or white, whichever stands out on a colour."""
    return "black" if float(np.dot(colour[:3], (0.299, 0.587, 0.114))) > 0.55 else "white"

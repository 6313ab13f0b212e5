"""The look of figures: one style for charts, one for maps of attention, and numbers as both write them."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nadaraya.report.palette import COLOURS, DASHED, STYLES, head_style

#: colour map of weights by themselves (Kundu et al. 2026, section 7.4)
WEIGHTS = "inferno"
#: opacity of the strongest weight over an image; that of the weakest is 0, so that the image stays visible
STRONGEST = 0.85
#: boxes around query tokens: a colour that the maps of weights do not have
QUERY = "#00a5c8"
_SHARES = np.linspace(0, 1, 256)[:, None]
#: colour map of weights over an image: inferno without its blacks, clear at the lower end
OVER_IMAGE = ListedColormap(
    np.hstack([matplotlib.colormaps[WEIGHTS](0.3 + 0.65 * _SHARES[:, 0])[:, :3], STRONGEST * _SHARES**0.8]),
    "over-image",
)


@contextmanager
def charts(width: int, height: int, columns: int = 1, **shared: Any) -> Iterator[tuple[Figure, Any]]:
    """A figure and its (1, columns) array of charts, each of a size in points (72 per inch); draw inside.

    `shared` are `sharex` and `sharey` of `Figure.subplots`.
    """
    with matplotlib.rc_context(STYLES["charts"]):
        figure = Figure(figsize=(width * columns / 72, height / 72), layout="constrained")
        yield figure, figure.subplots(1, columns, squeeze=False, **shared)


def label_axes(
    axes: Axes, title: str, xlabel: str, *, x: int = 5, y: int | None = None, integer: bool = False
) -> None:
    """A title, the name of the horizontal axis, and at most so many steps between ticks."""
    axes.set(title=title, xlabel=xlabel)
    axes.xaxis.set_major_locator(MaxNLocator(x, integer=integer))
    if y is not None:
        axes.yaxis.set_major_locator(MaxNLocator(y))


def draw_initial(axes: Axes, curves: np.ndarray, heads: Iterable[int], **options: Any) -> None:
    """(H, L) curves of heads before training, dashed; one of no head's colour where all are alike."""
    same = np.allclose(curves, curves[:1], equal_nan=True)
    for head, curve in zip(heads, curves[:1] if same else curves, strict=False):
        colour = COLOURS["muted"][0] if same else head_style(head).hex
        axes.plot(curve, color=colour, linewidth=1.1, linestyle=(0, DASHED), zorder=2, **options)


@contextmanager
def sheet(width: float, height: float, note: str = "", heading: str = "") -> Iterator[Figure]:
    """A figure of maps without axes yet, its size in inches, a note at its foot; draw inside the context."""
    with matplotlib.rc_context(STYLES["charts"] | STYLES["maps"]):
        figure = Figure(figsize=(width, height), layout="constrained")
        if heading:
            figure.suptitle(heading, x=0.01, ha="left", fontsize=10, fontweight="bold")
        if note:
            lines = textwrap.fill(note, int(17 * width))
            figure.supxlabel(lines, x=0.01, ha="left", fontsize=7.5, color=COLOURS["muted"][0])
        yield figure


def number(value: float) -> str:
    """A weight or a bandwidth with two significant digits, or three from 100 on."""
    if value == 0:
        return "0"
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.2g}" if value >= 1e-4 else f"{value:.0e}".replace("e-0", "e-").replace("-", "−")


def limits(weights: Sequence[np.ndarray], low: float = 1.0) -> Normalize:
    """The ends of the colours that several maps share: percentiles `low` and 99 of all their weights.

    A few extreme weights then have the end colours instead of setting them. `low` 0 stands for a weight of 0.
    """
    every = np.concatenate([part.ravel() for part in weights])
    bottom = float(np.percentile(every, low)) if low else 0.0
    top = float(np.percentile(every, 99))
    if top <= bottom:  # nearly all alike: the largest decides, then anything above
        top = max(float(every.max()), bottom * 1.05 + 1e-12)
    return Normalize(bottom, top, clip=True)


def span(weights: np.ndarray) -> str:
    """The smallest and the largest of some multiples of 1/N, as they are written over a panel."""
    return f"{number(float(weights.min()))} … {number(float(weights.max()))} × 1/N"


def readable_on(colour: np.ndarray) -> str:
    """Black or white, whichever stands out on a colour."""
    return "black" if float(np.dot(colour[:3], (0.299, 0.587, 0.114))) > 0.55 else "white"

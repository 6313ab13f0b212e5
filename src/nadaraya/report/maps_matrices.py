"""Figures of attention that are the same for images and texts: bandwidths, and matrices without diagonal."""

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from nadaraya.interpret.attention_maps import AttentionMaps
from nadaraya.interpret.rollout import thinned, without_diagonal
from nadaraya.report.figures import panels
from nadaraya.report.maps_style import WEIGHTS, bare, number, readable_on, sheet
from nadaraya.report.palette import head_style

BANDWIDTHS = "YlOrRd"  # the document's colour map of σ
MOST_TOKENS = 50
_NOTE = (
    "Colours: inferno, from 0 (black) to a panel's largest weight off the diagonal (yellow), written over it."
)
_MOST_TICKS = 10


def bandwidth_heatmap(sigma: np.ndarray) -> Figure:
    """σ of every head (row) and layer (column), values written in (document D, section 7.3).

    Args:
        sigma: (H, L), positive; NaN where there is none.

    Returns:
        The figure.
    """
    heads, layers = sigma.shape
    with sheet(1, 1, 0.62 * layers + 1.0, 0.42 * heads, left=0.6, right=0.3, title=0.4, bottom=0.45) as page:
        axes = page.panel(0, 0)
        low, high = float(np.nanmin(sigma)), float(np.nanmax(sigma))
        if high - low < 1e-6 * high:  # all alike: one colour, and a bar that still has two ends
            low, high = 0.95 * low, 1.05 * high
        image = axes.imshow(sigma, cmap=BANDWIDTHS, vmin=low, vmax=high, aspect="auto")
        for (head, layer), value in np.ndenumerate(sigma):
            there = np.isfinite(value)
            colour = readable_on(np.array(image.cmap(image.norm(value))) if there else np.ones(3))
            axes.text(layer, head, _value(value) if there else "–", color=colour, ha="center", va="center")
        axes.set_xticks(range(layers), [str(layer + 1) for layer in range(layers)])
        axes.set_yticks(range(heads), [str(head + 1) for head in range(heads)])
        axes.tick_params(length=0, labelsize=8)
        axes.set_xlabel("layer")
        axes.set_ylabel("head")
        axes.set_title("bandwidth σ, in the units of the features", loc="left")
        for spine in axes.spines.values():
            spine.set_visible(False)
        bar = page.figure.colorbar(image, ax=axes, pad=0.02, fraction=0.05)
        bar.outline.set_visible(False)
    return page.figure


def bandwidth_lines(sigma: np.ndarray) -> Figure:
    """σ of each head over the depth, a line a head, gaps where a layer has none (document D, section 7.3).

    Args:
        sigma: (H, L), positive; NaN where there is none.

    Returns:
        The figure.
    """
    heads, layers = sigma.shape
    with panels(520, 300) as (figure, axes):
        panel = axes[0, 0]
        for head, row in enumerate(sigma):
            style = head_style(head)
            dash = (0, style.dash) if style.dash else "solid"
            panel.plot(
                np.arange(1, layers + 1), row, color=style.hex, linestyle=dash, linewidth=1.6, marker="o",
                markersize=3.5, label=f"head {head + 1}",
            )  # fmt: skip
        panel.set_xlim(0.7, layers + 0.3)
        panel.set_ylim(0, 1.3 * float(np.nanmax(sigma)))
        panel.xaxis.set_major_locator(MaxNLocator(12, integer=True))
        panel.set_xlabel("layer")
        panel.set_title("bandwidth σ, in the units of the features")
        panel.legend(ncols=min(heads, 6), fontsize=8, loc="upper left", handlelength=1.6, columnspacing=1.0)
    return figure


def attention_matrix(
    maps: AttentionMaps, layer: int, head: int, labels: Callable[[np.ndarray], list[str]]
) -> Figure:
    """One head's attention matrix, diagonal set to zero, thinned to 50 tokens (document D, section 7.7).

    Args:
        maps: the first of the batch is drawn.
        layer: from 0.
        head: from 0.
        labels: names of the tokens at some positions.

    Returns:
        The figure, with a colour bar.
    """
    matrix, positions = _thin_matrix(maps, layer, head)
    with sheet(1, 1, 4.3, 3.6, left=0.8, right=0.5, title=0.35, bottom=0.8) as page:
        axes = page.panel(0, 0)
        image = _draw(axes, matrix)
        names = labels(positions)
        if max(map(len, names)) <= 2:  # characters: all of them fit, upright
            axes.set_xticks(range(len(names)), names, fontsize=5.5)
            axes.set_yticks(range(len(names)), names, fontsize=5.5)
            axes.tick_params(length=0)
        else:
            ticks = _ticks(len(names))
            axes.set_xticks(ticks, [names[tick] for tick in ticks], rotation=90)
            axes.set_yticks(ticks, [names[tick] for tick in ticks])
        axes.set_xlabel("key")
        axes.set_ylabel("query")
        axes.set_title(f"layer {layer + 1}, head {head + 1}: weights off the diagonal", loc="left")
        bar = page.figure.colorbar(image, ax=axes, pad=0.03, fraction=0.05)
        bar.outline.set_visible(False)
    return page.figure


def contact_sheet(maps: AttentionMaps) -> Figure:
    """All matrices of `attention_matrix` on one sheet: a row a head, a column a layer, as for σ.

    Args:
        maps: the first of the batch is drawn.

    Returns:
        The figure.
    """
    heads = max(weights.shape[1] for weights in maps.weights)
    with sheet(heads, len(maps.layers), 1.15, 1.15, left=0.6, title=0.3, note=_NOTE) as page:
        for layer, weights in enumerate(maps.weights):
            for head in range(weights.shape[1]):
                matrix, _ = _thin_matrix(maps, layer, head)
                axes = page.panel(head, layer)
                _draw(axes, matrix)
                bare(axes)
                largest = number(float(matrix.max()))
                axes.set_title(f"layer {layer + 1}: {largest}" if head == 0 else largest, fontsize=8)
                if layer == 0:
                    axes.set_ylabel(f"head {head + 1}", fontsize=8)
    return page.figure


def _thin_matrix(maps: AttentionMaps, layer: int, head: int) -> tuple[np.ndarray, np.ndarray]:
    matrix = without_diagonal(maps.weights[layer][0, head]).numpy()
    positions = thinned(len(matrix), MOST_TOKENS)
    return matrix[np.ix_(positions, positions)], positions


def _draw(axes: Axes, matrix: np.ndarray) -> AxesImage:
    largest = float(matrix.max()) or 1.0
    return axes.imshow(matrix, cmap=WEIGHTS, vmin=0, vmax=largest, interpolation="nearest")


def _ticks(count: int) -> list[int]:
    """Places of labels that do not touch: all of a short text, else some, evenly spread."""
    return thinned(count, count if count <= 2 * _MOST_TICKS else _MOST_TICKS).tolist()


def _value(sigma: float) -> str:
    return f"{sigma:.2f}" if 0.01 <= sigma < 100 else number(sigma)

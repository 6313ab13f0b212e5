"""Figures of attention that are the same for images and texts: bandwidths, and matrices without diagonal."""

from collections.abc import Callable
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from nadaraya.interpret.attention_maps import AttentionMaps
from nadaraya.interpret.rollout import thinned
from nadaraya.report.page import inline_svg, pixels
from nadaraya.report.palette import COLOURS, DASHED, head_style
from nadaraya.report.style import WEIGHTS, charts, label_axes, limits, number, readable_on, sheet, span

_NOTE = (
    "Weights off the diagonal as multiples of 1/N (1: as all tokens alike). Colours, shared by all: inferno, "
    "black at 0, yellow from {high} on (99th percentile). Over each: its largest."
)

_TICKS = FuncFormatter(lambda value, _: number(value))


def bandwidth_heatmap(sigma: np.ndarray, start: np.ndarray | None = None) -> Figure:
    """(H, L) σ of every head and layer, NaN where there is none (Kundu et al. 2026, section 7.3).

    Colours have the ends of the axis of `bandwidth_lines`, so that small differences look small.
    """
    heads, layers = sigma.shape
    with sheet(max(0.62 * layers + 1.8, 4.2), 0.42 * heads + 0.9) as figure:
        axes = figure.subplots()
        low, high = sigma_limits(sigma, start)
        # the paper's colour map
        image = axes.imshow(sigma, cmap="YlOrRd", norm=LogNorm(low, high), aspect="auto")
        for (head, layer), value in np.ndenumerate(sigma):
            there = np.isfinite(value)
            colour = readable_on(np.array(image.cmap(image.norm(value))) if there else np.ones(3))
            shown = f"{value:.2f}" if 0.01 <= value < 100 else number(value)
            axes.text(layer, head, shown if there else "–", color=colour, ha="center", va="center")
        axes.set(xticks=range(layers), yticks=range(heads), xlabel="layer", ylabel="head")
        axes.set_title("bandwidth σ, in the units of the features")
        axes.tick_params(length=0, labelsize=8)
        axes.spines[:].set_visible(False)
        bar = figure.colorbar(image, ticks=[low, (low * high) ** 0.5, high], format=_TICKS)
        bar.ax.minorticks_off()
        bar.outline.set_visible(False)
    return figure


def bandwidth_lines(sigma: np.ndarray, start: np.ndarray | None = None, legend: bool = True) -> Figure:
    """(H, L) σ over depth, one line per head, with gaps for NaN (Kundu et al. 2026, section 7.3).

    The axis is logarithmic, as σ is trained, and spans a factor of two at least. The σ before training,
    `start`, is dashed.
    """
    heads, layers = sigma.shape
    depth = np.arange(layers)
    with charts(460, 300) as (figure, ((axes,),)):
        if start is not None:
            same = bool((np.nanmax(start, axis=0) - np.nanmin(start, axis=0) < 1e-6).all())
            for head, row in enumerate(start[:1] if same else start):
                colour = COLOURS["muted"][0] if same else head_style(head).hex
                dashes = (0, DASHED)
                axes.plot(depth, row, color=colour, linestyle=dashes, linewidth=1.1, marker="_", markersize=9)
        for head, row in enumerate(sigma):
            style = head_style(head)
            options = {**style.line, "linewidth": 1.6, "marker": "o", "markersize": 3.5}
            axes.plot(depth, row, **options, label=f"head {head}")
        axes.set_xlim(-0.3, layers - 0.7)
        axes.set_yscale("log")
        axes.set_ylim(*sigma_limits(sigma, start))
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high > 8 * low else MaxNLocator(5))
        axes.yaxis.set_major_formatter(_TICKS)
        axes.yaxis.set_minor_locator(NullLocator())
        title = "bandwidth σ, in the units of the features" + (
            " (dashed: start)" if start is not None else ""
        )
        label_axes(axes, title, "layer", x=min(layers, 12), integer=True)
        if legend:
            axes.legend(
                ncols=min(heads, 6), fontsize=8, loc="upper left", handlelength=1.6, columnspacing=1.0
            )
    return figure


def bandwidth_panel(
    sigma: np.ndarray, start: np.ndarray | None, name: str, of: str = ""
) -> tuple[Markup, list[str]]:
    """`bandwidth_lines` for a page, and the colours of the heads."""
    figure = bandwidth_lines(sigma, start, legend=False)
    drawn = inline_svg(figure, name, f"Bandwidths{of} over the layers, one line per head.")
    return drawn, [head_style(head).colour for head in range(len(sigma))]


def sigma_limits(sigma: np.ndarray, start: np.ndarray | None = None) -> tuple[float, float]:
    """The ends of an axis of bandwidths: all of them and their start, and a factor of two at least."""
    every = sigma if start is None else np.concatenate([sigma, start])
    low, high = np.log(np.nanmin(every)), np.log(np.nanmax(every))
    margin = max(0.12 * (high - low), (np.log(2) - (high - low)) / 2)
    return float(np.exp(low - margin)), float(np.exp(high + margin))


class Matrices:
    """The matrices of all heads with zeros on the diagonal, at most 50 tokens of each, as multiples of 1/N.

    As in Kundu et al. (2026), section 7.7. Layers and rows, the places of heads in them, count from 0.

    Attributes:
        ends: of the colours that all share: 0 and the 99th percentile.
    """

    def __init__(self, maps: AttentionMaps) -> None:
        self.maps = maps
        self.positions = thinned(maps.num_tokens)
        at = np.ix_(self.positions, self.positions)
        off_diagonal = 1 - np.eye(len(self.positions))
        self._thin = [
            [(head.numpy() * maps.num_tokens)[at] * off_diagonal for head in weights[0]]
            for weights in maps.weights
        ]
        self.ends = limits([matrix for layer in self._thin for matrix in layer], low=0)

    def figure(self, layer: int, row: int, labels: Callable[[np.ndarray], list[str]]) -> Figure:
        """The matrix of one head; `labels` names the tokens at some positions."""
        with sheet(5.4, 4.4) as figure:
            axes = figure.subplots()
            image = axes.imshow(self._thin[layer][row], cmap=WEIGHTS, norm=self.ends, interpolation="nearest")
            names = labels(self.positions)
            if max(map(len, names)) <= 2:  # characters: all of them fit, upright
                axes.set_xticks(range(len(names)), names, fontsize=5.5)
                axes.set_yticks(range(len(names)), names, fontsize=5.5)
                axes.tick_params(length=0)
            else:
                ticks = thinned(len(names), len(names) if len(names) <= 20 else 10).tolist()
                axes.set_xticks(ticks, [names[tick] for tick in ticks], rotation=90)
                axes.set_yticks(ticks, [names[tick] for tick in ticks])
            axes.set(xlabel="key", ylabel="query")
            axes.set_title(f"{self.maps.labels(layer)[row]}: weights off the diagonal × N")
            figure.colorbar(image, extend="max").outline.set_visible(False)
        return figure

    def contact_sheet(self) -> Figure:
        """All matrices on one sheet: one row per head, one column per layer."""
        heads = [layer.heads for layer in self.maps.layers]
        rows = 1 + max(map(max, heads))
        note = _NOTE.format(high=number(self.ends.vmax or 0))
        with sheet(1.3 * len(heads) + 0.7, 1.5 * rows + 0.8, note) as figure:
            axes = figure.subplots()
            for layer, there in enumerate(heads):
                for head, matrix in zip(there, self._thin[layer], strict=True):
                    place = (layer - 0.46, layer + 0.46, head + 0.46, head - 0.36)
                    axes.imshow(matrix, cmap=WEIGHTS, norm=self.ends, extent=place, interpolation="nearest")
                    largest = number(float(matrix.max()))
                    axes.text(layer, head - 0.38, largest, fontsize=8, ha="center", va="bottom")
            axes.spines[:].set_visible(False)
            axes.set_xticks(range(len(heads)), [f"layer {layer}" for layer in range(len(heads))], fontsize=8)
            axes.set_yticks(range(rows), [f"head {head}" for head in range(rows)], fontsize=8)
            axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
            axes.set(xlim=(-0.5, len(heads) - 0.5), ylim=(rows - 0.5, -0.56), aspect="auto")
        return figure

    def tiles(self, layer: int) -> list[dict[str, Any]]:
        """The matrices of a layer as the page shows them."""
        return [
            {"title": label, "span": span(matrix), "plain": pixels(matrix, self.ends)}
            for label, matrix in zip(self.maps.labels(layer), self._thin[layer], strict=True)
        ]

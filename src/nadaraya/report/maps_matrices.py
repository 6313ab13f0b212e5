"""Figures of attention that are the same for images and texts: bandwidths, and matrices without diagonal."""

from collections.abc import Callable

import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from nadaraya.interpret.attention_maps import AttentionMaps
from nadaraya.interpret.rollout import thinned, without_diagonal
from nadaraya.report.palette import COLOURS, DASHED, head_style
from nadaraya.report.style import WEIGHTS, charts, limits, number, readable_on, sheet

_NOTE = (
    "Weights off the diagonal as multiples of 1/N (1: as all tokens alike). Colours, shared by all: inferno, "
    "black at 0, yellow from {high} on (99th percentile). Over each: its largest."
)


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
            axes.text(layer, head, _value(value) if there else "–", color=colour, ha="center", va="center")
        axes.set_xticks(range(layers), map(str, range(layers)))
        axes.set_yticks(range(heads), map(str, range(heads)))
        axes.tick_params(length=0, labelsize=8)
        axes.set_xlabel("layer")
        axes.set_ylabel("head")
        axes.set_title("bandwidth σ, in the units of the features")
        axes.spines[:].set_visible(False)
        bar = figure.colorbar(image, ticks=[low, (low * high) ** 0.5, high], format=_ticks())
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
        axes.yaxis.set_major_formatter(_ticks())
        axes.yaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_locator(MaxNLocator(min(layers, 12), integer=True))
        axes.set_xlabel("layer")
        axes.set_title(
            "bandwidth σ, in the units of the features" + (" (dashed: start)" * (start is not None))
        )
        if legend:
            axes.legend(
                ncols=min(heads, 6), fontsize=8, loc="upper left", handlelength=1.6, columnspacing=1.0
            )
    return figure


def sigma_limits(sigma: np.ndarray, start: np.ndarray | None = None) -> tuple[float, float]:
    """The ends of an axis of bandwidths: all of them and their start, and a factor of two at least."""
    every = sigma if start is None else np.concatenate([sigma, start])
    low, high = np.log(np.nanmin(every)), np.log(np.nanmax(every))
    margin = max(0.12 * (high - low), (np.log(2) - (high - low)) / 2)
    return float(np.exp(low - margin)), float(np.exp(high + margin))


def attention_matrix(
    maps: AttentionMaps, layer: int, row: int, labels: Callable[[np.ndarray], list[str]], ends: Normalize
) -> Figure:
    """The matrix of one head, diagonal set to zero, at most 50 tokens (Kundu et al. 2026, section 7.7).

    Layer and row, the head's place in it, are counted from 0; `labels` names the tokens at some positions;
    `ends` of the colours are those of `matrix_scale`.
    """
    matrix, positions = thin_matrix(maps, layer, row)
    with sheet(5.4, 4.4) as figure:
        axes = figure.subplots()
        image = axes.imshow(matrix, cmap=WEIGHTS, norm=ends, interpolation="nearest")
        names = labels(positions)
        if max(map(len, names)) <= 2:  # characters: all of them fit, upright
            axes.set_xticks(range(len(names)), names, fontsize=5.5)
            axes.set_yticks(range(len(names)), names, fontsize=5.5)
            axes.tick_params(length=0)
        else:
            ticks = thinned(len(names), len(names) if len(names) <= 20 else 10).tolist()
            axes.set_xticks(ticks, [names[tick] for tick in ticks], rotation=90)
            axes.set_yticks(ticks, [names[tick] for tick in ticks])
        axes.set_xlabel("key")
        axes.set_ylabel("query")
        axes.set_title(f"{maps.labels(layer)[row]}: weights off the diagonal × N")
        figure.colorbar(image, extend="max").outline.set_visible(False)
    return figure


def contact_sheet(maps: AttentionMaps, ends: Normalize) -> Figure:
    """All matrices of `attention_matrix` on one sheet: one row per head, one column per layer."""
    heads = [layer.heads for layer in maps.layers]
    rows = 1 + max(map(max, heads))
    note = _NOTE.format(high=number(ends.vmax or 0))
    with sheet(1.3 * len(heads) + 0.7, 1.5 * rows + 0.8, note) as figure:
        axes = figure.subplots()
        for layer, there in enumerate(heads):
            for row, head in enumerate(there):
                matrix, _ = thin_matrix(maps, layer, row)
                tile = (layer - 0.46, layer + 0.46, head + 0.46, head - 0.36)
                axes.imshow(matrix, cmap=WEIGHTS, norm=ends, extent=tile, interpolation="nearest")
                largest = number(float(matrix.max()))
                axes.text(layer, head - 0.38, largest, fontsize=8, ha="center", va="bottom")
        axes.spines[:].set_visible(False)
        axes.set_xticks(range(len(heads)), [f"layer {layer}" for layer in range(len(heads))], fontsize=8)
        axes.set_yticks(range(rows), [f"head {head}" for head in range(rows)], fontsize=8)
        axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
        axes.set_xlim(-0.5, len(heads) - 0.5)
        axes.set_ylim(rows - 0.5, -0.56)
        axes.set_aspect("auto")
    return figure


def thin_matrix(maps: AttentionMaps, layer: int, row: int) -> tuple[np.ndarray, np.ndarray]:
    """At most 50 × 50 multiples of 1/N with zeros on the diagonal, and the positions of their tokens."""
    matrix = without_diagonal(maps.weights[layer][0, row]).numpy() * maps.num_tokens
    positions = thinned(len(matrix))
    return matrix[np.ix_(positions, positions)], positions


def matrix_scale(maps: AttentionMaps) -> Normalize:
    """The ends of the colours that the matrices of all heads and layers share: 0 and the 99th percentile."""
    pairs = [(layer, row) for layer, each in enumerate(maps.weights) for row in range(each.shape[1])]
    return limits([thin_matrix(maps, *pair)[0] for pair in pairs], low=0)


def _ticks() -> FuncFormatter:
    return FuncFormatter(lambda value, _: number(value))


def _value(sigma: float) -> str:
    return f"{sigma:.2f}" if 0.01 <= sigma < 100 else number(sigma)

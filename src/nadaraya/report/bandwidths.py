"""Figures of bandwidths: every head of every layer as a table, and as lines over the layers."""

import numpy as np
from markupsafe import Markup
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from nadaraya.report.page import inline_svg
from nadaraya.report.palette import head_style
from nadaraya.report.style import charts, draw_initial, label_axes, number, readable_on, sheet

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
    with charts(460, 300) as (figure, ((axes,),)):
        if start is not None:
            draw_initial(axes, start, range(heads), marker="_", markersize=9)
        for head, row in enumerate(sigma):
            style = head_style(head)
            options = {**style.line, "linewidth": 1.6, "marker": "o", "markersize": 3.5}
            axes.plot(row, **options, label=f"head {head}")
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


def bandwidth_panel(sigma: np.ndarray, start: np.ndarray | None, name: str, of: str = "") -> Markup:
    """`bandwidth_lines` for a page, which has the legend."""
    figure = bandwidth_lines(sigma, start, legend=False)
    return inline_svg(figure, name, f"Bandwidths{of} over the layers, one line per head.")


def sigma_limits(sigma: np.ndarray, start: np.ndarray | None = None) -> tuple[float, float]:
    """The ends of an axis of bandwidths: all of them and their start, and a factor of two at least."""
    every = sigma if start is None else np.concatenate([sigma, start])
    low, high = np.log(np.nanmin(every)), np.log(np.nanmax(every))
    margin = max(0.12 * (high - low), (np.log(2) - (high - low)) / 2)
    return float(np.exp(low - margin)), float(np.exp(high + margin))

"""The figures of a study: loss against compute, the share of compute of every variant, gaps over horizons."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nadaraya.report.palette import COLOURS, Style, variant_styles
from nadaraya.report.style import charts
from nadaraya.study.fit import fit_power_law
from nadaraya.study.summary import Summary


def draw(summary: Summary) -> Figure:
    """Two charts: a dot per run and a line per law; shares at every size with their intervals.

    Args:
        summary: of the study.

    Returns:
        A matplotlib figure.
    """
    names = list(summary.cells)
    styles = dict(zip(names, variant_styles(names), strict=True))
    with charts(520, max(300, 22 * len(names) + 90), columns=2) as (figure, axes):
        _losses(axes[0, 0], summary, styles)
        _shares(axes[0, 1], summary, styles)
    return figure


def draw_gaps(summary: Summary) -> Figure:
    """The gap to the baseline at the end of every horizon, and inside the longest runs, against updates.

    Bars and bands are intervals of 95 % over seeds; what has one seed has none. Variants that are worse by
    more than any is better leave the charts, so that the others can be told apart.

    Args:
        summary: of a study of horizons.

    Returns:
        A matplotlib figure.
    """
    styles = dict(zip(summary.cells, variant_styles(summary.cells), strict=True))
    with charts(460, 330, columns=2, sharey=True) as (figure, (axes,)):
        for variant, found in summary.gaps.items():
            style = styles[variant]
            updates = [size.updates for size in found.sizes]
            axes[0].plot(updates, [size.gap.value for size in found.sizes], label=variant, **style.line)
            for size in found.sizes:
                axes[0].plot(size.updates, size.gap.value, "o", color=style.hex, markersize=4)
                if size.gap.low is not None:
                    ends = [size.gap.low, size.gap.high]
                    axes[0].plot([size.updates] * 2, ends, color=style.hex, alpha=0.5)
            for curve in found.curves:
                steps, values = curve.updates, [gap.value for gap in curve.gaps]
                axes[1].plot(steps, values, linewidth=1.4 if len(curve.seeds) > 1 else 0.8, **style.line)
                if len(curve.seeds) > 1:
                    low, high = [gap.low for gap in curve.gaps], [gap.high for gap in curve.gaps]
                    axes[1].fill_between(steps, low, high, color=style.hex, alpha=0.15, linewidth=0)
        reached = [size.gap.value for found in summary.gaps.values() for size in found.sizes]
        best = -min(reached)
        if best > 0:
            axes[0].set_ylim(-1.3 * best, 0.1 * best + 1.3 * min(max(*reached, 0.0), best))
        titles = ("at the end of runs of each length", "inside the longest runs; thin: one seed")
        for chart, title in zip(axes, titles, strict=True):
            chart.axhline(0.0, color=COLOURS["muted"][0], linewidth=0.8)
            chart.set_xscale("log")
            chart.set_xlabel("updates")
            chart.set_title(f"gap to {summary.baseline}, nats/token, {title}", fontsize=9)
        axes[0].legend(fontsize=8)
    return figure


def _losses(axes: Axes, summary: Summary, styles: dict[str, Style]) -> None:
    for variant, row in summary.cells.items():
        style = styles[variant]
        compute = [cell.compute for cell in row]
        for cell in row:
            axes.plot([cell.compute] * len(cell.losses), cell.losses, "o", color=style.hex, markersize=3)
        if len(set(compute)) > 1:
            law = fit_power_law(compute, [cell.loss for cell in row])
            along = np.geomspace(min(compute), max(compute), 50)
            axes.plot(along, [law(each) for each in along], label=variant, linewidth=1.3, **style.line)
        else:
            axes.plot([], [], label=variant, **style.line)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for every in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        every("{x:g}")
    axes.set_xlabel(summary.axis)
    axes.set_title("validation loss, nats/token")
    axes.legend(fontsize=8)


def _shares(axes: Axes, summary: Summary, styles: dict[str, Style]) -> None:
    """One row for each variant: a dot per size, small to large, and a bar for the mean's interval."""
    shown = [(name, found) for name, found in summary.comparisons.items() if found.share]
    for place, (name, found) in enumerate(shown):
        assert found.share is not None
        assert found.mean_share is not None
        for size, share in enumerate(found.share):
            axes.plot(share.value, place, "o", color=styles[name].hex, markersize=3 + 1.5 * size)
        if found.mean_share.low is not None and found.mean_share.high is not None:
            ends = [found.mean_share.low, found.mean_share.high]
            axes.plot(ends, [place, place], color=styles[name].hex, linewidth=5, alpha=0.25)
    axes.axvline(1.0, color=COLOURS["muted"][0], linewidth=0.8)
    axes.set_yticks(range(len(shown)), [name for name, _ in shown])
    axes.invert_yaxis()
    axes.set_xlabel(
        f"share of the {summary.axis} of {summary.baseline} for its loss, larger dots larger sizes"
    )
    axes.set_title("under 1: less is needed; bar: 95 % of the mean over sizes")

"""The figures of a study: losses beside the baseline's, shares of compute, gaps over horizons."""

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nadaraya.report.palette import COLOURS, variant_styles
from nadaraya.report.style import charts
from nadaraya.study.summary import Summary

# Variants that the chart of losses tells apart; more lines than these cannot be.
_NAMED = 8


def draw(summary: Summary) -> Figure:
    """Two charts: how far the loss of the best variants is from the baseline's; shares of compute of all.

    Bars are intervals of 95 % over seeds. The first chart names the eight variants with the least compute for
    the baseline's loss, the others are grey, and reach beyond it where they are worse.

    Args:
        summary: of the study.

    Returns:
        A matplotlib figure.
    """
    ranked = summary.ranked()
    with charts(520, max(300, 20 * len(ranked) + 90), columns=2) as (figure, axes):
        _losses(axes[0, 0], summary, ranked)
        _shares(axes[0, 1], summary, [name for name in ranked if summary.comparisons[name].share])
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


def _losses(axes: Axes, summary: Summary, ranked: list[str]) -> None:
    """The excess of loss over the baseline's mean, against compute; the baseline's runs are dots."""
    base = {cell.size: cell for cell in summary.cells.get(summary.baseline, [])}
    styles = dict(zip(summary.cells, variant_styles(summary.cells), strict=True))
    for cell in base.values():
        excess = [loss - cell.loss for loss in cell.losses]
        axes.plot([cell.compute] * len(excess), excess, "o", color=COLOURS["muted"][0], markersize=3)
    shown: list[float] = []
    for place, variant in enumerate(ranked):
        found = summary.comparisons[variant].difference
        compute = [base[size].compute for size in summary.shared(variant)]
        named = place < _NAMED
        style = styles[variant].line if named else {"color": COLOURS["rule"][0], "zorder": 1}
        line = axes.plot(compute, [each.value for each in found], label=variant if named else None, **style)
        if named:
            axes.plot(compute, [each.value for each in found], "o", color=line[0].get_color(), markersize=2)
        for at, each in zip(compute, found, strict=True):
            if named and each.low is not None and each.high is not None:
                axes.plot([at, at], [each.low, each.high], color=line[0].get_color(), alpha=0.35)
                shown += [each.low, each.high]
        shown += [each.value for each in found] if named else []
    if shown:
        margin = 0.08 * (max(*shown, 0.0) - min(*shown, 0.0))
        axes.set_ylim(min(*shown, 0.0) - margin, max(*shown, 0.0) + margin)
    axes.axhline(0.0, color=COLOURS["muted"][0], linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel(summary.axis)
    axes.set_title(f"validation loss minus that of {summary.baseline} (dots: its seeds), nats/token")
    if ranked:
        axes.legend(fontsize=8)


def _shares(axes: Axes, summary: Summary, ranked: list[str]) -> None:
    """One row for each variant: a dot per size, pale to dark, and a bar for the mean's interval."""
    sizes = [cell.size for cell in summary.cells.get(summary.baseline, [])]
    tones = dict(zip(sizes, matplotlib.colormaps["Blues"](np.linspace(0.4, 1.0, len(sizes))), strict=True))
    for place, name in enumerate(ranked):
        found = summary.comparisons[name]
        assert found.share is not None
        assert found.mean_share is not None
        if found.mean_share.low is not None and found.mean_share.high is not None:
            ends = [found.mean_share.low, found.mean_share.high]
            axes.plot(ends, [place, place], color=COLOURS["rule"][0], linewidth=6)
        for size, share in zip(summary.shared(name), found.share, strict=True):
            axes.plot(share.value, place, "o", color=tones[size], markersize=5)
    for size, tone in tones.items():
        axes.plot([], [], "o", color=tone, markersize=5, label=size)
    axes.axvline(1.0, color=COLOURS["muted"][0], linewidth=0.8)
    axes.set_xscale("log")
    for every in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        every("{x:g}")
    axes.set_yticks(range(len(ranked)), ranked)
    axes.invert_yaxis()
    axes.set_xlabel(f"share of the {summary.axis} of {summary.baseline} for its loss")
    axes.set_title("under 1: less is needed; bar: 95 % of the mean over sizes")
    if ranked:
        axes.legend(fontsize=8)

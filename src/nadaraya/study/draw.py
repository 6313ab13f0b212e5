"""The summary of a study in files; charts of losses, of shares of compute, of gaps over horizons."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nadaraya.files import write_file
from nadaraya.report import write_figure
from nadaraya.report.palette import COLOURS, variant_styles
from nadaraya.report.style import charts
from nadaraya.study.file import Study
from nadaraya.study.results import SUMMARY_FILE, read_results
from nadaraya.study.summary import Summary, summarise

# Variants that the charts of losses and of gaps name; more lines could not be distinguished.
_NAMED = 8
_NAMED_GAPS = 10
_BANDS = 3  # more of them hide the lines
_GREY: dict[str, Any] = {"color": COLOURS["rule"][0], "zorder": 1}
_REFERENCE: dict[str, Any] = {"color": COLOURS["muted"][0], "linewidth": 0.8}


def write_summary(study: Study, folder: Path) -> Summary:
    """Write summary.md, curves.png and, of horizons, gaps.png of a study's folder anew, from results.json."""
    results = read_results(folder)
    warnings = "".join(f"- {warning}\n" for warning in results.get("warnings", ()))
    summary = summarise(study, results, folder)
    write_file(folder / SUMMARY_FILE, summary.markdown() + (warnings and f"\nWarnings:\n\n{warnings}"))
    if summary.cells:
        write_figure(draw(summary), folder / "curves.png")
    if summary.gaps:
        write_figure(draw_gaps(summary), folder / "gaps.png")
    return summary


def draw(summary: Summary) -> Figure:
    """Two charts: how far the loss of the best variants is from the baseline's; shares of compute of all.

    Bars are intervals of 95 % over seeds. The first chart names the eight variants with the least compute for
    the baseline's loss, the others are grey, and reach beyond it where they are worse.
    """
    ranked = summary.ranked()
    with charts(520, max(300, 20 * len(ranked) + 90), columns=2) as (figure, axes):
        _losses(axes[0, 0], summary, ranked)
        _shares(axes[0, 1], summary, [name for name in ranked if summary.comparisons[name].share])
    return figure


def draw_gaps(summary: Summary) -> Figure:
    """Two charts: the gap of every variant to the baseline at every horizon; gaps inside the longest runs.

    Bars and bands are intervals of 95 % over seeds; what has one seed has none. The first chart has the
    variants by their gap at the longest horizon that has an interval. The second names the ten best of them,
    three with their bands; the others are grey. What is worse by more than any is better leaves the charts,
    so that the rest can be distinguished.
    """
    ranked = sorted(summary.gaps, key=lambda variant: summary.gaps[variant].longest.gap.value)
    reached = [size.gap.value for found in summary.gaps.values() for size in found.sizes]
    best = -min(reached)
    limits = (-1.3 * best, 0.1 * best + 1.3 * min(max(*reached, 0.0), best)) if best > 0 else None
    with charts(460, max(330, 18 * len(ranked) + 90), columns=2) as (figure, (axes,)):
        _horizons(axes[0], summary, ranked)
        _inside(axes[1], summary, ranked)
        for set_limits in (axes[0].set_xlim, axes[1].set_ylim):
            set_limits(limits)
    return figure


def _horizons(axes: Axes, summary: Summary, ranked: list[str]) -> None:
    """One row for each variant: a dot per horizon, from above, with its interval."""
    updates = {size.size: size.updates for found in summary.gaps.values() for size in found.sizes}
    sizes = sorted(updates, key=lambda size: updates[size])
    tones = _rows(axes, ranked, {size: f"{updates[size]:,} updates" for size in sizes}, 4)
    for index, variant in enumerate(ranked):
        for size in summary.gaps[variant].sizes:
            row = index + 0.5 * (sizes.index(size.size) + 0.5) / len(sizes) - 0.25
            axes.plot(size.gap.value, row, "o", color=tones[size.size], markersize=4)
            if size.gap.interval:
                axes.plot(size.gap.interval, [row, row], color=tones[size.size], alpha=0.6)
    axes.axvline(0.0, **_REFERENCE)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel(f"loss minus that of {summary.baseline}, nats/token")
    axes.set_title("at the end of runs of each length; bar: 95 %", fontsize=9)
    axes.legend(fontsize=8)


def _inside(axes: Axes, summary: Summary, ranked: list[str]) -> None:
    """The gap at every validation of the longest runs; the best variants by name."""
    named = ranked[:_NAMED_GAPS]
    styles = dict(zip([summary.baseline, *named], variant_styles([summary.baseline, *named]), strict=True))
    for variant in ranked:
        line, label = (styles[variant].line, variant) if variant in named else (_GREY, None)
        for curve in summary.gaps[variant].curves:
            several = len(curve.seeds) > 1
            values = [gap.value for gap in curve.gaps]
            axes.plot(curve.updates, values, linewidth=1.4 if several else 0.8, label=label, **line)
            label = None
            if several and variant in named[:_BANDS]:
                low, high = zip(*(gap.interval or () for gap in curve.gaps), strict=True)
                axes.fill_between(curve.updates, low, high, color=line["color"], alpha=0.12, linewidth=0)
    axes.axhline(0.0, **_REFERENCE)
    axes.set(xscale="log", xlabel="updates")
    axes.xaxis.set_minor_formatter("")
    axes.set_title("inside the longest runs; band: 95 %, of three; thin: one seed", fontsize=9)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=4)


def _rows(axes: Axes, ranked: list[str], labels: dict[str, str], size: int) -> dict[str, Any]:
    """Name the rows of a chart by variants, from above, and its dots by their labels: blues, pale to dark."""
    tones = matplotlib.colormaps["Blues"](np.linspace(0.4, 1.0, len(labels)))
    for tone, label in zip(tones, labels.values(), strict=True):
        axes.plot([], [], "o", color=tone, markersize=size, label=label)
    axes.set_yticks(range(len(ranked)), ranked)
    axes.invert_yaxis()
    return dict(zip(labels, tones, strict=True))


def _losses(axes: Axes, summary: Summary, ranked: list[str]) -> None:
    """The excess of loss over the baseline's mean, against compute; the baseline's runs are dots."""
    base = {cell.size: cell for cell in summary.cells.get(summary.baseline, [])}
    styles = dict(zip(summary.cells, variant_styles(summary.cells), strict=True))
    for cell in base.values():
        excess = [loss - cell.loss for loss in cell.losses]
        axes.plot([cell.compute] * len(excess), excess, "o", color=COLOURS["muted"][0], markersize=3)
    shown: list[float] = []
    for index, variant in enumerate(ranked):
        found = summary.comparisons[variant].difference
        compute = [base[size].compute for size in summary.shared(variant)]
        values = [each.value for each in found]
        if index >= _NAMED:
            axes.plot(compute, values, **_GREY)
            continue
        (line,) = axes.plot(compute, values, label=variant, **styles[variant].line)
        axes.plot(compute, values, "o", color=line.get_color(), markersize=2)
        for at, each in zip(compute, found, strict=True):
            if each.interval:
                axes.plot([at, at], each.interval, color=line.get_color(), alpha=0.35)
            shown += [each.value, *(each.interval or ())]
    if shown:
        margin = 0.08 * (max(*shown, 0.0) - min(*shown, 0.0))
        axes.set_ylim(min(*shown, 0.0) - margin, max(*shown, 0.0) + margin)
    axes.axhline(0.0, **_REFERENCE)
    axes.set(xscale="log", xlabel=summary.axis)
    axes.set_title(f"validation loss minus that of {summary.baseline} (dots: its seeds), nats/token")
    if ranked:
        axes.legend(fontsize=8)


def _shares(axes: Axes, summary: Summary, ranked: list[str]) -> None:
    """One row for each variant: a dot per size, and a bar for the mean's interval."""
    sizes = [cell.size for cell in summary.cells.get(summary.baseline, [])]
    tones = _rows(axes, ranked, {size: size for size in sizes}, 5)
    for index, name in enumerate(ranked):
        found = summary.comparisons[name]
        if found.mean_share and found.mean_share.interval:
            axes.plot(found.mean_share.interval, [index, index], color=COLOURS["rule"][0], linewidth=6)
        for size, share in zip(summary.shared(name), found.share or (), strict=True):
            axes.plot(share.value, index, "o", color=tones[size], markersize=5)
    axes.axvline(1.0, **_REFERENCE)
    axes.set(xscale="log", xlabel=f"share of the {summary.axis} of {summary.baseline} for its loss")
    for every in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
        every("{x:g}")
    axes.set_title("under 1: less is needed; bar: 95 % of the mean over sizes")
    if ranked:
        axes.legend(fontsize=8)

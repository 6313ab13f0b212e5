"""Charts of what attention reads: the share of its weight by lag, and the reach of every head."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from nadaraya.interpret.reach import LagWeights
from nadaraya.report.by_lag import scale_lags
from nadaraya.report.page import inline_svg
from nadaraya.report.palette import head_style
from nadaraya.report.runs import RunData
from nadaraya.report.style import charts, label_axes


def draw_within(axes: Axes, lines: Iterable[tuple[np.ndarray, dict[str, Any]]], title: str, lag: str) -> None:
    """(L,) shares of the weight within each lag, in %, with matplotlib's keywords of each line."""
    longest = 1
    for share, options in lines:
        axes.plot(100 * share, linewidth=1.6, **options)
        longest = max(longest, len(share) - 1)
    label_axes(axes, title, lag)
    axes.set(ylim=(0, 104), yticks=(0, 25, 50, 75, 90, 100))
    scale_lags(axes, longest)


def draw_reach(axes: Axes, layers: Sequence[LagWeights], lag: str) -> None:
    """The lags within which 50 % and 90 % of the weight of each head lie, over the layers."""
    heads = 1 + max(max(layer.heads) for layer in layers)
    for layer in layers:
        for head, half, most in zip(layer.heads, layer.reach(0.5), layer.reach(0.9), strict=True):
            place = layer.layer + 0.8 * ((head + 0.5) / heads - 0.5)
            style = {"color": head_style(head).hex, "clip_on": False}
            axes.plot([place, place], [half, most], linewidth=min(2.5, 16 / heads), **style)
            axes.plot(place, half, marker="o", markersize=min(5.0, 40 / heads), **style)
            axes.plot(place, most, marker="_", markersize=min(7.0, 60 / heads), markeredgewidth=2, **style)
    label_axes(axes, f"{lag}: 50 % of the weight (dot) to 90 % (bar)", "layer", x=12, integer=True)
    axes.set_xlim(layers[0].layer - 0.5, layers[-1].layer + 0.5)
    scale_lags(axes, layers[0].within.shape[1] - 1, "y")


def reach_part(runs: Sequence[RunData], name: str, lag: str) -> dict[str, Any]:
    """The charts of the runs that were read, for the macro `reach` of the templates."""
    read = [run for run in runs if run.reads]
    if not read:
        return {}
    means = [np.concatenate([layer.within for layer in run.reads]).mean(axis=0) for run in read]
    with charts(460, 300) as (figure, axes):
        lines = [(mean, run.style.line) for run, mean in zip(read, means, strict=True)]
        draw_within(axes[0, 0], lines, f"share of the weight within a {lag.split(',')[0]}, %", lag)
    found = []
    for number, run in enumerate(read):
        with charts(460, 300) as (chart, axes):
            draw_reach(axes[0, 0], run.reads, lag)
        drawn = inline_svg(chart, f"{name}-reach-{number}", f"Reach of the heads of {run.label} by layer.")
        by_layer = []
        for layer in run.reads:
            title = f"layer {layer.layer}: share of the weight within, %"
            lines = [
                (within, head_style(head).line)
                for head, within in zip(layer.heads, layer.within, strict=True)
            ]
            with charts(270, 205) as (chart, axes):
                draw_within(axes[0, 0], lines, title, lag)
            by_layer.append(inline_svg(chart, f"{name}-{number}-{layer.layer}", f"{run.label}, {title}"))
        found.append({"run": run, "reach": drawn, "by_layer": by_layer})
    heads = 1 + max(head for run in read for layer in run.reads for head in layer.heads)
    words = f"Share of the weight by {lag}, mean over the heads of each run."
    return {"mean": inline_svg(figure, f"{name}-mean", words), "runs": found, "heads": range(heads)}

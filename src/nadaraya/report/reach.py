"""Charts of what attention reads: the share of its weight by lag, and the reach of every head."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from nadaraya.interpret.reach import LagWeights
from nadaraya.report.by_lag import scale_lags
from nadaraya.report.page import inline_svg
from nadaraya.report.palette import head_style
from nadaraya.report.runs import RunData
from nadaraya.report.style import charts, label_axes


def draw_reach(axes: Axes, layers: Sequence[LagWeights], lag: str) -> None:
    """The lags within which 50 % and 90 % of the weight of each head lie, over the layers."""
    heads = 1 + max(max(layer.heads) for layer in layers)
    for layer in layers:
        for head, half, most in zip(layer.heads, layer.reach(0.5), layer.reach(0.9), strict=True):
            place = layer.layer + 0.8 * ((head + 0.5) / heads - 0.5)
            style: dict[str, Any] = {"color": head_style(head).hex, "clip_on": False}
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
        for run, mean in zip(read, means, strict=True):
            axes[0, 0].plot(100 * mean, linewidth=1.6, **run.style.line)
        label_axes(axes[0, 0], f"share of the weight within a {lag.split(',')[0]}, %", lag)
        axes[0, 0].set(ylim=(0, 104), yticks=(0, 25, 50, 75, 90, 100))
        scale_lags(axes[0, 0], max(map(len, means)) - 1)
    found = []
    for number, run in enumerate(read):
        with charts(460, 300) as (chart, axes):
            draw_reach(axes[0, 0], run.reads, lag)
        drawn = inline_svg(chart, f"{name}-reach-{number}", f"Reach of the heads of {run.label} by layer.")
        found.append({"run": run, "reach": drawn})
    heads = 1 + max(head for run in read for layer in run.reads for head in layer.heads)
    words = f"Share of the weight by {lag}, mean over the heads of each run."
    return {"mean": inline_svg(figure, f"{name}-mean", words), "runs": found, "heads": range(heads)}

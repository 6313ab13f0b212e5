"""Figures of runs: losses by step, time, context and number of heads, as matplotlib figures or single axes.

The `draw_*` functions fill one axes each; the HTML report draws every chart alone, the functions that return
a `Figure` put the same charts side by side for a PNG. Nothing here touches pyplot's global state.
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter

from nadaraya.errors import must_be
from nadaraya.files import write_file
from nadaraya.report.palette import COLOURS, DASHED, DOTTED
from nadaraya.report.runs import RunData, labelled
from nadaraya.report.style import charts, label_axes

# Colour and name of every order of pruning.
_ORDERS = {
    "loss": ("blue", "by loss"),
    "bank": ("vermillion", "by bank"),
    "random": ("slate", "at random"),
}


def loss_curves(runs: Sequence[RunData], unit: str = "nats/token") -> Figure:
    """Validation and training loss of several runs, against steps and against training time.

    Args:
        runs: what `RunData` needs of them for this: name, folder, variant, metrics.
        unit: of the losses; default nats/token.

    Returns:
        A matplotlib figure with two charts and a legend.

    >>> from nadaraya.report import loss_curves
    >>> from nadaraya.report.runs import RunData
    >>> records = [{"kind": "validation", "step": step, "loss": 9 / step} for step in (1, 2, 3)]
    >>> figure = loss_curves([RunData("demo", "demo", "rope", records)])
    >>> [axes.get_xlabel() for axes in figure.axes]
    ['step', 'training time, seconds']
    """
    runs = labelled(runs)
    with charts(460, 300, columns=2, sharey=True) as (figure, axes):
        draw_losses(axes[0, 0], runs, unit=unit)
        draw_losses(axes[0, 1], runs, "seconds", unit)
        axes[0, 0].legend()
    return figure


def draw_lengths(axes: Axes, runs: Sequence[RunData]) -> None:
    """Losses by length: full attention solid, a window dashed; vertical lines at the lengths of training."""
    lengths: list[int] = []
    for run in runs:
        for kind, dash in (("full", "solid"), ("window", (0, DASHED))):
            losses = run.lengths.losses(kind) if run.lengths else {}
            options: dict[str, Any] = {"color": run.style.hex, "linestyle": dash, "marker": "o"}
            axes.plot(list(losses), list(losses.values()), linewidth=1.6, markersize=4, **options)
            lengths += losses
    for context in sorted({run.lengths.context for run in runs if run.lengths}):
        axes.axvline(context, color=COLOURS["muted"][0], linewidth=0.8, alpha=0.6, zorder=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({*lengths}))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(title="validation loss, nats/token", xlabel="length, tokens")


def pruning_curves(curves: Sequence[Mapping[str, Any]], limit: float | None = None) -> Figure:
    """Loss against the number of heads removed, after tuning solid and before it dashed.

    Args:
        curves: of one run, as `nadaraya.pruning.pruning_curve` gives them; several of one
            order, as of several seeds, have one colour.
        limit: a loss that is marked, such as that of a budget, in nats/token; default none.

    Returns:
        A matplotlib figure with one chart and a legend.

    Raises:
        InputError: no curves.
    """
    if not curves:
        raise must_be("curves", "one or more of a run", curves)
    with charts(460, 300) as (figure, axes):
        chart, named = axes[0, 0], set()
        for curve in curves:
            points = sorted(curve["points"], key=lambda point: point["removed"])
            counts = [point["removed"] for point in points]
            colour, name = _ORDERS[curve["by"]]
            colour, label = COLOURS[colour][0], None if name in named else name
            named.add(name)
            chart.plot(
                counts, [p["loss"] for p in points], color=colour, marker="o", markersize=3, label=label
            )
            if curve["tune"]:
                before = [point["loss_before_tuning"] for point in points]
                chart.plot(counts, before, color=colour, linewidth=0.9, linestyle=(0, DASHED))
        if limit is not None:
            chart.axhline(limit, color=COLOURS["muted"][0], linewidth=0.8, linestyle=(0, DOTTED), zorder=1)
        # Before tuning the loss rises without end: what is after it sets the axis.
        losses = [point["loss"] for curve in curves for point in curve["points"]]
        room = 0.08 * (max(losses) - min(losses) or 1.0)
        chart.set_ylim(min(losses) - room, max(losses) + room)
        tuned = any(curve["tune"] for curve in curves)
        title = "loss, nats/token" + " (before tuning dashed)" * tuned
        label_axes(chart, title, "heads removed", x=8, integer=True)
        chart.legend()
    return figure


def write_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure to a file whole or not at all.

    Args:
        figure: any matplotlib figure.
        path: a file whose ending says its format: .png (150 dots per inch), .svg or .pdf. One that is there
            is replaced.

    Raises:
        WriteFailed: the disk is full or refuses; the file is then as it was.

    >>> from pathlib import Path
    >>> from nadaraya.interpret import lag_histogram
    >>> from nadaraya.report import write_figure
    >>> from nadaraya.report.by_lag import lag_histograms
    >>> write_figure(lag_histograms({"a": lag_histogram("a line\\n" * 50)}), "lags.png")
    >>> Path("lags.png").read_bytes()[1:4]
    b'PNG'
    """
    content = io.BytesIO()
    figure.savefig(content, format=Path(path).suffix[1:].lower(), dpi=150)
    write_file(Path(path), content.getvalue())


def draw_losses(axes: Axes, runs: Sequence[RunData], against: str = "step", unit: str = "nats/token") -> None:
    """Validation loss of `labelled` runs against "step" or "seconds" of training, training loss behind it.

    The first steep tenth is cut off, so that what separates the runs can be seen.
    """
    tops, ends = [], []
    for run in runs:
        if against == "step":
            train = run.train
            if len(train) > 400:  # each point the mean of its neighbours: small files, same line
                train = np.stack([part.mean(axis=0) for part in np.array_split(train, 400)])
            axes.plot(train[:, 0], train[:, 1], color=run.style.hex, linewidth=0.7, alpha=0.3)
        curve = run.validated("loss")
        _draw_validation(axes, run, curve, against, label=run.label)
        if len(curve) > 1:
            tops.append(curve[curve[:, 0] >= min(curve[-1, 0] / 10, curve[-2, 0]), 1].max())
            ends.append(curve[:, 1].min())
    if tops and max(tops) > min(ends):
        spread = max(tops) - min(ends)
        axes.set_ylim(min(ends) - 0.08 * spread, max(tops) + 0.05 * spread)
    title = f"validation loss, {unit}" + (" (training loss thin)" if against == "step" else "")
    _label_progress(axes, title, against)


def draw_accuracies(axes: Axes, runs: Sequence[RunData], against: str = "step") -> None:
    """Top-1 of validation against "step" or "seconds"; that of averaged weights, where kept, is strong."""
    for run in runs:
        curves = [run.validated(key) * (1, 100) for key in ("top1", "ema_top1")]
        *weak, strong = [curve for curve in curves if len(curve)] or curves[:1]
        for curve in weak:
            by = run.by(against, curve)
            axes.plot(by[:, 0], by[:, 1], **run.style.line, linewidth=0.9, alpha=0.55)
        _draw_validation(axes, run, strong, against)
    _label_progress(axes, "top-1 on the validation images, %", against)


def _draw_validation(axes: Axes, run: RunData, curve: np.ndarray, against: str, **options: Any) -> None:
    """A curve of (step, number) of a run, its end marked."""
    by = run.by(against, curve)
    axes.plot(by[:, 0], by[:, 1], linewidth=1.8, **run.style.line, **options)
    if len(by):
        axes.plot(*by[-1], color=run.style.hex, marker="o", markersize=4)


def _label_progress(axes: Axes, title: str, against: str) -> None:
    label_axes(axes, title, "step" if against == "step" else "training time, seconds", x=6, y=6)
    axes.set_xlim(left=0)

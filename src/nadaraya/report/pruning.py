"""The figure of pruning: the loss against the number of heads removed, one line per order."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nadaraya.errors import must_be
from nadaraya.report.palette import COLOURS, DASHED, DOTTED
from nadaraya.report.style import charts

# Colour and name of every order.
_ORDERS = {
    "loss": ("blue", "by loss"),
    "bank": ("vermillion", "by bank"),
    "random": ("slate", "at random"),
}


def pruning_curves(curves: Sequence[Mapping[str, Any]], limit: float | None = None) -> Figure:
    """Loss against the number of heads removed, after tuning solid and before it dashed.

    Args:
        curves: of one run, as `nadaraya.training.pruning_search.pruning_curve` gives them; several of one
            order, as of several seeds, have one colour.
        limit: a loss that is marked, such as that of a budget, in nats/token; default none.

    Returns:
        A matplotlib figure with one chart and a legend.

    Raises:
        InputError: no curves.

    >>> from nadaraya.report import pruning_curves
    >>> points = [{"removed": k, "loss": 1 + k / 9, "loss_before_tuning": 1 + k / 4} for k in range(3)]
    >>> figure = pruning_curves([{"by": "loss", "tune": 40, "points": points}])
    >>> figure.axes[0].get_xlabel()
    'heads removed'
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
        chart.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        chart.set_xlabel("heads removed")
        title = "loss, nats/token"
        if any(curve["tune"] for curve in curves):
            title += " (before tuning dashed)"
        chart.set_title(title)
        chart.legend()
    return figure

"""Figures by lag: kernels of the lag, given or implied, and histograms of separator lags.

The `draw_*` functions fill one axes each, as in `nadaraya.report.figures`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from nadaraya.errors import must_be
from nadaraya.interpret.bank_fits import BankFit
from nadaraya.interpret.banks import BankShape
from nadaraya.interpret.implied import ImpliedKernel
from nadaraya.interpret.lags import LagHistogram, separator_name
from nadaraya.report.palette import COLOURS, DASHED, DOTTED, head_style
from nadaraya.report.style import charts, draw_initial, label_axes

_INK, _MUTED = COLOURS["ink"][0], COLOURS["muted"][0]


def bank_curves(shapes: Sequence[BankShape], marks: Sequence[int] = ()) -> Figure:
    """The lag kernels κ of a model relative to their largest value, at lag 0 if they decay.

    One chart per layer, one line per head, the start dashed; Gaussian Process Attention (anonymous), figures
    3 and 4, draws their logits.

    Args:
        shapes: of its layers, from `nadaraya.interpret.bank_shapes`.
        marks: lags at which a faint vertical line stands, such as the line length of the corpus; default
            none.

    Returns:
        A matplotlib figure.

    Raises:
        InputError: no layer has a lag kernel.

    >>> import numpy as np
    >>> from nadaraya.interpret.banks import BankShape
    >>> from nadaraya.report import bank_curves
    >>> shape = BankShape(0, "add", initial=None, trained=np.array([[1.0, 0.5, 0.25]]))
    >>> bank_curves([shape]).axes[0].get_title(loc="left")
    'layer 0: κ(lag) / κ(0)'
    """
    if not shapes:
        raise must_be("shapes", "those of a model with a lag kernel", shapes)
    with charts(300, 230, columns=len(shapes), sharey=True) as (figure, axes):
        for chart, shape in zip(axes[0], shapes, strict=True):
            draw_kernel(chart, shape, marks)
            chart.legend(ncols=2, fontsize=9, loc="upper right", handlelength=1.2, columnspacing=1.0)
    return figure


def lag_histograms(histograms: dict[str, LagHistogram]) -> Figure:
    """Separator lags of texts by name side by side, the first one's peaks and range setting the scale.

    As in Gaussian Process Attention (anonymous), figure 5: a corpus beside generated text.
    """
    with charts(460, 260, columns=len(histograms), sharex=True) as (figure, axes):
        draw_histograms(axes[0], histograms)
    return figure


def draw_histograms(axes: Sequence[Axes], histograms: Mapping[str, LagHistogram]) -> None:
    """Separator lags of texts by name, one chart each, the first one's range on all of them."""
    longest = longest_shown(list(histograms.values())[:1])
    for place, (chart, (name, histogram)) in enumerate(zip(axes, histograms.items(), strict=True)):
        marked = [peak.lag for peak in histogram.peaks(2)]
        draw_histogram(chart, histogram, "blue" if place else "slate", marked, longest)
        chart.set_title(f"{name}: share of separations, %")


def implied_curves(kernels: Sequence[ImpliedKernel], fits: Sequence[BankFit] = ()) -> Figure:
    """The worth of each lag in the logits: one chart per layer, one line per head, fits dashed.

    The legend of a chart gives the R² of each head.
    """
    if not kernels:
        raise must_be("kernels", "those of at least one layer", kernels)
    with charts(300, 230, columns=len(kernels)) as (figure, axes):
        for chart, kernel, fit in zip_longest(axes[0], kernels, fits):
            _draw_implied(chart, kernel, fit)
    return figure


def _draw_implied(axes: Axes, kernel: ImpliedKernel, fit: BankFit | None) -> None:
    num_lags = kernel.curve.shape[1]
    fitted = None if fit is None else fit.curve(num_lags)
    for row, (head, label, curve) in enumerate(zip(kernel.heads, kernel.labels, kernel.curve, strict=True)):
        colour, r2 = head_style(head).hex, kernel.r2[row]
        label += "" if np.isnan(r2) else f", R² {r2:.2f}"
        axes.plot(curve, color=colour, linewidth=1.5, alpha=1.0 if fitted is None else 0.55, label=label)
        if fitted is not None:
            known = np.where(np.isfinite(curve), fitted[row], np.nan)
            axes.plot(known, color=colour, linewidth=1.0, linestyle=(0, DASHED), zorder=3)
    label_axes(axes, f"layer {kernel.layer}: logits by lag, mean 0", "lag, tokens", integer=True)
    axes.set_xlim(0, num_lags - 1)
    axes.legend(fontsize=8, handlelength=1.2)


def draw_kernel(axes: Axes, shape: BankShape, marks: Sequence[int] = ()) -> None:
    """The lag kernel κ of one layer relative to its largest value: one line per head, the start dashed.

    The strongest shared bumps are named where they can be seen. Faint vertical lines stand at the lags
    `marks`.
    """
    curves = relative(shape.trained)
    if shape.initial is not None:
        draw_initial(axes, relative(shape.initial), shape.heads)
    _draw_heads(axes, shape, curves, marks, kernel_title(shape))
    axes.set_ylim(0, 1.05)
    scale_lags(axes, curves.shape[1] - 1)


def draw_bank(axes: Axes, shape: BankShape) -> None:
    """The logits of one layer by lag, one line per head, the strongest shared bumps named.

    As the papers draw them: an added bank shows G, a multiplied one log G with the largest value of each
    head at 0, since the softmax cancels what is constant over lags.
    """
    what = "G(lag), added to the logits" if shape.added else "log G(lag), largest = 0"
    _draw_heads(axes, shape, aligned(shape.trained, shape.added), (), f"layer {shape.layer}: {what}")


def _draw_heads(axes: Axes, shape: BankShape, curves: np.ndarray, marks: Sequence[int], title: str) -> None:
    """(H, L) curves, marks, the strongest shared bumps by their lags where they stand; the axis of lags."""
    named: list[int] = []
    longest = curves.shape[1]
    for lag in marks:
        if lag < longest:
            axes.axvline(lag, color=_MUTED, linewidth=0.8, alpha=0.6, zorder=1)
    for head, label, curve in zip(shape.heads, shape.labels, curves, strict=True):
        axes.plot(curve, color=head_style(head).hex, linewidth=1.5, label=label, zorder=3)
    least = np.nanmin(curves) + 0.02 * np.ptp(curves[np.isfinite(curves)])
    for bump in sorted(shape.shared_bumps()[:3], key=lambda bump: bump.lag):
        height = curves[[shape.heads.index(head) for head in bump.heads], bump.lag].max()
        if height > least and all(abs(bump.lag - lag) > longest / 10 for lag in named):
            _name_peak(axes, bump.lag, height)
            named.append(bump.lag)
    label_axes(axes, title, "lag, tokens", y=5, integer=True)
    axes.set_xlim(0, longest - 1)


def draw_histogram(
    axes: Axes,
    histogram: LagHistogram,
    colour: str,
    marked: Sequence[int],
    max_lag: int | None = None,
    behind: LagHistogram | None = None,
) -> None:
    """Distances between successive separators, in % of all separations.

    The lags `marked` are named; a histogram to compare with stands `behind` it, as an outline.
    """
    share, highest = _shares(histogram), 1e-9
    axes.stairs(share, np.arange(share.size + 1) + 0.5, fill=True, color=COLOURS[colour][0])
    if behind is not None:
        outline = _shares(behind)
        axes.stairs(outline, np.arange(outline.size + 1) + 0.5, color=_INK, linewidth=0.9)
        highest = outline.max()
    for lag in marked:
        _name_peak(axes, lag, share[lag - 1])
    axes.set_xlim(-1, (max_lag or share.size) + 1)
    top = 1.18 * max(share.max(), highest)
    others = share[np.abs(np.arange(share.size) - share.argmax()) > 1]
    rest = 1.5 * float(others.max(initial=0))
    title = "share of separations, %"
    axes.yaxis.set_major_locator(MaxNLocator(5))
    if 0 < 3 * rest < top:  # one lag would flatten all others: what is above them is drawn in a third
        axes.set_yscale("function", functions=compressed(rest, top))
        axes.axhline(rest, color=_MUTED, linewidth=0.8, linestyle=(0, DOTTED), zorder=1)
        axes.set_yticks([*MaxNLocator(3).tick_values(0, rest)[:-1], float(f"{share.max():.2g}")])
        title += " (compressed above the dots)"
    axes.set_ylim(0, top)
    what = separator_name(histogram.separator)
    label_axes(axes, title, f"lag from {what} to {what}, {histogram.unit}", x=6, integer=True)


def compressed(bend: float, top: float) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A scale and its inverse: linear up to `bend`, what is above up to `top` in a third of the height."""
    values, heights = [0.0, bend, top], [0.0, bend, 1.5 * bend]
    return partial(np.interp, xp=values, fp=heights), partial(np.interp, xp=heights, fp=values)


def _shares(histogram: LagHistogram) -> np.ndarray:
    """Percent of all separations, lags 1 to max_lag."""
    return 100 * np.asarray(histogram.counts, dtype=float) / max(histogram.total, 1)


def longest_shown(histograms: Sequence[LagHistogram]) -> int:
    """One lag axis for several histograms: 99 % of the separations counted in each, and some room."""
    longest = 1
    for histogram in histograms:
        below = np.cumsum(histogram.counts)
        longest = max(longest, 1 + int(np.searchsorted(below, 0.99 * below[-1])))
    return min(int(1.25 * longest) + 5, max(histogram.max_lag for histogram in histograms))


def aligned(logits: np.ndarray, added: bool) -> np.ndarray:
    """Logits as they are drawn: G as it is; log G with the largest value of each head at 0, −inf left out."""
    if added:
        return logits
    finite = np.where(np.isfinite(logits), logits, np.nan)
    return finite - np.nanmax(finite, axis=1, keepdims=True)


def relative(logits: np.ndarray) -> np.ndarray:
    """(H, L) kernels of these logits as shares of their largest value, which is at lag 0 if they decay."""
    kernels: np.ndarray = np.exp(logits - logits.max(axis=1, keepdims=True))
    return kernels


def scale_lags(axes: Axes, longest: int, axis: str = "x") -> None:
    """A logarithmic axis of lags that has room for lag 0, linear where there are few."""
    few = longest < 20
    if not few:
        getattr(axes, f"set_{axis}scale")("symlog", linthresh=1, linscale=0.5)
    ticks = [lag for lag in (range(20) if few else (0, 1, 3, *10 ** np.arange(1, 6))) if lag <= longest]
    axes.set(**{f"{axis}lim": (0, longest), f"{axis}ticks": ticks, f"{axis}ticklabels": ticks})
    getattr(axes, f"{axis}axis").set_minor_locator(NullLocator())


def kernel_title(shape: BankShape) -> str:
    """The layer that a chart shows, and what of it."""
    decays = (shape.trained.argmax(axis=1) == 0).all()
    return f"layer {shape.layer}: κ(lag) / {'κ(0)' if decays else 'largest κ'}"


def _name_peak(axes: Axes, lag: int, height: float) -> None:
    axes.plot(lag, height, marker="o", markersize=3.5, color=_INK, zorder=4)
    axes.annotate(
        str(lag),
        (lag, height),
        xytext=(0, 5),
        textcoords="offset points",
        ha="center",
        zorder=5,
        annotation_clip=False,
    )

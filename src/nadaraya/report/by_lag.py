"""Figures of what attention does with distance: kernels that it implies, losses by context length."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator, ScalarFormatter

from nadaraya.errors import must_be
from nadaraya.interpret.bank_fits import BankFit
from nadaraya.interpret.implied import ImpliedKernel
from nadaraya.report.palette import DASHED, head_style, variant_styles
from nadaraya.report.style import charts

if TYPE_CHECKING:
    from nadaraya.evaluation import LengthLosses


def implied_curves(kernels: Sequence[ImpliedKernel], fits: Sequence[BankFit] = ()) -> Figure:
    """What each lag is worth in the logits: one chart per layer, one line per head, fits dashed.

    Args:
        kernels: of the layers, from `implied_kernels`.
        fits: the bank fitted to each; default none are drawn.

    Returns:
        A matplotlib figure. The legend of a chart gives the R² of each head.

    Raises:
        InputError: no layers.

    >>> import numpy as np
    >>> from nadaraya.interpret import ImpliedKernel
    >>> from nadaraya.report import implied_curves
    >>> curve = -np.arange(9.0)[None]
    >>> kernel = ImpliedKernel(0, curve, 9 - np.arange(9), r2=np.array([0.8]), deviation=np.array([2.0]))
    >>> implied_curves([kernel]).axes[0].get_title(loc="left")
    'layer 0: logits by lag, mean 0'
    """
    if not kernels:
        raise must_be("kernels", "those of at least one layer", kernels)
    with charts(300, 230, columns=len(kernels)) as (figure, axes):
        for place, (chart, kernel) in enumerate(zip(axes[0], kernels, strict=True)):
            _draw_curves(chart, kernel, fits[place] if fits else None)
    return figure


def _draw_curves(axes: Axes, kernel: ImpliedKernel, fit: BankFit | None) -> None:
    num_lags = kernel.curve.shape[1]
    fitted = None if fit is None else fit.curve(num_lags)
    for row, (head, label, curve) in enumerate(zip(kernel.heads, kernel.labels, kernel.curve, strict=True)):
        colour, r2 = head_style(head).hex, kernel.r2[row]
        label += "" if np.isnan(r2) else f", R² {r2:.2f}"
        axes.plot(curve, color=colour, linewidth=1.5, alpha=1.0 if fitted is None else 0.55, label=label)
        if fitted is not None:
            known = np.where(np.isfinite(curve), fitted[row], np.nan)
            axes.plot(known, color=colour, linewidth=1.0, linestyle=(0, DASHED), zorder=3)
    axes.set_title(f"layer {kernel.layer}: logits by lag, mean 0")
    axes.set_xlabel("lag, tokens")
    axes.set_xlim(0, num_lags - 1)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.legend(fontsize=8, handlelength=1.2)


def length_curves(losses: Mapping[str, "LengthLosses"], context: int | None = None) -> Figure:
    """Loss of the same tokens by context length, one line per model, the lengths in equal ratios.

    Args:
        losses: of each model by name, from `length_losses`; names of variants have their colours.
        context: length of training, where a vertical line stands; default none.

    Returns:
        A matplotlib figure.

    Raises:
        InputError: no models.

    >>> from nadaraya.evaluation import LengthLoss, LengthLosses
    >>> from nadaraya.report import length_curves
    >>> by_length = tuple(LengthLoss(length, 64 / length, None, 0.0, None) for length in (64, 128))
    >>> figure = length_curves({"rope": LengthLosses(by_length, 1, 32, 32, None, ())}, context=64)
    >>> figure.axes[0].get_xlabel()
    'context, tokens'
    """
    if not losses:
        raise must_be("losses", "those of at least one model", losses)
    with charts(460, 300) as (figure, axes):
        chart = axes[0, 0]
        styles = variant_styles(losses)
        for (name, result), style in zip(losses.items(), styles, strict=True):
            lengths = [loss.length for loss in result.lengths]
            values = [loss.cross_entropy for loss in result.lengths]
            chart.plot(lengths, values, marker="o", markersize=4, linewidth=1.6, label=name, **style.line)
        if context is not None:
            chart.axvline(context, color=styles[0].hex, linewidth=0.8, alpha=0.5, zorder=1)
        chart.set_xscale("log", base=2)
        chart.set_xticks(sorted({loss.length for result in losses.values() for loss in result.lengths}))
        chart.xaxis.set_major_formatter(ScalarFormatter())
        chart.xaxis.set_minor_locator(NullLocator())
        chart.set_title("loss of the same tokens, nats/token")
        chart.set_xlabel("context, tokens")
        chart.legend()
    return figure

"""Plots of kernels, and the axes of every plot; matplotlib is imported when something is drawn."""

import math
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch

from nadaraya.errors import InputError, must_be

if TYPE_CHECKING:
    from nadaraya.kernels.base import Kernel

_FEWEST_POINTS = 256
_LABELLED = 8  # heads with an entry of their own in the legend
_LONGEST_TITLE = 60


def axes_and_figure(ax: Any) -> tuple[Any, Any]:
    """The axes given, or new ones for None, and their figure."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as missing:
        raise InputError('plots need matplotlib: pip install "nadaraya[report]"') from missing
    if ax is None:
        _, ax = plt.subplots(layout="constrained")
    if not isinstance(ax, plt.Axes):
        raise must_be("ax", "matplotlib's axes, or None", ax)
    return ax, ax.figure


def plot_kernel(kernel: "Kernel", max_lag: float, ax: Any) -> Any:
    """Draw κ against the lag, one line per head; see `Kernel.plot`."""
    if isinstance(max_lag, bool) or not isinstance(max_lag, Real) or not 0 < max_lag < math.inf:
        raise must_be("max_lag", "a positive finite number", max_lag)
    ax, _ = axes_and_figure(ax)
    from matplotlib import colormaps

    lags = torch.linspace(0, max_lag, 1 + max(_FEWEST_POINTS, math.ceil(max_lag)))
    if not kernel.symmetric:
        lags = torch.cat((-lags[1:].flip(0), lags))
    with torch.no_grad():
        values = kernel(lags.to(kernel.device)).reshape(-1, len(lags)).cpu()
    last = len(values) - 1
    for head, row in enumerate(values):
        few = last < _LABELLED
        style = {} if few else {"color": colormaps["viridis"](head / last)}
        label = f"head {head}" if few or head in (0, last) else None
        ax.plot(lags.numpy(), row.numpy(), label=label, **style)
    if kernel.batch_shape:
        ax.legend()
    if values.min() >= 0:
        ax.set_ylim(bottom=0)
    text = repr(kernel)
    ax.set(
        title=text if len(text) <= _LONGEST_TITLE else type(kernel).__name__,
        xlabel="lag (tokens)",
        ylabel="κ(r)",
    )
    return ax

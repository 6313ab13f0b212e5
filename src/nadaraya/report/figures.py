"""The figures of a report: loss curves, bank shapes and lag histograms, as matplotlib figures or single axes.

The `draw_*` functions fill one axes each; the HTML report draws every chart alone, the functions that return
a `Figure` put the same charts side by side for a PNG. Nothing here touches pyplot's global state.
"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from nadaraya.errors import must_be
from nadaraya.files import write_file
from nadaraya.interpret.banks import BankShape, Bump
from nadaraya.interpret.lags import LagHistogram, separator_name
from nadaraya.report.palette import COLOURS, DASHED, DOTTED, head_style
from nadaraya.report.runs import RunData, labelled
from nadaraya.report.style import charts

_INK, _MUTED = COLOURS["ink"][0], COLOURS["muted"][0]


def loss_curves(runs: Sequence[RunData], unit: str = "nats/token") -> Figure:
    """Validation and training loss of several runs, against steps and against training time.

    Args:
        runs: what `RunData` needs of them for this: name, folder, variant, metrics.
        unit: of the losses; default nats/token.

    Returns:
        A matplotlib figure with two charts and a legend.

    >>> from nadaraya.report import RunData, loss_curves
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


def bank_curves(shapes: Sequence[BankShape], marks: Sequence[int] = ()) -> Figure:
    """The lag kernels of a model: one chart per layer, one line per head, the start dashed.

    As in Gaussian Process Attention (anonymous), figures 3 and 4.

    Args:
        shapes: of its layers, from `nadaraya.interpret.bank_shapes`.
        marks: lags at which a faint vertical line stands, such as the line length of the corpus; default
            none.

    Returns:
        A matplotlib figure.

    Raises:
        InputError: no layer has a lag kernel.

    >>> import numpy as np
    >>> from nadaraya.interpret import BankShape
    >>> from nadaraya.report import bank_curves
    >>> shape = BankShape(0, "add", initial=None, trained=np.array([[1.0, 0.5, 0.25]]))
    >>> bank_curves([shape]).axes[0].get_title(loc="left")
    'layer 0: G(lag), added to the logits'
    """
    if not shapes:
        raise must_be("shapes", "those of a model with a lag kernel", shapes)
    with charts(300, 230, columns=len(shapes), sharey=True) as (figure, axes):
        for chart, shape in zip(axes[0], shapes, strict=True):
            draw_bank(chart, shape, marks)
            chart.legend(ncols=2, fontsize=9, loc="upper right", handlelength=1.2, columnspacing=1.0)
    return figure


def lag_histograms(histograms: dict[str, LagHistogram]) -> Figure:
    """Separator lags of several texts side by side, the first one's peaks and range setting the scale.

    As in Gaussian Process Attention (anonymous), figure 5: a corpus beside generated text.

    Args:
        histograms: by the name of the text.

    Returns:
        A matplotlib figure with one chart per text.

    >>> from nadaraya.interpret import lag_histogram
    >>> from nadaraya.report import lag_histograms
    >>> figure = lag_histograms({"corpus": lag_histogram("a line\\n" * 50)})
    >>> figure.axes[0].get_title(loc="left")
    'corpus: share of separations, %'
    """
    longest = longest_shown(list(histograms.values())[:1])
    with charts(460, 260, columns=len(histograms), sharex=True) as (figure, axes):
        for place, (chart, (name, histogram)) in enumerate(zip(axes[0], histograms.items(), strict=True)):
            marked = [peak.lag for peak in histogram.peaks(2)]
            draw_histogram(chart, histogram, "blue" if place else "slate", marked, longest)
            chart.set_title(f"{name}: share of separations, %")
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
    >>> from nadaraya.report import lag_histograms, write_figure
    >>> write_figure(lag_histograms({"a": lag_histogram("a line\\n" * 50)}), "lags.png")
    >>> Path("lags.png").read_bytes()[1:4]
    b'PNG'
    """
    content = io.BytesIO()
    figure.savefig(content, format=Path(path).suffix[1:].lower(), dpi=150)
    write_file(Path(path), content.getvalue())


def draw_losses(axes: Axes, runs: Sequence[RunData], against: str = "step", unit: str = "nats/token") -> None:
    """Validation loss of `labelled` runs against "step" or "seconds" of training, training loss behind it."""
    for run in runs:
        if against == "step":
            train = _thinned(run.train)
            axes.plot(train[:, 0], train[:, 1], color=run.style.hex, linewidth=0.7, alpha=0.3)
        curve = run.validation if against == "step" else run.validation_against_seconds()
        axes.plot(curve[:, 0], curve[:, 1], linewidth=1.8, label=run.label, **run.style.line)
        if len(curve):
            axes.plot(*curve[-1], color=run.style.hex, marker="o", markersize=4)
    _limit_losses(axes, runs)
    axes.set_title(f"validation loss, {unit}" + (" (training loss thin)" if against == "step" else ""))
    _label_progress(axes, against)


def draw_accuracies(axes: Axes, runs: Sequence[RunData], against: str = "step") -> None:
    """Top-1 of validation against "step" or "seconds"; that of averaged weights, where kept, is strong."""
    for run in runs:
        curves = [run.validated(key) for key in ("top1", "ema_top1")]
        curves = [curve for curve in curves if len(curve)]
        for place, curve in enumerate(curves, start=1):
            drawn = curve if against == "step" else run.against_seconds(curve)
            strong = place == len(curves)
            width, opacity = (1.8, 1.0) if strong else (0.9, 0.55)
            axes.plot(drawn[:, 0], 100 * drawn[:, 1], **run.style.line, linewidth=width, alpha=opacity)
            if strong and len(drawn):
                axes.plot(drawn[-1, 0], 100 * drawn[-1, 1], color=run.style.hex, marker="o", markersize=4)
    axes.set_title("top-1 on the validation images, %")
    _label_progress(axes, against)


def draw_bank(axes: Axes, shape: BankShape, marks: Sequence[int] = ()) -> None:
    """The lag kernel of one layer: one line per head, the start dashed, the strongest shared bumps named.

    An additive bank shows G. A multiplied one shows log G with the largest value of each head at 0, since the
    softmax cancels what is constant over lags. Faint vertical lines stand at the lags `marks`.
    """
    lags = np.arange(shape.trained.shape[1])
    initial = aligned(shape.initial, shape.added) if shape.initial is not None else np.empty((0, lags.size))
    same_start = len(initial) > 0 and bool((initial == initial[0]).all())
    for head, curve in zip(shape.heads, initial[:1] if same_start else initial, strict=False):
        colour = _MUTED if same_start else head_style(head).hex
        axes.plot(lags, curve, color=colour, linewidth=1.1, linestyle=(0, DASHED), zorder=2)
    _draw_heads(axes, shape, aligned(shape.trained, shape.added), marks)
    axes.set_title(bank_title(shape))


def draw_rises(axes: Axes, shape: BankShape, marks: Sequence[int] = ()) -> None:
    """The bumps of one layer without the decay: the height of each head above its least at shorter lags."""
    rises = shape.rises()
    _draw_heads(axes, shape, rises, marks)
    axes.set_ylim(0, 1.15 * (float(np.nanmax(rises)) or 1.0))
    axes.set_title(f"layer {shape.layer}: bumps, the decay taken off")


def _draw_heads(axes: Axes, shape: BankShape, curves: np.ndarray, marks: Sequence[int]) -> None:
    """(H, L) curves, marks, the strongest shared bumps by their lags where they stand; the axis of lags."""
    named: list[int] = []
    longest = curves.shape[1]
    for lag in marks:
        if lag < longest:
            axes.axvline(lag, color=_MUTED, linewidth=0.8, alpha=0.6, zorder=1)
    for head, label, curve in zip(shape.heads, shape.labels, curves, strict=True):
        axes.plot(curve, color=head_style(head).hex, linewidth=1.5, label=label, zorder=3)
    for bump in named_bumps(shape):
        if all(abs(bump.lag - lag) > longest / 10 for lag in named):
            rows = [shape.heads.index(head) for head in bump.heads]
            _name_peak(axes, bump.lag, curves[rows, bump.lag].max())
            named.append(bump.lag)
    axes.set_xlim(0, longest - 1)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("lag, tokens")


def draw_histogram(
    axes: Axes,
    histogram: LagHistogram,
    colour: str,
    marked: Sequence[int],
    max_lag: int | None = None,
    behind: LagHistogram | None = None,
) -> None:
    """How often successive separators lie how far apart, in % of all separations.

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
    if 0 < 3 * rest < top:  # one lag would flatten all others: what is above them is drawn in a third
        axes.set_yscale("function", functions=compressed(rest, top))
        axes.axhline(rest, color=_MUTED, linewidth=0.8, linestyle=(0, DOTTED), zorder=1)
        axes.set_yticks([*MaxNLocator(3).tick_values(0, rest)[:-1], float(f"{share.max():.2g}")])
        title += " (compressed above the dots)"
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_ylim(0, top)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_title(title)
    what = separator_name(histogram.separator)
    axes.set_xlabel(f"lag from {what} to {what}, {histogram.unit}")


def compressed(bend: float, top: float) -> tuple[Callable[..., np.ndarray], Callable[..., np.ndarray]]:
    """A scale and its inverse: linear up to `bend`, what is above up to `top` in a third of the height."""
    slope = (top - bend) / (0.5 * bend)

    def forward(value: np.ndarray) -> np.ndarray:
        return np.where(value <= bend, value, bend + (value - bend) / slope)

    def inverse(height: np.ndarray) -> np.ndarray:
        return np.where(height <= bend, height, bend + (height - bend) * slope)

    return forward, inverse


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


def bank_limits(shapes: Sequence[BankShape]) -> dict[bool, tuple[float, float]]:
    """One y range for all charts of a run, so that layers compare: (low, high) for G and for log G."""
    limits = {}
    for added in {shape.added for shape in shapes}:
        tables = [t for s in shapes if s.added == added for t in (s.initial, s.trained) if t is not None]
        drawn = np.concatenate([aligned(table, added).ravel() for table in tables])
        low, high = float(np.nanmin(drawn)), float(np.nanmax(drawn))
        margin = 0.08 * (high - low or 1.0)
        limits[added] = (low - margin, high + margin)
    return limits


def named_bumps(shape: BankShape) -> list[Bump]:
    """The strongest three bumps of a layer, in the order of their lags."""
    return sorted(shape.shared_bumps()[:3], key=lambda bump: bump.lag)


def bank_title(shape: BankShape) -> str:
    """Which layer a chart shows, and what of it."""
    what = "G(lag), added to the logits" if shape.added else "log G(lag), largest = 0"
    return f"layer {shape.layer}: {what}"


def _thinned(curve: np.ndarray) -> np.ndarray:
    """At most 400 points of a curve, each the mean of its neighbours: small files, same line."""
    if len(curve) <= 400:
        return curve
    return np.stack([part.mean(axis=0) for part in np.array_split(curve, 400)])


def _label_progress(axes: Axes, against: str) -> None:
    axes.set_xlabel("step" if against == "step" else "training time, seconds")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_locator(MaxNLocator(6))


def _limit_losses(axes: Axes, runs: Sequence[RunData]) -> None:
    """Cuts the first steep tenth off the loss axis, so that what separates the runs can be seen."""
    tops, ends = [], []
    for run in runs:
        curve = run.validation
        if len(curve) > 1:
            tops.append(curve[curve[:, 0] >= min(curve[-1, 0] / 10, curve[-2, 0]), 1].max())
            ends.append(curve[:, 1].min())
    if tops and max(tops) > min(ends):
        spread = max(tops) - min(ends)
        axes.set_ylim(min(ends) - 0.08 * spread, max(tops) + 0.05 * spread)


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

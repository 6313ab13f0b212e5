"""The part of a report that shows runs on text: what attention reads, losses, samples, lag kernels."""

from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes

from nadaraya.interpret.banks import bump_table
from nadaraya.interpret.lags import LEAST_SEPARATIONS, lag_histogram
from nadaraya.report import by_lag
from nadaraya.report.figures import draw_lengths, draw_losses
from nadaraya.report.page import inline_svg, render_part
from nadaraya.report.reach import reach_part
from nadaraya.report.runs import RunData, leading, shown
from nadaraya.report.style import charts


def text_part(given: Sequence[RunData]) -> Markup:
    """The sections on runs on text."""
    alike = shown(given)
    runs, rivals = alike["runs"], alike["ranked"] if alike["comparable"] else []
    corpora = list(dict.fromkeys(run.corpus for run in runs if run.corpus is not None))
    texts = [(name, "slate", text) for name, text in corpora]
    texts += [(run.label, run.style.colour, run.sample) for run in runs]
    lags = _lags(texts, len(corpora), max(run.context for run in runs))
    return render_part(
        "text_runs.html.jinja",
        **alike,
        least=leading(runs, ("loss", "bits_per_byte")),
        reads=reach_part(runs, "reads", "lag, tokens"),
        problems=sorted({run.problem for run in runs if run.problem}),
        **_lengths(runs),
        baseline=next((run for run in rivals if run.variant == "rope" and run.finished), None),
        loss_panels=progress_panels(runs, "loss", "loss", draw_losses),
        banks=[_banks(run, number) for number, run in enumerate(runs) if run.banks],
        corpora=lags[: len(corpora)],
        generated=lags[len(corpora) :],
        least_separations=LEAST_SEPARATIONS,
        sample_characters=1500,
    )


def progress_panels(
    runs: Sequence[RunData],
    name: str,
    what: str,
    draw: Callable[[Axes, Sequence[RunData], str], None],
    unit: str = "",
    steps: str = "training steps",
) -> list[Markup]:
    """A curve of validation against updates and against the time of training."""
    ends = "; ".join(f"{run.label} ends at {run.loss:.3f}{unit}" for run in runs if run.loss is not None)
    drawn = []
    for against, x_axis in (("step", steps), ("seconds", "training time")):
        with charts(460, 300) as (figure, axes):
            draw(axes[0, 0], runs, against)
        description = f"Validation {what} against {x_axis}. {ends}."
        drawn.append(inline_svg(figure, f"{name}-{against}", description))
    return drawn


def _lengths(runs: Sequence[RunData]) -> dict[str, Any]:
    """The losses of those runs that were measured beyond the length of training."""
    measured = [run for run in runs if run.lengths]
    drawn = None
    if measured:
        with charts(460, 300) as (figure, axes):
            draw_lengths(axes[0, 0], measured)
        drawn = inline_svg(figure, "lengths", "Validation loss by length, one line per run and attention.")
    found = {row.length for run in measured if run.lengths for row in run.lengths.rows}
    return {"lengths": drawn, "with_lengths": measured, "all_lengths": sorted(found)}


def _banks(run: RunData, number: int) -> dict[str, Any]:
    """The charts of the lag kernels of one run."""
    marks = run.newlines.line_lengths() if run.newlines else []
    kernels = []
    for shape in run.banks:
        with charts(270, 205) as (figure, axes):
            by_lag.draw_kernel(axes[0, 0], shape, marks)
        description = f"{run.label}, {by_lag.kernel_title(shape)}, over lags; one line per head."
        kernels.append(inline_svg(figure, f"kernel-{number}-{shape.layer}", description))
    return {
        "run": run,
        "marks": marks,  # lags at which lines of the corpus end, in tokens of the run
        "kernels": kernels,
        "heads": sorted({head for shape in run.banks for head in shape.heads}),
        "bumps": bump_table(run.banks, marks),
    }


def _lags(texts: Sequence[tuple[str, str, str]], num_corpora: int, max_lag: int) -> list[dict[str, Any]]:
    """Histograms of (label, colour, text), corpora first, on one axis; a lone corpus outlines the rest."""
    histograms = [lag_histogram(text, max_lag) for _, _, text in texts]
    longest = by_lag.longest_shown(histograms[:num_corpora] or histograms)
    found = []
    for number, ((label, colour, text), histogram) in enumerate(zip(texts, histograms, strict=True)):
        peaks, svg = histogram.clear_peaks(), None
        if histogram.total >= LEAST_SEPARATIONS:
            behind = histograms[0] if number >= num_corpora == 1 else None
            with charts(460, 250) as (figure, axes):
                marked = [peak.lag for peak in peaks]
                by_lag.draw_histogram(axes[0, 0], histogram, colour, marked, longest, behind)
            named = ", ".join(peak.name for peak in peaks) or "none"
            description = f"Distances between newlines in {label}; peaks: {named}."
            svg = inline_svg(figure, f"lags-{number}", description)
        sizes = {"characters": len(text), "separations": histogram.total}
        found.append({"label": label, **sizes, "peaks": peaks, "svg": svg})
    return found

"""The summary of a search: the path of the best expressions, all that were tried, and a figure of both."""

import math
from pathlib import Path
from statistics import stdev

from matplotlib.figure import Figure

from nadaraya.files import write_file
from nadaraya.report import write_figure
from nadaraya.report.palette import COLOURS
from nadaraya.report.style import charts
from nadaraya.study.kept import SUMMARY_FILE
from nadaraya.study.search.progress import Candidate, Progress
from nadaraya.study.summary import mean_and_spread, render


def write_summary(progress: Progress, folder: Path) -> None:
    """Write summary.md and, once something is known, path.png."""
    write_file(folder / SUMMARY_FILE, markdown(progress))
    if any(math.isfinite(loss) for each in progress.candidates for loss in each.losses.values()):
        write_figure(draw(progress), folder / "path.png")


def verdict(progress: Progress) -> str:
    """One sentence or two: the best expression, and how the search ended."""
    best = progress.best
    if best is None:
        ended = f"could be trained: {progress.ended}" if progress.ended else "is confirmed yet"
        return f"No expression {ended}."
    how = progress.ended or f"{len(progress.pending)} runs of round {progress.candidates[-1].round} are left"
    return (
        f"Best of {len(progress.candidates)} expressions: `{best.expression}`, {_mean(best)} nats/token "
        f"({len(best.confirming)} seeds that did not choose it), {best.parameters_per_head} "
        f"parameters per head. The search {'ended' if progress.ended else 'is not at its end'}: {how}."
    )


def markdown(progress: Progress) -> str:
    """The verdict, the path, and the table of all candidates."""
    ordered = sorted(progress.candidates, key=lambda one: (one.round, one.losses.get(0, math.inf)))
    return render(
        "study/search/summary.md.jinja",
        verdict=verdict(progress),
        path=progress.path,
        candidates=ordered,
        mean=_mean,
        text=_text,
    )


def draw(progress: Progress) -> Figure:
    """Loss against parameters: a dot for each expression with the first seed, and the path of the best."""
    tried = [each for each in progress.candidates if math.isfinite(each.losses.get(0, math.inf))]
    path = [each for each in progress.path if each.loss is not None and math.isfinite(each.loss)]
    with charts(560, 380) as (figure, axes):
        chart = axes[0, 0]
        counts = [each.parameters_per_head for each in tried]
        chart.plot(counts, [each.losses[0] for each in tried], "o", color=COLOURS["muted"][0], markersize=3,
                   alpha=0.6, label="tried: the seed that chooses")  # fmt: skip
        counts, losses = [each.parameters_per_head for each in path], [each.loss for each in path]
        spread = [stdev(each.confirming) for each in path]
        chart.errorbar(counts, losses, yerr=spread, fmt="o-", color=COLOURS["vermillion"][0], markersize=5,
                       linewidth=1.3, capsize=2, label="kept: mean, spread of other seeds")  # fmt: skip
        for each, count in zip(path, counts, strict=True):
            chart.annotate(each.expression, (count, each.loss), xytext=(6, 5), textcoords="offset points",
                           fontsize=8)  # fmt: skip
        chart.set_xlabel("kernel parameters per head")
        chart.set_title("validation loss, nats/token")
        chart.legend(fontsize=8)
    return figure


def _mean(candidate: Candidate) -> str:
    """Mean and standard deviation over the confirming seeds."""
    known = candidate.loss is not None and candidate.loss < math.inf
    return mean_and_spread(candidate.confirming) if known else _text(candidate.loss)


def _text(loss: float | None) -> str:
    if loss is None:
        return ""
    return "diverged" if loss == math.inf else f"{loss:.4f}"

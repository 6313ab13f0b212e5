"""`nadaraya lags`: the histogram of separator lags of any text."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadaraya.cli.options import check_plot
from nadaraya.errors import InputError, must_be

if TYPE_CHECKING:
    from rich.table import Table

    from nadaraya.interpret import LagHistogram

_LONGEST_LAG = 1_000_000
_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\r": "\r", r"\\": "\\"}


def lags(
    text: Annotated[str, typer.Argument(help="A text file, a folder of them, 'embedded' or 'dickens'.")],
    separator: Annotated[
        str, typer.Option(help=r"What to measure between; \n and \t are understood.")
    ] = r"\n",
    max_lag: Annotated[int, typer.Option(help="The longest lag counted, in characters.")] = 256,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw the histogram: a .png, .svg or .pdf file.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --plot overwrite a file.")] = False,
) -> None:
    """Show how far apart newlines, or other separators, stand in a text."""
    from nadaraya.data import load_corpus
    from nadaraya.interpret import autocorrelation, lag_histogram

    if plot is not None:
        check_plot(plot, force)
    if not 1 <= max_lag <= _LONGEST_LAG:
        raise must_be("--max-lag", f"from 1 to {_LONGEST_LAG:,} characters", max_lag)
    separator = _ESCAPES.get(separator, separator)
    corpus = load_corpus(text)
    histogram = lag_histogram(corpus.text, max_lag, separator)
    if histogram.total == 0:
        raise InputError(
            f"{corpus.name} holds fewer than two separators {separator!r}: there is no lag to show"
        )
    if plot is not None:
        from nadaraya.report import lag_histograms, write_figure

        write_figure(lag_histograms({corpus.name: histogram}), plot)
    if as_json:
        figures = {
            "text": corpus.name,
            "sha256": corpus.sha256,
            "characters": len(corpus.text),
            "separator": separator,
            "separations": histogram.total,
            "max_lag": max_lag,
            "counts": histogram.counts.tolist(),
            "overflow": histogram.overflow,
            "peaks": [asdict(peak) for peak in histogram.peaks()],
            "autocorrelation": [round(x, 6) for x in autocorrelation(corpus.text, max_lag, separator)],
        }
        typer.echo(json.dumps(figures))
        return
    from rich.console import Console

    console = Console(highlight=False)
    console.print(
        f"[bold]{corpus.name}[/bold]: {len(corpus.text):,} characters,"
        f" {histogram.total:,} separations by {separator!r}"
    )
    for peak in histogram.peaks():
        console.print(f"  peak at {peak.name}: {peak.count:,}, {peak.share:.1%}")
    if histogram.peaks():
        console.print(_bars(histogram))
    else:
        console.print("  no peak stands out; --json gives every count")
    if histogram.overflow:
        console.print(f"  {histogram.overflow:,} longer than {max_lag}")
    if plot is not None:
        console.print(f"plot: {plot}", soft_wrap=True)


def _bars(histogram: "LagHistogram") -> "Table":
    """The histogram around its peaks, one bar per lag, a gap where lags are left out."""
    from rich.table import Table

    tops = {peak.lag for peak in histogram.peaks()}
    shown = sorted({top + step for top in tops for step in range(-4, 5)} & {*histogram.lags.tolist()})
    table = Table("lag", "count", "", box=None, padding=(0, 1))
    table.columns[0].justify = table.columns[1].justify = "right"
    largest = int(histogram.counts.max())
    for previous, lag in zip([0, *shown], shown, strict=False):
        if lag != previous + 1:
            table.add_row("⋮", "", "")
        count = int(histogram.counts[lag - 1])
        bar = "█" * round(40 * count / largest)
        table.add_row(str(lag), f"{count:,}", bar, style="bold cyan" if lag in tops else "")
    return table

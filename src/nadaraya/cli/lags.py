"""`nadaraya lags`: how far apart separators stand in a text, or in a run's corpus and the text it writes."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadaraya.cli.options import (
    NAMES_WIN,
    DeviceOption,
    PrecisionOption,
    SeedOption,
    TemperatureOption,
    computing,
    token_progress,
)
from nadaraya.cli.results import Result
from nadaraya.cli.texts import is_run
from nadaraya.errors import InputError, must_be
from nadaraya.names import CORPORA, means_path

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from rich.table import Table
    from rich.text import Text

    from nadaraya.data import Corpus
    from nadaraya.interpret.lags import LagHistogram
    from nadaraya.training import Run

_LONGEST_LAG = 1_000_000
_MOST_CHARACTERS = 10_000_000
_ESCAPES = {r"\n": "\n", r"\t": "\t", r"\r": "\r", r"\\": "\\"}


def lags(
    text: Annotated[
        str,
        typer.Argument(
            help=f"Text file, folder of text files, 'embedded', 'dickens', or a run folder. {NAMES_WIN}"
        ),
    ],
    separator: Annotated[
        str | None,
        typer.Option(
            help=r"newline, paragraph, sentence, word, or a string, in which \n and \t are understood.",
            show_default="newline",
        ),
    ] = None,
    regex: Annotated[
        str | None,
        typer.Option(help="Regular expression in place of the separator; [aeiou] is every vowel."),
    ] = None,
    max_lag: Annotated[int, typer.Option(help="Longest lag, in characters.")] = 256,
    characters: Annotated[
        int | None,
        typer.Option(help="For a run: number of characters to generate, roughly.", show_default="50,000"),
    ] = None,
    temperature: TemperatureOption = 1.0,
    seed: SeedOption = 0,
    device: DeviceOption = "",
    precision: PrecisionOption = "float32",
) -> Result:
    """Count the distances between newlines, or other separators, in a text.

    For a run: in its corpus, and in text that it generates.
    """
    from nadaraya.data import load_corpus
    from nadaraya.interpret import lag_histogram
    from nadaraya.interpret.lags import SEPARATORS, autocorrelation, compile_separator
    from nadaraya.training import Run

    if not 1 <= max_lag <= _LONGEST_LAG:
        raise must_be("--max-lag", f"from 1 to {_LONGEST_LAG:,} characters", max_lag)
    if regex is not None and separator is not None:
        raise must_be("--separator", "left out beside --regex", separator)
    given = "newline" if separator is None else separator
    between = SEPARATORS.get(given, _ESCAPES.get(given, given))
    if regex is not None:
        between = compile_separator(regex)
    run = Run(text) if means_path(text, CORPORA.__contains__) and is_run(text) else None
    if run is None and characters is not None:
        raise must_be("--characters", "left out where TEXT is not a run folder", characters)
    wanted = 50_000 if characters is None else characters
    if not 1 <= wanted <= _MOST_CHARACTERS:
        raise must_be("--characters", f"from 1 to {_MOST_CHARACTERS:,}", wanted)
    corpus = load_corpus(text) if run is None else run.corpus()
    histogram = lag_histogram(corpus.text, max_lag, between)
    if histogram.total == 0:
        few = f"{corpus.name} holds fewer than two separators {_shown(histogram)}"
        raise InputError(f"{few}: there is no lag to show")
    counted = [(corpus, histogram)]
    if run is not None:
        written = _written(run, corpus.text, wanted, temperature, seed, device, precision)
        counted.append((written, lag_histogram(written.text, max_lag, between)))

    def draw() -> "Figure":
        from nadaraya.report.by_lag import lag_histograms

        return lag_histograms({one.name: histogram for one, histogram in counted})

    found = [(one, histogram, autocorrelation(one.text, max_lag, between)) for one, histogram in counted]
    document, *generated = [_figures(*one) for one in found]
    if generated:
        sampled = {**generated[0], "temperature": temperature, "seed": seed}
        document = {"run": text, "corpus": document, "generated": sampled}
    return Result(document, (line for one in found for line in _lines(*one)), draw)


def _shown(histogram: "LagHistogram") -> str:
    """Characters as they are, in quotation marks; names and patterns as they are called."""
    from nadaraya.interpret.lags import separator_name

    separator = histogram.separator
    return repr(separator) if isinstance(separator, str) else separator_name(separator)


def _written(
    run: "Run", corpus: str, characters: int, temperature: float, seed: int, device: str, precision: str
) -> "Corpus":
    """About so many characters that the model of a run writes."""
    from nadaraya.data import Corpus
    from nadaraya.data.tokenizer import encode_text, is_character_tokenizer
    from nadaraya.evaluation import sample_text

    model, tokenizer, tokens = run.load_model(), run.tokenizer(), characters
    if not is_character_tokenizer(tokenizer):
        start = corpus[:100_000]
        tokens = -(-characters * len(encode_text(tokenizer, start)) // len(start))
    with computing(model, device, precision), token_progress(tokens) as progress:
        text = sample_text(model, tokenizer, tokens, seed, temperature=temperature, progress=progress)
    return Corpus(f"written by {run.name}", text)


def _figures(text: "Corpus", histogram: "LagHistogram", correlations: "np.ndarray") -> dict[str, Any]:
    """Everything, as plain values."""
    separator = histogram.separator
    return {
        "text": text.name,
        "sha256": text.sha256,
        "characters": len(text.text),
        "separator": separator if isinstance(separator, str) else separator.pattern,
        "separations": histogram.total,
        "max_lag": histogram.max_lag,
        "counts": histogram.counts.tolist(),
        "overflow": histogram.overflow,
        "peaks": [asdict(peak) for peak in histogram.peaks()],
        "autocorrelation": [round(x, 6) for x in correlations],
    }


def _lines(
    text: "Corpus", histogram: "LagHistogram", correlations: "np.ndarray"
) -> "Iterator[str | Text | Table]":
    """The peaks and the histogram around them; peaks of the autocorrelation."""
    from rich.text import Text

    from nadaraya.interpret.lags import prominent_peaks

    counts = f"{len(text.text):,} characters, {histogram.total:,} separations by {_shown(histogram)}"
    yield Text.assemble((text.name, "bold"), f": {counts}")
    peaks = histogram.peaks()
    yield from (f"  peak at {peak.name}: {peak.count:,}, {peak.share:.1%}" for peak in peaks)
    yield _bars(histogram) if peaks else "  no peak stands out; --json gives every count"
    if histogram.overflow:
        yield f"  {histogram.overflow:,} longer than {histogram.max_lag}"
    # Five standard errors of the autocorrelation of independent characters.
    found = prominent_peaks(correlations, 3, minimum=5 / len(text.text) ** 0.5)
    if found:
        listed = ", ".join(f"{peak.index} ({peak.height:.3f})" for peak in found)
        yield f"  autocorrelation peaks at {listed}"


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

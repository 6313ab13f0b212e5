"""`nadaraya banks`: the bumps of a run's banks beside their null, and what their terms are worth."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadaraya.cli.options import DeviceOption, PrecisionOption, computing, refuse_given
from nadaraya.cli.results import Result
from nadaraya.cli.tables import FigureTable, cell
from nadaraya.errors import must_be

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nadaraya.interpret.terms import TermReport

_SETS = {"trained": "trained", "initial": "before training", "null": "the null"}


def banks(
    run: Annotated[Path, typer.Argument(help="A finished run folder of a variant with a kernel of the lag.")],
    null: Annotated[
        Path | None, typer.Option(help="Run to compare with, such as one with data.shuffle=words.")
    ] = None,
    minimum: Annotated[float, typer.Option(help="Smallest height of a bump, in logits (nats).")] = 0.25,
    tolerance: Annotated[
        int, typer.Option(help="Largest distance of a bump from a peak of the corpus, in tokens.")
    ] = 3,
    terms: Annotated[bool, typer.Option("--terms", help="Also measure what each term is worth.")] = False,
    top: Annotated[
        int | None,
        typer.Option(help="With --terms: number of terms to leave out, one by one.", show_default="16"),
    ] = None,
    windows: Annotated[
        int | None, typer.Option(help="With --terms: number of windows of the text.", show_default="16")
    ] = None,
    device: DeviceOption = "",
    precision: PrecisionOption = "float32",
) -> Result:
    """Show the bumps of a run's banks by lag, how many chance would give, and what each term is worth."""
    from nadaraya.interpret import bank_shapes, bump_figures, term_report
    from nadaraya.interpret.windows import validation_windows
    from nadaraya.training import Run

    if not terms:
        refuse_given("given with --terms", top=top, windows=windows)
    top, windows = 16 if top is None else top, 16 if windows is None else windows
    for option, value in {"--minimum": minimum, "--tolerance": tolerance, "--top": top}.items():
        if not 0 <= value <= 1e9:
            raise must_be(option, "from 0 to 1e9", value)
    opened = Run(run)
    reference = None if null is None else Run(null)
    figures = bump_figures(opened, reference, minimum=minimum, tolerance=tolerance)
    report = None
    if terms:
        measured, model = validation_windows(opened, windows), opened.load_model()
        with computing(model, device, precision):
            report = term_report(model, measured, top=top)

    def draw() -> "Figure":
        from nadaraya.report import bank_curves

        return bank_curves(bank_shapes(opened, figures["num_lags"]), marks=figures["peaks"])

    names = {"run": str(run), "null": None if null is None else str(null)}
    document = {**names, **figures, "terms": None if report is None else asdict(report)}
    return Result(document, _shown(str(run), figures, reference is not None, report, top), draw)


def _shown(
    run: str, figures: dict[str, Any], with_null: bool, report: "TermReport | None", top: int
) -> Iterator[str | FigureTable]:
    yield f"{run}: bumps of at least {figures['minimum']:g} nats over {figures['num_lags']} lags"
    peaks = " and ".join(map(str, figures["peaks"]))
    for key, match in figures["matches"].items():
        line = f"  {_SETS[key]}: {match['bumps']}"
        if peaks and match["bumps"]:
            line += (
                f", {match['matched']} within {figures['tolerance']} of lag {peaks}, where lines of the "
                f"corpus end (by chance {match['expected']:.1f}, p = {match['p_value']:.2g})"
            )
        yield line
    if not peaks:
        yield "  the corpus has no peak of newline separations to compare them with"
    if figures["bumps"]:
        yield _bumps(figures["bumps"], with_null)
    if report is not None:
        yield from _terms(report, top)


def _bumps(rows: list[dict[str, Any]], with_null: bool) -> FigureTable:
    """One row per bump, those of a layer together, the most shared and prominent first."""
    counts = ["as_high_at_start", *(["as_high_in_null"] if with_null else []), "nearest_peak", "distance"]
    columns = ["lag", "height", "width", "at start", *(key.replace("_", " ") for key in counts)]
    table = FigureTable(["layer.head"], columns)
    for row in rows:
        shown = [str(row["lag"]), f"{row['height']:.2f}", f"{row['width']:.1f}"]
        shown += ["yes" if row["at_start"] else "no", *(cell(row[key], "d") for key in counts)]
        table.add_row(", ".join(row["labels"]), *shown)
    return table


def _terms(report: "TermReport", top: int) -> Iterator[str | FigureTable]:
    """The increase of the loss without the banks, without their oscillation, and without single terms."""
    yield f"{report.loss:.4f} nats/token over {report.tokens:,} tokens; the loss gains"
    table = FigureTable(["layer"], ["without the bank", "without oscillation"])
    for row in ({**asdict(report), "layer": "all"}, *report.layers):
        gains = (row["without_bank"], row["without_oscillation"])
        table.add_row(str(row["layer"]), *(cell(gain, "+.4f") for gain in gains))
    yield table
    if not top:
        return
    columns = ["strength", "decay length", "period", "oscillation", "divergence", "loss +"]
    table = FigureTable(["layer.head.term"], columns)
    for term in report.terms[:top]:
        shown = [f"{term.strength:.3g}", f"{term.length:.1f}", cell(term.period, ".1f")]
        shown += [f"{term.oscillation:.2f}", f"{term.divergence:.2g}", cell(term.loss_increase, "+.5f")]
        table.add_row(term.label, *shown)
    yield table
    if (correlation := report.rank_correlation()) is not None:
        yield f"rank correlation of divergence with the size of loss +: {correlation:+.2f}"

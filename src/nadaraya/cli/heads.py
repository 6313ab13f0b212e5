"""`nadaraya heads`: every head of a trained language model, ranked by what its removal costs."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadaraya.cli.options import DeviceOption, PrecisionOption, computing, figure_table

if TYPE_CHECKING:
    from rich.table import Table

    from nadaraya.interpret.heads import HeadReport

_COLUMNS = {
    "loss_increase": ("loss +", "+.4f"),
    "bank_max": ("max |G|", ".3g"),
    "bank_range": ("range", ".3g"),
    "bank_similarity": ("similarity", ".2f"),
    "previous_token": ("previous", ".3f"),
    "duplicate_token": ("duplicate", ".3f"),
    "induction": ("induction", ".3f"),
}


def heads(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    windows: Annotated[
        int, typer.Option(help="Windows of the validation text on which the loss is measured.")
    ] = 16,
    device: DeviceOption = "",
    precision: PrecisionOption = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Rank the heads of a language model by the loss without them, beside their banks and their patterns."""
    from rich.console import Console

    from nadaraya.interpret.heads import head_report, validation_windows
    from nadaraya.training import Run

    opened = Run(run)
    inputs, targets = validation_windows(opened, windows)
    model = opened.load_model()
    with computing(model, device, precision):
        report = head_report(model, inputs, targets)
    correlations = report.correlations()
    if as_json:
        ranked = [asdict(score) for score in report.ranked()]
        figures = {"run": str(run), "loss": report.loss, "tokens": report.tokens, "heads": ranked}
        typer.echo(json.dumps({**figures, "rank_correlation": correlations}))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120  # columns of a table that goes to a file or another program
    console.print(f"{run}: {report.loss:.4f} nats/token over {report.tokens:,} tokens", soft_wrap=True)
    console.print(_table(report))
    for name, value in correlations.items():
        console.print(f"rank correlation of {_COLUMNS[name][0]} with loss +: {value:+.2f}")


def _table(report: "HeadReport") -> "Table":
    """One row per head, the one that costs least first; no columns of banks without any."""
    columns = {
        name: column
        for name, column in _COLUMNS.items()
        if any(getattr(score, name) is not None for score in report.heads)
    }
    table = figure_table(["layer.head"], [heading for heading, _ in columns.values()])
    for score in report.ranked():
        values = [(getattr(score, name), style) for name, (_, style) in columns.items()]
        shown = ["–" if value is None else format(value, style) for value, style in values]
        table.add_row(f"{score.layer}.{score.head}", *shown)
    return table

"""`nadaraya report`: one self-contained HTML file on one or several runs."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; the order is that of the figures.")],
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("report.html"),
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Write one self-contained HTML file: table, loss curves, bank shapes, newline lags, samples."""
    from nadaraya.report import read_run, write_report
    from nadaraya.training import Run

    path = write_report([read_run(Run(folder)) for folder in runs], out, force)
    typer.echo(f"report: {path} ({path.stat().st_size / 1000:,.0f} kB)")

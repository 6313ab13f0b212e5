"""`nadaraya report`: one self-contained HTML file on one or several runs."""

from pathlib import Path
from typing import Annotated

import typer

from nadaraya.cli.options import ForceOption
from nadaraya.cli.results import Result


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, in the order of the report.")],
    out: Annotated[Path, typer.Option(help="Output file.")] = Path("report.html"),
    force: ForceOption = False,
) -> Result:
    """Write one HTML file about runs: tables, curves, kernels, attention maps."""
    from nadaraya.files import check_new_file
    from nadaraya.report import read_run, write_report
    from nadaraya.report.images import read_image_run
    from nadaraya.training import Run

    check_new_file(out, force, "--out")
    opened = [Run(folder) for folder in runs]
    read = [read_image_run(run) if run.recipe.task == "image" else read_run(run) for run in opened]
    path = write_report(read, out, force)
    size = path.stat().st_size
    document = {"path": str(path), "bytes": size, "runs": [str(folder) for folder in runs]}
    return Result(document, [f"report: {path} ({size / 1000:,.0f} kB)"])

"""The verbs of the command line, gathered. Verb modules import what is heavy inside their functions."""

from typing import Annotated

import typer

import nadaraya
from nadaraya.cli.bench import bench_app
from nadaraya.cli.compare import compare
from nadaraya.cli.count import count
from nadaraya.cli.data import data_app
from nadaraya.cli.demo import demo
from nadaraya.cli.evaluate import evaluate
from nadaraya.cli.generate import generate
from nadaraya.cli.lags import lags
from nadaraya.cli.maps import maps
from nadaraya.cli.report import report
from nadaraya.cli.train import train

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown")


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(nadaraya.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Attention as kernel regression: train, compare, interpret."""


for _verb in (demo, train, compare, generate, evaluate, report, lags, count, maps):
    app.command(_verb.__name__)(_verb)
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")

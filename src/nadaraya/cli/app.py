"""The verbs of the command line, gathered. Verb modules import what is heavy inside their functions."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import nadaraya
from nadaraya.cli.banks import banks
from nadaraya.cli.bench import bench_app
from nadaraya.cli.check import check
from nadaraya.cli.compare import compare
from nadaraya.cli.convert import convert
from nadaraya.cli.count import count
from nadaraya.cli.data import data_app
from nadaraya.cli.demo import demo
from nadaraya.cli.evaluate import evaluate
from nadaraya.cli.generate import generate
from nadaraya.cli.heads import heads
from nadaraya.cli.implied import implied
from nadaraya.cli.lags import lags
from nadaraya.cli.list_names import list_names
from nadaraya.cli.maps import maps
from nadaraya.cli.prune import prune
from nadaraya.cli.report import report
from nadaraya.cli.reproduce import reproduce
from nadaraya.cli.results import command
from nadaraya.cli.search import search
from nadaraya.cli.study import study
from nadaraya.cli.train import train


class _Verbs(TyperGroup):
    """The group of all verbs; Ctrl-C before a verb has its own answer to it is one line and status 130."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("stopped", err=True)
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=_Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(nadaraya.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    modules: Annotated[
        str,
        typer.Option(
            "--import",
            metavar="MODULE,…",
            help="Import Python modules that register your own variants, metrics or verbs.",
        ),
    ] = "",
) -> None:
    """Attention as kernel regression: train, compare, interpret."""
    # `nadaraya.cli.main` has taken --import out: verbs are registered before their group is made.


_DRAWN = {
    "compare": "the loss curves",
    "banks": "the banks by lag",
    "implied": "the kernels by lag",
    "lags": "the histogram",
}
_PRINTING = {"demo", "train"}  # what they do, as it goes
_PANELS: dict[str, list[Callable[..., Any]]] = {
    "Start": [demo, train, generate, evaluate, compare, report, check, list_names],
    "Look": [banks, heads, implied, lags, maps],
    "Research": [study, search, reproduce, prune, convert, count],
}
for _panel, _verbs in _PANELS.items():
    for _verb in _verbs:
        _name = _verb.__name__.removesuffix("_names")  # `list` is Python's own
        if _name in _PRINTING:
            app.command(_name, rich_help_panel=_panel)(_verb)
        else:
            command(app, _name, _DRAWN.get(_name, ""), panel=_panel)(_verb)
app.add_typer(bench_app, name="bench", rich_help_panel="Research")
app.add_typer(data_app, name="data", rich_help_panel="Research")

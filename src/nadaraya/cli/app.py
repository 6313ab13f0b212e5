"""The verbs of the command line, gathered. Verb modules import what is heavy inside their functions."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import nadaraya
from nadaraya.cli.banks import banks
from nadaraya.cli.bench import bench_app
from nadaraya.cli.compare import compare
from nadaraya.cli.count import count
from nadaraya.cli.data import data_app
from nadaraya.cli.demo import demo
from nadaraya.cli.evaluate import evaluate
from nadaraya.cli.generate import generate
from nadaraya.cli.heads import heads
from nadaraya.cli.implied import implied
from nadaraya.cli.lags import lags
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
    cls=_Verbs, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown"
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
            help="Python that registers variants, metrics or verbs of your own.",
        ),
    ] = "",
) -> None:
    """Attention as kernel regression: train, compare, interpret."""
    # `nadaraya.cli.main` has taken --import out: verbs are registered before their group is made.


_DRAWN = {
    "compare": "the curves",
    "lags": "the histogram",
    "banks": "the banks by lag",
    "implied": "the curves",
}
_PRINTING = {"demo", "train", "study", "search", "reproduce"}  # what they do, as it goes
_VERBS: list[Callable[..., Any]] = [
    demo, train, compare, study, search, reproduce, generate, evaluate, report, lags, banks, count, maps,
    implied, heads, prune,
]  # fmt: skip
for _verb in _VERBS:
    _name = _verb.__name__
    (app.command(_name) if _name in _PRINTING else command(app, _name, _DRAWN.get(_name, "")))(_verb)
app.add_typer(data_app, name="data")
app.add_typer(bench_app, name="bench")

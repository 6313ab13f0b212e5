"""One place where what a verb found is printed, as text or as JSON, and drawn."""

import inspect
import json
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from nadaraya.cli.options import ForceOption, JsonOption
from nadaraya.cli.tables import wide_console
from nadaraya.errors import must_be
from nadaraya.files import check_new_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Result(NamedTuple):
    """The result of a verb."""

    document: Any  # plain data, what --json prints
    shown: Iterable[Any]  # lines and tables, what is printed without it
    draw: "Callable[[], Figure] | None" = None  # makes the figure of --plot
    status: int = 0  # the exit status once all is printed
    notes: Iterable[str] = ()  # lines on standard error once all is printed


Verb = Callable[..., Result]


def command(
    app: typer.Typer, name: str, plot: str = "", *, panel: str | None = None
) -> Callable[[Verb], Verb]:
    """Register a verb with --json, and with --plot and --force where it draws what `plot` says.

    The decorator hands the verb back as it is: Python calls it for its result.
    """

    def register(verb: Verb) -> Verb:
        options: dict[str, Any] = {"as_json": (JsonOption, False)}
        if plot:
            drawn = typer.Option(help=f"Also draw {plot} into this .png, .svg or .pdf file.")
            options |= {"plot": (Annotated[Path | None, drawn], None), "force": (ForceOption, False)}
        added = [
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
            for option, (hint, default) in options.items()
        ]

        @wraps(verb)
        def run(**given: Any) -> None:
            as_json, file = given.pop("as_json"), None
            if plot:
                file, force = given.pop("plot"), given.pop("force")
                if file is not None:
                    if file.suffix.lower() not in (".png", ".svg", ".pdf"):
                        raise must_be("--plot", "a file that ends in .png or .svg or .pdf", str(file))
                    check_new_file(file, force, "--plot")
            result = verb(**given)
            render(result, as_json, file)
            if result.status:
                raise typer.Exit(result.status)

        parameters = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for each in inspect.signature(verb).parameters.values()
        ]
        run.__signature__ = inspect.Signature([*parameters, *added])  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in [*parameters, *added]}
        app.command(name, rich_help_panel=panel)(run)
        return verb

    return register


def render(result: Result, as_json: bool, plot: Path | None = None) -> None:
    """Draw a result where a file is given, and print it."""
    if plot is not None and result.draw is not None:
        from nadaraya.report import write_figure

        write_figure(result.draw(), plot)
    if as_json:
        typer.echo(json.dumps(result.document, indent=1))
    else:
        console = wide_console()
        for each in result.shown:
            if isinstance(each, str):
                print(each)  # as it is; a console changes tabs and names of emoji
            else:
                console.print(each)
        if plot is not None:
            print(f"plot: {plot}")
    for line in result.notes:
        typer.echo(line, err=True)

"""`nadaraya train`: a recipe becomes a run folder; the same command resumes it."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from nadaraya.errors import InputError


def _print_schema(requested: bool) -> None:
    if requested:
        from nadaraya.training import recipe_schema

        typer.echo(json.dumps(recipe_schema(), indent=1))
        raise typer.Exit


def train(
    recipe: Annotated[
        str, typer.Argument(help="A built-in recipe (demo, dickens, cifar-cpu, deit) or a YAML file.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Recipe keys to change, as model.variant=gpa-mul."),
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="The run folder.", show_default="runs/NAME OF THE RECIPE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the final figures as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            callback=_print_schema,
            is_eager=True,
            help="Print the JSON schema of recipe files, for editors.",
        ),
    ] = False,
) -> None:
    """Train a model; stopped or killed at any moment, the same command goes on where it was."""
    from nadaraya.training import is_main_process, load_recipe
    from nadaraya.training import train as train_run

    try:
        checked = load_recipe(recipe, overrides or [])
    except InputError:
        if is_main_process():
            raise
        raise typer.Exit(2) from None
    folder = run or Path("runs") / checked.name
    try:
        finished = train_run(checked, folder, progress=not quiet)
    except KeyboardInterrupt:
        if is_main_process():
            typer.echo(f"stopped; run the same command again to resume {folder}", err=True)
        raise typer.Exit(130) from None
    if not is_main_process():
        return
    final = finished.final or {}
    if as_json:
        typer.echo(json.dumps({"run": str(folder), "name": finished.name, **final}))
    else:
        typer.echo(f"{folder}: {_summary(final)}")


def _summary(final: dict[str, Any]) -> str:
    """The final figures in one line."""
    loss = f"validation loss {final['loss']:.4f}"
    if "bits_per_byte" in final:
        return f"{loss} nats/token, {final['bits_per_byte']:.4f} bits/byte"
    average = f" (EMA {final['ema_top1']:.2%})" if "ema_top1" in final else ""
    return f"top-1 {final['top1']:.2%}{average}, {loss} nats/image"

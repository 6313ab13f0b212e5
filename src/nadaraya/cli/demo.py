"""`nadaraya demo`: the main job in small, on the text that every Python ships."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the runs and the report.")] = Path("demo"),
    steps: Annotated[
        int | None, typer.Option(min=1, help="Updates of each run.", show_default="those of the demo recipe")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Train rope, gpa-rope and gpa-mul at equal steps, compare them, write a report: minutes on two cores."""
    from nadaraya.cli.compare import compare
    from nadaraya.cli.report import report
    from nadaraya.cli.results import render
    from nadaraya.training import load_recipe, train

    variants = ("rope", "gpa-rope", "gpa-mul")
    length = [] if steps is None else [f"training.steps={steps}", f"training.warmup_steps={steps // 20}"]
    recipes = [load_recipe("demo", [f"model.variant={variant}", *length]) for variant in variants]
    folders = [out / variant for variant in variants]
    about = f"Three models of bytes on the text of pydoc_data.topics: {', '.join(variants)}."
    typer.echo(about, err=as_json)
    try:
        for recipe, folder in zip(recipes, folders, strict=True):
            train(recipe, folder, progress=not quiet)
    except KeyboardInterrupt:
        typer.echo("stopped; run the same command again to go on", err=True)
        raise typer.Exit(130) from None
    render(compare(folders), as_json)
    written = report(folders, out / "report.html", force=True)
    if as_json:  # one document on standard output, and nothing else
        typer.echo("".join(written.shown), err=True)
        return
    render(written, as_json)
    typer.echo("Open it in a browser: its bank shapes show which distances the heads learned to look at.")

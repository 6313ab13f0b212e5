"""`nadaraya train`: a recipe becomes a run folder; the same command resumes it."""

import json
import os
import signal
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadaraya.cli.options import NAMES_WIN, JsonOption, QuietOption, chosen_device
from nadaraya.errors import InputError, unknown_name
from nadaraya.names import built_in_recipes, means_path

if TYPE_CHECKING:
    from nadaraya.training import ImageRecipe, Recipe


def _print_schema(requested: bool) -> None:
    if requested:
        from nadaraya.training.recipe import recipe_schema

        typer.echo(json.dumps(recipe_schema(), indent=1))
        raise typer.Exit


def _print_keys(task: str) -> None:
    if task:
        from nadaraya.training.recipe import recipe_help

        for key, (default, meaning) in recipe_help(task).items():
            written = json.dumps(default, ensure_ascii=False).strip('"')  # as after KEY=
            typer.echo(f"{key}={written}\n    {meaning}")
        raise typer.Exit


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help=f"A built-in recipe ({', '.join(built_in_recipes())}), a .yaml file, or a run folder. "
            f"{NAMES_WIN}"
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Recipe keys to change, such as data.corpus=FILE, model.variant=gpa-mul, "
            "training.steps=1000, training.learning_rate=1e-3 or seed=1; --keys lists all.",
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run",
            help="Run folder.",
            show_default="runs/RECIPE-VARIANT, with -seedN for other seeds than 0",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="cpu or cuda.", show_default="cuda if available, else cpu")
    ] = "",
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the recipe with every key, then stop.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print parameters, FLOPs, memory and the expected time, then stop."),
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
    keys: Annotated[
        str,
        typer.Option(
            "--keys",
            metavar="text|image",
            callback=_print_keys,
            is_eager=True,
            show_default=False,
            help="Print every recipe key of the task with default and meaning, then stop.",
        ),
    ] = "",
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            callback=_print_schema,
            is_eager=True,
            help="Print the JSON schema of recipe files for editors, then stop.",
        ),
    ] = False,
) -> None:
    """Train a model from a recipe; the same command resumes a run that was stopped."""
    if device == "cpu":  # before torch looks
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    from nadaraya.training import load_recipe
    from nadaraya.training import train as train_run
    from nadaraya.training.processes import is_main_process

    if device not in ("", "cpu", "cuda"):
        raise unknown_name("--device", device, ("cpu", "cuda"))
    chosen_device(device)

    try:
        checked = load_recipe(recipe, overrides or [])
    except InputError:
        if is_main_process():
            raise
        raise typer.Exit(2) from None
    if print_config:
        if is_main_process():
            mapping = checked.to_mapping()
            typer.echo(json.dumps(mapping, indent=1) if as_json else checked.to_yaml(), nl=as_json)
        return
    if dry_run:
        _try(checked, as_json)
        return
    own = means_path(recipe, built_in_recipes().__contains__) and Path(recipe).is_dir()
    # Seeds of a recipe that gives its name itself have folders of their own too.
    ending = f"-seed{checked.seed}" if checked.seed else ""
    name = checked.name if checked.name.endswith(ending) else checked.name + ending
    folder = run or (Path(recipe) if own else Path("runs") / name)
    try:
        finished = train_run(checked, folder, progress=not quiet)
    except KeyboardInterrupt as stopped:
        if is_main_process():
            typer.echo(f"stopped; run the same command again to resume {folder}", err=True)
        number = stopped.args[0] if stopped.args else signal.SIGINT
        raise typer.Exit(128 + number) from None  # as shells say that a signal ended a program
    if not is_main_process():
        return
    final = finished.final or {}
    if as_json:
        typer.echo(json.dumps({"run": str(folder), "name": finished.name, **final}))
    else:
        typer.echo(f"{folder}: {_summary(final)}")


def _try(recipe: "Recipe | ImageRecipe", as_json: bool) -> None:
    from nadaraya.training import try_recipe
    from nadaraya.training.processes import is_main_process

    trial = try_recipe(recipe)
    if not is_main_process():
        return
    if as_json:
        typer.echo(json.dumps({"name": recipe.name, **asdict(trial)}))
        return
    length = timedelta(seconds=round(trial.seconds))
    typer.echo(
        f"{recipe.name}: {trial.parameters:,} parameters, {trial.kernel_parameters:,} of kernels\n"
        f"forward pass: {trial.flops / 1e6:,.2f} MFLOP/{trial.unit}; training takes about three times it\n"
        f"memory: {trial.memory_bytes / 1e9:.2f} GB at the most, on {trial.device}\n"
        f"update: {1000 * trial.step_seconds:,.1f} ms; {trial.steps:,} of them: {length}, and validation"
    )


def _summary(final: dict[str, Any]) -> str:
    """The final metrics in one line."""
    loss = f"validation loss {final['loss']:.4f}"
    if "bits_per_byte" in final:
        return f"{loss} nats/token, {final['bits_per_byte']:.4f} bits/byte"
    average = f" (EMA {final['ema_top1']:.2%})" if "ema_top1" in final else ""
    return f"top-1 {final['top1']:.2%}{average}, {loss} nats/image"

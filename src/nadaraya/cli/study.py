"""`nadaraya study`: variants × sizes × seeds of a study file, queued, resumed, summarised."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadaraya.cli.options import (
    HoursOption,
    SeedsOption,
    SpeedOption,
    WorkersOption,
    check_positive,
    chosen_seeds,
    end_of_queue,
)
from nadaraya.cli.tables import FigureTable, wide_console

if TYPE_CHECKING:
    from nadaraya.study.runs import Session

# Of the verbs that train runs in a queue.
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Recipe keys to change in all runs, before those of sizes and variants: data.corpus=FILE.",
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print what is left and what it costs; train nothing.")
]
SummariseOption = Annotated[
    bool, typer.Option("--summarise", help="Only make what a run leaves anew, from results.json.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print what is printed as JSON.")]


def study(
    file: Annotated[Path, typer.Argument(help="The study file, YAML.")],
    overrides: OverridesArgument = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of runs and results.", show_default="studies/FILE")
    ] = None,
    workers: WorkersOption = 1,
    hours: HoursOption = None,
    only: Annotated[str, typer.Option(metavar="VARIANT,…", help="Train these variants; default all.")] = "",
    seeds: SeedsOption = "",
    dry_run: DryRunOption = False,
    speed: SpeedOption = None,
    summarise: SummariseOption = False,
    probe: Annotated[
        bool,
        typer.Option("--probe", help="Only make up for probes that finished runs lack, in their folders."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train variants at several sizes at matched compute, and say what compute each needs for equal loss.

    Runs wait in a queue, cheapest first; the same command goes on where it was and skips what is done. At
    the end the folder has results.json, summary.md and curves.png. A run that fails is named, and the status
    is then 1.
    """
    from nadaraya.study import load_study, plan_study, run_study
    from nadaraya.study.draw import write_summary

    check_positive(hours=hours, speed=speed)
    checked, numbers = load_study(file), chosen_seeds(seeds)
    folder = out or Path("studies") / file.stem
    chosen: dict[str, Any] = {
        "changes": overrides or [],
        "only": [name for name in only.split(",") if name],
        "seeds": numbers,
    }
    if dry_run and not summarise:
        plan = plan_study(checked, folder, timed=speed is None, **chosen)
        rows = [
            {
                **{key: getattr(cell, key) for key in ("size", "variant", "parameters", "steps", "flops")},
                "runs_left": left,
                "hours": left * (cell.flops / speed if speed else cell.seconds or 0.0) / 3600,
            }
            for cell, left in plan
        ]
        _print_plan(rows, workers, as_json)
        return
    session = None
    if summarise:
        summary = write_summary(checked.with_seeds(numbers), folder)
    else:
        session = run_study(
            checked, folder, workers=workers, train=not probe, **queue_options(hours), **chosen
        )
        summary = session.summary
    if as_json:
        typer.echo(json.dumps(summary.plain(), indent=1))
    else:
        for variant in summary.comparisons:
            typer.echo(summary.verdict(variant))
        typer.echo(f"summary: {folder / 'summary.md'}")
    if session:
        end_of_session(session)


def queue_options(hours: float | None) -> dict[str, Any]:
    """The time limit of a queue in seconds, and its lines on standard error."""
    seconds = None if hours is None else 3600 * hours
    return {"seconds": seconds, "say": lambda line: typer.echo(line, err=True)}


def end_of_session(session: "Session") -> None:
    """Say what is left and what went wrong, and end with the status that this means."""
    for warning in session.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if session.left:
        time = "" if session.hours is None else f", about {session.hours:.1f} h"
        typer.echo(f"{_runs_left(session.left)}{time}: the same command goes on", err=True)
    end_of_queue(session.ended)


def _runs_left(number: int) -> str:
    return "1 run is left" if number == 1 else f"{number} runs are left"


def _print_plan(rows: list[dict[str, Any]], workers: int, as_json: bool) -> None:
    total = sum(row["hours"] for row in rows) / workers
    if as_json:
        typer.echo(json.dumps({"cells": rows, "hours": total}, indent=1))
        return
    table = FigureTable(["size", "variant"], ["parameters", "steps", "FLOP/run", "runs", "hours"])
    for row in rows:
        table.add_row(
            row["size"], row["variant"], f"{row['parameters']:,}", f"{row['steps']:,}", f"{row['flops']:.3g}",
            f"{row['runs_left']}", f"{row['hours']:.2f}",
        )  # fmt: skip
    wide_console().print(table)
    runs = sum(row["runs_left"] for row in rows)
    typer.echo(f"{_runs_left(runs)}: {total:.2f} h with {workers} at a time, and validation")

"""`nadaraya study`: variants × sizes × seeds of a study file, queued, resumed, summarised."""

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
from nadaraya.cli.results import Result
from nadaraya.cli.tables import FigureTable

if TYPE_CHECKING:
    from nadaraya.study.runs import Session

# Of the verbs that train runs in a queue.
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Recipe keys to change in all runs, such as data.corpus=FILE; keys of sizes and variants "
        "override them.",
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print the remaining runs and their cost, then stop.")
]
SummariseOption = Annotated[
    bool, typer.Option("--summarise", help="Only rewrite the summary and figures from results.json.")
]


def study(
    file: Annotated[Path, typer.Argument(help="Study file (YAML).")],
    overrides: OverridesArgument = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of runs and results.", show_default="studies/FILE")
    ] = None,
    workers: WorkersOption = 1,
    hours: HoursOption = None,
    only: Annotated[str, typer.Option(metavar="VARIANT,…", help="Train these variants only.")] = "",
    seeds: SeedsOption = "",
    dry_run: DryRunOption = False,
    speed: SpeedOption = None,
    summarise: SummariseOption = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="Only measure the probes that finished runs lack.")
    ] = False,
) -> Result:
    """Compare variants at several sizes and equal compute.

    Reports the compute that each variant needs for equal loss. Runs wait in a queue, cheapest first; the same
    command resumes it and skips finished runs. The folder then has results.json, summary.md and curves.png.
    Exits with status 1 if a run fails, and names it.
    """
    from nadaraya.study import load_study, plan_study, run_study
    from nadaraya.study.draw import write_summary

    check_positive(hours=hours, speed=speed)
    checked, numbers = load_study(file), chosen_seeds(seeds)
    folder = out or Path("studies") / file.stem
    variants = [name for name in only.split(",") if name]
    chosen: dict[str, Any] = {"changes": overrides or [], "only": variants, "seeds": numbers}
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
        return _plan(rows, workers)
    notes, status = list[str](), 0
    if summarise:
        summary = write_summary(checked.with_seeds(numbers), folder)
    else:
        session = run_study(checked, folder, train=not probe, **queue_options(workers, hours), **chosen)
        summary, (notes, status) = session.summary, end_of_session(session)
    lines = [*map(summary.verdict, summary.comparisons), f"summary: {folder / 'summary.md'}"]
    return Result(summary.plain(), lines, notes=notes, status=status)


def queue_options(workers: int, hours: float | None) -> dict[str, Any]:
    """The runs at a time of a queue, its time limit in seconds, and its lines on standard error."""
    seconds = None if hours is None else 3600 * hours
    return {"workers": workers, "seconds": seconds, "say": lambda line: typer.echo(line, err=True)}


def end_of_session(session: "Session") -> tuple[list[str], int]:
    """Lines on what is left and what went wrong, and the exit status that this means."""
    lines = [f"warning: {warning}" for warning in session.warnings]
    if session.left:
        time = "" if session.hours is None else f", about {session.hours:.1f} h"
        lines.append(f"{_runs_left(session.left)}{time}: the same command goes on")
    failed, status = end_of_queue(session.ended)
    return [*lines, *failed], status


def _runs_left(number: int) -> str:
    return "1 run is left" if number == 1 else f"{number} runs are left"


def _plan(rows: list[dict[str, Any]], workers: int) -> Result:
    total = sum(row["hours"] for row in rows) / workers
    table = FigureTable(["size", "variant"], ["parameters", "steps", "FLOP/run", "runs", "hours"])
    for row in rows:
        table.add_row(
            row["size"], row["variant"], f"{row['parameters']:,}", f"{row['steps']:,}", f"{row['flops']:.3g}",
            f"{row['runs_left']}", f"{row['hours']:.2f}",
        )  # fmt: skip
    runs = sum(row["runs_left"] for row in rows)
    line = f"{_runs_left(runs)}: {total:.2f} h with {workers} at a time, and validation"
    return Result({"cells": rows, "hours": total}, [table, line])

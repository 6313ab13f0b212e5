"""`nadaraya reproduce`: a figure of the papers on banks of kernels, trained, drawn, compared."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadaraya.cli.options import (
    HoursOption,
    SeedsOption,
    WorkersOption,
    check_positive,
    chosen_seeds,
)
from nadaraya.cli.results import Result
from nadaraya.cli.study import (
    DryRunOption,
    OverridesArgument,
    SummariseOption,
    end_of_session,
    queue_options,
)
from nadaraya.cli.tables import FigureTable
from nadaraya.errors import must_be

if TYPE_CHECKING:
    from nadaraya.reproduce.catalogue import Cost


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="Name of the figure; without it all are listed.", show_default=False)
    ] = None,
    overrides: OverridesArgument = None,
    scale: Annotated[
        str,
        typer.Option(
            help="smoke: a test that it runs; cpu: a quarter of the width; gpu: the papers' model; paper: "
            "the papers' model and number of updates."
        ),
    ] = "smoke",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of runs and results.", show_default="reproduced/STUDY-SCALE"),
    ] = None,
    seeds: SeedsOption = "",
    workers: WorkersOption = 1,
    hours: HoursOption = None,
    dry_run: DryRunOption = False,
    speed: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DEVICE=FLOP/S", help="With --dry-run: achieved FLOP/s.", show_default="assumed"
        ),
    ] = None,
    summarise: SummariseOption = False,
) -> Result:
    """Reproduce a figure of the papers and compare it with the paper's claims.

    Trains the runs of the figure and draws it. Figures share runs: one folder serves several. The same
    command resumes the queue and skips finished runs. The folder then has results.json, drawings and
    comparison.md. --dry-run reads no text.
    """
    from nadaraya.reproduce import costs, load_figure
    from nadaraya.reproduce.catalogue import load_experiment
    from nadaraya.reproduce.comparison import write_comparison
    from nadaraya.study import run_study
    from nadaraya.study.draw import write_summary

    check_positive(hours=hours)
    if name is None:
        return _figures()
    figure, numbers = load_figure(name), chosen_seeds(seeds)
    experiment = load_experiment(figure.study, scale)
    plan = experiment.study.with_seeds(numbers)
    folder = out or Path("reproduced") / f"{figure.study}-{scale}"
    chosen: dict[str, Any] = {"changes": overrides or [], "only": figure.trained, "seeds": numbers}
    if dry_run:
        found = costs(experiment, folder, speeds=_speeds(speed), **chosen)
        return _costs(found, experiment.vocabulary)
    notes, status = list[str](), 0
    if summarise:
        write_summary(plan, folder)
    else:
        session = run_study(plan, folder, **queue_options(workers, hours), **chosen)
        notes, status = end_of_session(session)
    checked = write_comparison(figure.study, plan, folder).get(figure.name, [])
    pairs = list(zip(figure.claims, checked, strict=False))
    answers = [
        {"claim": claim.says, "paper": claim.paper, "here": answer.ours, "agrees": answer.agrees}
        for claim, answer in pairs
    ]
    lines = [": ".join(filter(None, (answer.agrees, claim.says, answer.ours))) for claim, answer in pairs]
    lines.append(f"comparison: {folder / 'comparison.md'}")
    return Result({"figure": figure.name, "claims": answers}, lines, notes=notes, status=status)


def _speeds(given: list[str] | None) -> dict[str, float]:
    """FLOP/s by device; none where none are given."""
    speeds = {}
    for text in given or []:
        device, _, number = text.rpartition("=")
        try:
            speeds[device] = float(number)
        except ValueError:
            speeds[device] = math.nan
        if not device or not 0 < speeds[device] < math.inf:
            raise must_be("--speed", "DEVICE=FLOP/S, such as A100=1e14", text)
    return speeds


def _figures() -> Result:
    from nadaraya.reproduce import figure_names, load_figure

    figures = [load_figure(name) for name in figure_names()]
    lines = []
    for figure in figures:
        lines.append(f"{figure.name}: {figure.document}, {figure.figure}\n  {figure.shows}.")
        lines += [f"  - {claim.says}" for claim in figure.claims]
    return Result([figure.model_dump(mode="json") for figure in figures], lines)


def _costs(found: "list[Cost]", vocabulary: int) -> Result:
    devices = list(found[0].hours)
    rows: list[dict[str, Any]] = [
        {
            **{key: getattr(cost.cell, key) for key in ("size", "variant", "parameters", "steps")},
            "runs_left": cost.runs,
            "flops": cost.flops,
            "memory_bytes": cost.memory,
            "hours": cost.hours,
        }
        for cost in found
    ]
    total = {device: sum(cost.hours[device] for cost in found) for device in devices}
    flops = sum(cost.flops for cost in found)
    figures = ["parameters", "updates", "runs", "FLOPs", "memory ≥", *(f"h, {device}" for device in devices)]
    table = FigureTable(["size", "variant"], figures)
    for row in rows:
        table.add_row(
            row["size"], row["variant"], f"{row['parameters']:,}", f"{row['steps']:,}", f"{row['runs_left']}",
            f"{row['flops']:.2e}", f"{row['memory_bytes'] / 1e9:.2f} GB",
            *(f"{row['hours'][device]:.2f}" for device in devices),
        )  # fmt: skip
    runs = sum(row["runs_left"] for row in rows)
    hours = (f"{total[device]:.1f}" for device in devices)
    table.add_section()
    table.add_row("all", "", "", "", f"{runs}", f"{flops:.2e}", "", *hours)
    note = (
        "Hours are of one run after the other, for updates alone. The speeds of devices are assumed, not "
        f"measured (--speed), and so are the {vocabulary} tokens of the vocabulary. FLOPs are those of "
        "linear maps and attention. Memory is the least that one run takes."
    )
    document = {"cells": rows, "flops": flops, "hours": total, "assumed": {"vocabulary": vocabulary}}
    return Result(document, [table, note])

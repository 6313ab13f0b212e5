"""`nadaraya search`: which kernel of the lag a recipe trains best with, by steps from simple ones."""

import json
from pathlib import Path
from typing import Annotated

import typer

from nadaraya.cli.options import (
    NAMES_WIN,
    HoursOption,
    SpeedOption,
    WorkersOption,
    check_positive,
    end_of_queue,
)
from nadaraya.cli.results import Result
from nadaraya.cli.study import DryRunOption, OverridesArgument, SummariseOption, queue_options


def search(
    recipe: Annotated[str, typer.Argument(help=f"Name or .yaml file of a recipe on text. {NAMES_WIN}")],
    overrides: OverridesArgument = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of runs and results.", show_default="searches/RECIPE")
    ] = None,
    bases: Annotated[
        str,
        typer.Option(
            metavar="EXPRESSION,…",
            help="Expressions to start from, and to add, multiply by or substitute in each step.",
            show_default="constant,exponential,gaussian,matern32,periodic,rq",
        ),
    ] = "",
    rounds: Annotated[int, typer.Option(help="Number of rounds.", min=0, max=20)] = 4,
    beam: Annotated[int, typer.Option(help="Expressions that each round keeps.", min=1, max=16)] = 1,
    seeds: Annotated[
        int, typer.Option(help="Number of seeds: the first selects, the others confirm.", min=3, max=100)
    ] = 3,
    workers: WorkersOption = 1,
    hours: HoursOption = None,
    dry_run: DryRunOption = False,
    speed: SpeedOption = None,
    summarise: SummariseOption = False,
) -> Result:
    """Search for the kernel of the lag with the lowest validation loss.

    Trains every candidate expression under one recipe. The same command resumes the search and skips
    finished runs. The folder has results.json, summary.md and path.png. Exits with status 1 if a run fails,
    and names it.
    """
    from nadaraya.study.search import (
        SearchPlan,
        plan_search,
        run_search,
        search_recipe,
        summarise_search,
        verdict,
    )

    check_positive(hours=hours, speed=speed)
    folder = out or Path("searches") / Path(recipe).stem
    notes, status = list[str](), 0
    if summarise:
        progress = summarise_search(folder)
    else:
        chosen = {"bases": tuple(bases.split(","))} if bases else {}
        plan = SearchPlan(**chosen, rounds=rounds, beam=beam, seeds=seeds)
        checked = search_recipe(recipe, overrides or [])
        if dry_run:
            cost = plan_search(checked, plan, folder, speed)
            most, each = cost["runs_at_most"], cost["hours"]
            line = (
                f"{cost['runs_now']:.0f} runs now, up to about {most:.0f} in all: {cost['flops']:.3g} FLOP "
                f"and {each:.3f} h each with `{plan.bases[0]}`, {most * each / workers:.1f} h with {workers} "
                "at a time, and validation"
            )
            return Result(cost, [line])
        session = run_search(checked, plan, folder, **queue_options(workers, hours))
        progress, (notes, status) = session.progress, end_of_queue(session.ended)
    document = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    lines = [verdict(progress), f"summary: {folder / 'summary.md'}"]
    return Result(document, lines, notes=notes, status=status)

"""`nadaraya prune`: a smaller run, without some heads of its model."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from nadaraya.cli.options import SeedOption, WindowsOption, chosen_device
from nadaraya.cli.results import Result
from nadaraya.cli.tables import FigureTable
from nadaraya.errors import InputError
from nadaraya.files import check_new_folder

_ROWS = {
    "loss": ("loss, nats/token", ".4f", 1.0),
    "bits_per_byte": ("bits/byte", ".4f", 1.0),
    "parameters": ("parameters", ",", 1),
    "step_seconds": ("training step, ms", ",.1f", 1e3),
    "cache_bytes_per_token": ("cache, bytes/token", ",", 1),
}


def prune(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    out: Annotated[Path, typer.Option(help="Output folder of the smaller run, new or empty.")],
    heads: Annotated[
        str | None,
        typer.Option(help="Heads to remove, as LAYER.HEAD from 0, such as 0.3,1.2.", show_default=False),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Or the largest increase of the loss, such as 0.5%, or in nats/token.",
            show_default=False,
        ),
    ] = None,
    by: Annotated[
        str, typer.Option(help="With --budget: order in which heads are removed: loss, bank or random.")
    ] = "loss",
    seed: SeedOption = 0,
    windows: WindowsOption = 16,
    tune: Annotated[int, typer.Option(help="Updates after the removal, with the run's recipe.")] = 0,
    tune_rate: Annotated[
        float, typer.Option(help="With --tune: peak learning rate as a fraction of the run's.")
    ] = 0.1,
    after_tuning: Annotated[
        bool,
        typer.Option(
            "--after-tuning",
            help="Apply the --budget to the loss after --tune updates; tunes several times.",
        ),
    ] = False,
    mlp: Annotated[
        bool,
        typer.Option("--mlp", help="Also remove that fraction of the feed-forward units of a head's layer."),
    ] = False,
) -> Result:
    """Remove heads from a language model and write the smaller run, with its loss and cost."""
    from nadaraya.interpret.ablation import Slices
    from nadaraya.interpret.labels import head_labels, parse_heads
    from nadaraya.interpret.windows import validation_windows
    from nadaraya.pruning import PruningPlan, most_heads, prune_run
    from nadaraya.pruning.curves import heads_within
    from nadaraya.training import Run

    if (heads is None) == (budget is None):
        raise InputError("--heads or --budget must be given, and not both")
    if after_tuning and (budget is None or tune < 1):
        raise InputError("--after-tuning must be given with --budget and --tune, at least 1 update")
    check_new_folder(out)
    opened, plan = Run(run), PruningPlan(by, seed, tune, windows, mlp, tune_rate)
    if budget is not None:
        if after_tuning:
            found = most_heads(opened, budget, plan, report=partial(typer.echo, err=True))
        else:
            found = heads_within(opened, budget, plan)
        removed, units = found.heads, found.units
        how = {"search": found.figures} if after_tuning else found.figures
    else:
        removed, units, how = parse_heads(str(heads), "--heads"), {}, {"order": []}
        if mlp:
            model = opened.load_model(weights="trained").to(chosen_device(""))
            units = Slices(model, validation_windows(opened, windows)).of(removed)
    if not removed:
        first, limit = how["search"]["points"][1]["loss"], how["search"]["limit"]
        raise InputError(
            f"the head of {run} that goes first by {by} leaves a loss of {first:.4f} nats/token, "
            f"above the limit of {limit:.4f}"
        )
    smaller, before, after = prune_run(opened, removed, out, units=units, tune=tune, tune_rate=tune_rate)
    names = head_labels(removed)
    sizes = smaller.load_model().config.intermediate_sizes or {}
    table = FigureTable([""], ["before", "after", "change"])
    for name, (heading, style, factor) in _ROWS.items():
        old, new = getattr(before, name), getattr(after, name)
        both = [format(value * factor, style) for value in (old, new)]
        table.add_row(heading, *both, f"{new / old - 1:+.1%}")
    lines: list[str | FigureTable] = [f"removed {len(names)}: {', '.join(names)}"]
    if sizes:
        shown = ", ".join(f"{size:,} in layer {layer}" for layer, size in sorted(sizes.items()))
        lines.append(f"feed-forward units: {shown}")
    figures = {"run": str(run), "out": str(smaller.path), "removed": names, "tune": tune}
    costs = {"before": asdict(before), "after": asdict(after), "intermediate_sizes": sizes}
    return Result({**figures, **costs, **how}, [*lines, table, f"run: {smaller.path}"])

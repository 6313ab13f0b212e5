"""`nadaraya prune`: a smaller run, without some heads of its model."""

import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadaraya.cli.options import chosen_device, figure_table
from nadaraya.errors import InputError, must_be, unknown_name

if TYPE_CHECKING:
    from nadaraya.interpret.pruning import Removal
    from nadaraya.training import Run

_ROWS = {
    "loss": ("loss, nats/token", ".4f", 1.0),
    "bits_per_byte": ("bits/byte", ".4f", 1.0),
    "parameters": ("parameters", ",", 1),
    "step_seconds": ("training step, ms", ",.1f", 1e3),
    "cache_bytes_per_token": ("cache, bytes/token", ",", 1),
}


def prune(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    out: Annotated[Path, typer.Option(help="The folder of the smaller run, new or empty.")],
    heads: Annotated[
        str | None,
        typer.Option(help="Heads to remove, LAYER.HEAD from 0, as in 0.3,1.2.", show_default=False),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="Or: what the loss may gain, as 0.5% or in nats/token; heads go until it is spent.",
            show_default=False,
        ),
    ] = None,
    by: Annotated[
        str, typer.Option(help="Which head goes next under a --budget: by loss, bank or random.")
    ] = "loss",
    seed: Annotated[int, typer.Option(help="Of the order --by random.")] = 0,
    windows: Annotated[
        int, typer.Option(help="Windows of the validation text on which the budget is measured.")
    ] = 16,
    tune: Annotated[int, typer.Option(help="Updates after the removal, by the run's own recipe.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Remove heads of a language model and write the smaller run, with what it scores and costs."""
    from rich.console import Console

    from nadaraya.training import Run
    from nadaraya.training.pruning import check_new_folder, prune_run

    if (heads is None) == (budget is None):
        raise InputError("--heads or --budget must be given, and not both")
    check_new_folder(out)
    opened = Run(run)
    chosen: list[Removal] = []
    if heads is not None:
        removed = _given(heads)
    else:
        chosen, removed = _chosen(opened, str(budget), by, seed, windows)
    smaller, before, after = prune_run(opened, removed, out, tune=tune)
    names = [f"{layer}.{head}" for layer, gone in sorted(removed.items()) for head in sorted(gone)]
    if as_json:
        figures = {"run": str(run), "out": str(smaller.path), "removed": names, "tune": tune}
        costs = {"before": asdict(before), "after": asdict(after), "order": list(map(asdict, chosen))}
        typer.echo(json.dumps({**figures, **costs}))
        return
    table = figure_table([""], ["before", "after", "change"])
    for name, (heading, style, factor) in _ROWS.items():
        old, new = getattr(before, name), getattr(after, name)
        table.add_row(
            heading, format(old * factor, style), format(new * factor, style), f"{new / old - 1:+.1%}"
        )
    console = Console(highlight=False)
    console.print(f"removed {len(names)}: {', '.join(names)}", soft_wrap=True)
    console.print(table)
    console.print(f"run: {smaller.path}", soft_wrap=True)


def _given(text: str) -> dict[int, list[int]]:
    """Heads by layer of "0.3,1.2"."""
    found: dict[int, list[int]] = {}
    for name in text.split(","):
        if not re.fullmatch(r"\s*\d{1,6}\.\d{1,6}\s*", name):
            raise must_be("--heads", "LAYER.HEAD separated by commas, as in 0.3,1.2", text)
        layer, head = map(int, name.split("."))
        found.setdefault(layer, []).append(head)
    return found


def _chosen(
    run: "Run", budget: str, by: str, seed: int, windows: int
) -> "tuple[list[Removal], dict[int, list[int]]]":
    """Removals within a budget, and the heads by layer."""
    from nadaraya.evaluation.language import total_nats
    from nadaraya.interpret.heads import validation_windows
    from nadaraya.interpret.pruning import ORDERS, choose_heads

    if by not in ORDERS:
        raise unknown_name("--by", by, ORDERS)
    try:
        amount = float(budget.removesuffix("%"))
    except ValueError:
        amount = math.nan
    if not 0.0 <= amount < math.inf:
        raise must_be("--budget", "as 0.5% or a number of nats/token, at least 0", budget)
    inputs, targets = validation_windows(run, windows)
    model = run.load_model(weights="trained").to(chosen_device(""))
    if budget.endswith("%"):
        amount *= total_nats(model, inputs, targets) / targets.numel() / 100
    chosen = choose_heads(model, inputs, targets, amount, by=by, seed=seed)
    if not chosen:
        raise InputError(
            f"the head of {run.path} that goes first by {by} costs more than the budget of {amount:.4g} "
            "nats/token"
        )
    found: dict[int, list[int]] = {}
    for removal in chosen:
        found.setdefault(removal.layer, []).append(removal.head)
    return chosen, found

"""`nadaraya implied`: the kernel of the lag that trained attention implies, and the bank nearest to it."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadaraya.cli.options import (
    DeviceOption,
    ForceOption,
    ModelArgument,
    PrecisionOption,
    TextOption,
    check_plot,
    computing,
)
from nadaraya.cli.tables import FigureTable, wide_console
from nadaraya.cli.texts import is_run, text_source
from nadaraya.errors import must_be

if TYPE_CHECKING:
    from nadaraya.interpret import BankFit

_CONTEXT = 1024  # of a model that is no run: its own may be 100,000 tokens and more
_MOST_TERMS = 64  # of a fit


def implied(
    run: ModelArgument,
    text: TextOption = None,
    windows: Annotated[int, typer.Option(help="Windows of the text whose logits count.")] = 16,
    context: Annotated[
        int | None,
        typer.Option(help="Tokens per window.", show_default="the run's; of other models at most 1024"),
    ] = None,
    terms: Annotated[int, typer.Option(help="Terms of the banks that are fitted; 0 for no fit.")] = 4,
    added: Annotated[
        bool, typer.Option("--added", help="Fit banks that are added to the logits, not multiplied in.")
    ] = False,
    device: DeviceOption = "",
    precision: PrecisionOption = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw the curves: a .png, .svg or .pdf file.")
    ] = None,
    force: ForceOption = False,
) -> None:
    """Show what each lag is worth in the logits of every head, and which bank says the same.

    The logits of all pairs of tokens are regressed on their lag, with a level for each query.
    """

    from nadaraya.data import document_positions
    from nadaraya.interpret import fitted_kernels, implied_kernels, implied_summary
    from nadaraya.interpret.windows import windows_of
    from nadaraya.training import open_causal_model

    if plot is not None:
        check_plot(plot, force)
    if not 0 <= terms <= _MOST_TERMS:
        raise must_be("--terms", f"from 0 to {_MOST_TERMS}", terms)
    causal = open_causal_model(run)
    source = text_source(run, text, "--text")
    if context is None:
        context = causal.context if is_run(run) else min(causal.context, _CONTEXT)
    inputs, border = windows_of(source.tokens(causal), context, windows), source.document_token
    positions = None if border is None else document_positions(inputs, border)
    with computing(causal.model, device, precision):
        fits: list[tuple[BankFit, BankFit]] = []
        if terms:
            kernels, fits = fitted_kernels(causal.model, inputs, terms, added=added, position_ids=positions)
        else:
            kernels = implied_kernels(causal.model, inputs, position_ids=positions)
    if plot is not None:
        from nadaraya.report import implied_curves, write_figure

        write_figure(implied_curves(kernels, [bank for bank, _ in fits]), plot)
    if as_json:
        asked = {"run": run, "text": source.name, "windows": len(inputs), "context": inputs.shape[1]}
        typer.echo(json.dumps({**asked, "terms": terms, "added": added, **implied_summary(kernels, fits)}))
        return
    console = wide_console()
    console.print(
        f"{run}, {source.name}: {len(inputs):,} windows of {inputs.shape[1]:,} tokens", soft_wrap=True
    )
    banks = [f"bank of {terms}", f"{2 * terms} decays"] if fits else []
    table = FigureTable(["layer.head"], ["deviation", "R² of lag", *banks])
    for place, kernel in enumerate(kernels):
        for row, (label, r2) in enumerate(zip(kernel.labels, kernel.r2, strict=True)):
            shares = [r2, *(fit.r2[row] for fit in (fits[place] if fits else ()))]
            shown = ["–" if math.isnan(share) else f"{share:.3f}" for share in shares]
            table.add_row(label, f"{kernel.deviation[row]:.2f}", *shown)
    console.print(table)
    if plot is not None:
        console.print(f"plot: {plot}", soft_wrap=True)

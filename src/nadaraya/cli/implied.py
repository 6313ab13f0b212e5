"""`nadaraya implied`: the kernel of the lag that trained attention implies, and the bank nearest to it."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from nadaraya.cli.options import (
    DeviceOption,
    ModelArgument,
    PrecisionOption,
    TextOption,
    WindowsOption,
    computing,
)
from nadaraya.cli.results import Result
from nadaraya.cli.tables import FigureTable
from nadaraya.cli.texts import is_run, text_source
from nadaraya.errors import must_be

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nadaraya.interpret.bank_fits import BankFit
    from nadaraya.interpret.implied import ImpliedKernel

_CONTEXT = 1024  # of a model that is no run: its own may be 100,000 tokens and more
_MOST_TERMS = 64  # of a fit


def implied(
    run: ModelArgument,
    text: TextOption = None,
    windows: WindowsOption = 16,
    context: Annotated[
        int | None,
        typer.Option(help="Tokens per window of the text.", show_default="the run's, else at most 1024"),
    ] = None,
    terms: Annotated[int, typer.Option(help="Number of terms of the fitted banks; 0 fits none.")] = 4,
    added: Annotated[
        bool, typer.Option("--added", help="Fit banks that are added to the logits, instead of multiplied.")
    ] = False,
    device: DeviceOption = "",
    precision: PrecisionOption = "float32",
) -> Result:
    """Estimate the kernel of the lag that each trained head implies, and fit banks to it.

    The logits of all pairs of tokens are regressed on their lag, with a level for each query.
    """
    from nadaraya.data.windows import document_positions
    from nadaraya.interpret import implied_kernels
    from nadaraya.interpret.implied import fitted_kernels, implied_summary
    from nadaraya.interpret.windows import windows_of
    from nadaraya.training import open_causal_model

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

    def draw() -> "Figure":
        from nadaraya.report.by_lag import implied_curves

        return implied_curves(kernels, [bank for bank, _ in fits])

    size = {"windows": len(inputs), "context": inputs.shape[1]}
    asked = {"run": run, "text": source.name, **size, "terms": terms, "added": added}
    line = f"{run}, {source.name}: {len(inputs):,} windows of {inputs.shape[1]:,} tokens"
    return Result({**asked, **implied_summary(kernels, fits)}, [line, _table(kernels, fits, terms)], draw)


def _table(
    kernels: "Sequence[ImpliedKernel]", fits: "Sequence[tuple[BankFit, BankFit]]", terms: int
) -> FigureTable:
    """Deviation of each head's kernel, and the variance that it and its banks explain."""
    banks = [f"bank of {terms}", f"{2 * terms} decays"] if fits else []
    table = FigureTable(["layer.head"], ["deviation", "R² of lag", *banks])
    for index, kernel in enumerate(kernels):
        for row, (label, r2) in enumerate(zip(kernel.labels, kernel.r2, strict=True)):
            shares = [r2, *(fit.r2[row] for fit in (fits[index] if fits else ()))]
            shown = ["–" if math.isnan(share) else f"{share:.3f}" for share in shares]
            table.add_row(label, f"{kernel.deviation[row]:.2f}", *shown)
    return table

"""`nadaraya heads`: every head of trained language models, ranked by what its removal costs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadaraya.cli.options import DeviceOption, PrecisionOption, WindowsOption, computing
from nadaraya.cli.results import Result
from nadaraya.cli.tables import FigureTable, cell

if TYPE_CHECKING:
    from nadaraya.interpret.heads import HeadReport, PooledCorrelation

_COLUMNS = {
    "loss_increase": ("loss +", "+.4f"),
    "bank_max": ("max |G|", ".3g"),
    "bank_range": ("range", ".3g"),
    "bank_similarity": ("similarity", ".2f"),
    "previous_token": ("previous", ".3f"),
    "duplicate_token": ("duplicate", ".3f"),
    "induction": ("induction", ".3f"),
}


def heads(
    runs: Annotated[list[Path], typer.Argument(help="Finished run folders.")],
    windows: WindowsOption = 16,
    device: DeviceOption = "",
    precision: PrecisionOption = "float32",
) -> Result:
    """Rank the heads of language models by the loss without them.

    Also shows the size and similarity of their banks and the strength of known attention patterns. For
    several runs, the rank correlations of bank measures with the loss are pooled, with 95 % intervals.
    """
    from nadaraya.interpret.heads import head_report, pooled_correlations
    from nadaraya.interpret.windows import validation_windows
    from nadaraya.training import Run

    opened = [Run(run) for run in runs]
    reports = []
    for run in opened:
        sample, model = validation_windows(run, windows), run.load_model()
        with computing(model, device, precision):
            reports.append(head_report(model, sample))
    pooled = pooled_correlations(reports) if len(runs) > 1 else {}
    found = [
        {
            "run": str(run),
            "loss": report.loss,
            "tokens": report.tokens,
            "heads": [asdict(score) for score in report.ranked()],
            "rank_correlation": report.correlations(),
        }
        for run, report in zip(runs, reports, strict=True)
    ]
    several = {"runs": found, "rank_correlation": {name: asdict(each) for name, each in pooled.items()}}
    return Result(several if len(runs) > 1 else found[0], _shown(runs, reports, pooled))


def _shown(
    runs: Sequence[Path], reports: "Sequence[HeadReport]", pooled: "Mapping[str, PooledCorrelation]"
) -> Iterator[str | FigureTable]:
    for path, report in zip(runs, reports, strict=True):
        yield f"{path}: {report.loss:.4f} nats/token over {report.tokens:,} tokens"
        yield _table(report)
        for name, value in report.correlations().items():
            yield f"rank correlation of {_COLUMNS[name][0]} with loss +: {value:+.2f}"
    for name, each in pooled.items():
        yield (
            f"{each.heads} heads of {each.runs} runs, rank correlation of {_COLUMNS[name][0]} with loss +: "
            f"{each.value:+.2f}, 95 % interval {each.low:+.2f} … {each.high:+.2f}"
        )


def _table(report: "HeadReport") -> FigureTable:
    """One row per head, the one that costs least first; no columns of banks without any."""
    columns = {
        name: column
        for name, column in _COLUMNS.items()
        if any(getattr(score, name) is not None for score in report.heads)
    }
    table = FigureTable(["layer.head"], [heading for heading, _ in columns.values()])
    for score in report.ranked():
        figures = (cell(getattr(score, name), style) for name, (_, style) in columns.items())
        table.add_row(score.label, *figures)
    return table

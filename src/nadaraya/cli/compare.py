"""`nadaraya compare`: runs of one task side by side, as a table and as curves."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadaraya.cli.results import Result
from nadaraya.cli.tables import FigureTable, cell
from nadaraya.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from nadaraya.training import Run

# Of the final record: key, heading, format, factor.
_SIZES = [("parameters", "parameters", ",", 1), ("kernel_parameters", "kernels", ",", 1)]
_COLUMNS: dict[str, list[tuple[str, str, str, int]]] = {
    "text": [
        *_SIZES,
        ("loss", "nats/\ntoken", ".4f", 1),
        ("bits_per_byte", "bits/\nbyte", ".4f", 1),
        ("step_seconds", "ms/\nstep", ".1f", 1000),
    ],
    "image": [
        *_SIZES,
        ("top1", "top-1\n%", ".2f", 100),
        ("ema_top1", "EMA\ntop-1 %", ".2f", 100),
        ("loss", "nats/\nimage", ".4f", 1),
        ("images_per_second", "images/\ns", ",.0f", 1),
    ],
}


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.")],
) -> Result:
    """Compare runs of one task in a table: parameters, validation loss, speed.

    The best run comes first, unfinished ones last. Runs on text are ranked by nats/token, or by bits/byte
    where their tokenizers differ.
    """
    from nadaraya.training import Run

    opened = [Run(path) for path in runs]
    by_task = {run.recipe.task: run.path for run in opened}
    if len(by_task) > 1:
        raise InputError(
            f"runs must be of one task, got {by_task['text']} on text and {by_task['image']} on images"
        )
    task = opened[0].recipe.task
    for warning in _warnings(opened):
        typer.echo(f"warning: {warning}", err=True)
    loss = "bits_per_byte" if len({run.measured_on.get("tokenizer") for run in opened}) > 1 else "loss"
    rows = sorted((run_row(run) for run in opened), key=lambda row: _best_first(row, loss))
    # Runs of one name have the names of their folders.
    for key in ("name", "folder", "run"):
        labels = [row[key] for row in rows]
        if len(set(labels)) == len(labels):
            break

    def draw() -> "Figure":
        from nadaraya.report import loss_curves
        from nadaraya.report.runs import RunData

        by_run = {row["run"]: label for row, label in zip(rows, labels, strict=True)}
        curves = [
            RunData(by_run[str(run.path)], run.path.name, run.recipe.label, run.metrics) for run in opened
        ]
        return loss_curves(curves, "nats/token" if task == "text" else "nats/image")

    headings = ["run", "variant" if task == "text" else "model"]
    table = FigureTable(headings, ["steps", *(heading for _, heading, _, _ in _COLUMNS[task])])
    for row, label in zip(rows, labels, strict=True):
        table.add_row(
            label,
            row["variant"],
            f"{row['step']}" if row["finished"] else f"{row['step']}/{row['steps']}",
            *(cell(row[key], style, factor) for key, _, style, factor in _COLUMNS[task]),
        )
    return Result(rows, [table], draw)


def _warnings(runs: list["Run"]) -> Iterator[str]:
    """Reasons why the metrics of runs are not comparable."""
    first = runs[0].measured_on
    for run in runs[1:]:
        different = [name for name, value in run.measured_on.items() if value != first[name]]
        if different:
            meaning = "their validation losses do not compare"
            if different == ["tokenizer"]:
                meaning = "a token is not the same in both, compare bits/byte"
            yield f"{run.path} and {runs[0].path} differ in {' and '.join(different)}: {meaning}"


def run_row(run: "Run") -> dict[str, Any]:
    """One row of a table: the final metrics of a finished run, of another those of its latest validation."""
    final = run.final
    latest: dict[str, Any] = final or next(reversed(run.series("validation")), {})
    return {
        "run": str(run.path),
        "folder": run.path.name,
        "name": run.name,
        "variant": run.recipe.label.replace("+", " + "),
        "seed": run.recipe.seed,
        "finished": final is not None,
        "step": max((record["step"] for record in run.metrics), default=0),
        "steps": run.steps,
        **{key: latest.get(key) for key, *_ in _COLUMNS[run.recipe.task]},
    }


def _best_first(row: dict[str, Any], loss: str) -> tuple[bool, float]:
    """Unfinished ones last; by top-1 of the average, top-1, or the key `loss`, as far as there are any."""
    top1 = next((row[key] for key in ("ema_top1", "top1") if row.get(key) is not None), None)
    if top1 is not None:
        return not row["finished"], -top1
    return not row["finished"], float("inf") if row[loss] is None else row[loss]

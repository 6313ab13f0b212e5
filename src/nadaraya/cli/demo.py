"""`nadaraya demo`: the main job in small, on the text that every Python ships."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nadaraya.cli.options import JsonOption, QuietOption
from nadaraya.cli.results import Result
from nadaraya.cli.tables import FigureTable

if TYPE_CHECKING:
    from nadaraya.training import Run

# Narrower feed-forward layers pay for the gates and the convolution of gpa-spread.
RUNS: dict[str, dict[str, Any]] = {
    "rope": {"model.variant": "rope"},
    "gpa-rope": {"model.variant": "gpa-rope"},
    "gpa-spread": {
        "model.variant": "gpa-spread",
        "model.extra.short_convolution": 4,
        "model.extra.intermediate_size": 448,
    },
}
TIMES, PLACES = (1, 4, 8), 16  # the length of training, and places in the validation text
CAVEAT = """\
So few updates show what is learned soonest, a preference for near tokens. They do not rank variants: the
pages on results have longer runs. Beyond the length of training, compare with the column of the window: a
model that only matches it has learned nothing from further away."""


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("demo"),
    steps: Annotated[
        int | None, typer.Option(min=1, help="Updates of each run.", show_default="as in the demo recipe")
    ] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train rope, gpa-rope and gpa-spread for minutes, compare their losses by length and write a report."""
    from nadaraya.cli.compare import compare
    from nadaraya.cli.report import report
    from nadaraya.cli.results import render
    from nadaraya.training import Run, load_recipe, train

    length = {} if steps is None else {"training.steps": steps, "training.warmup_steps": steps // 20}
    changes = [{**run, **length} for run in RUNS.values()]
    recipes = [load_recipe("demo", [f"{key}={value}" for key, value in each.items()]) for each in changes]
    folders = [out / name for name in RUNS]
    about = "Three models of bytes on the text of pydoc_data.topics: rope, gpa-rope, and gpa-spread behind a"
    typer.echo(f"{about} convolution of 4 tokens.", err=as_json)
    try:
        for recipe, folder in zip(recipes, folders, strict=True):
            train(recipe, folder, progress=not quiet)
        lengths = _lengths([Run(folder) for folder in folders])
    except KeyboardInterrupt:
        typer.echo("stopped; run the same command again to go on", err=True)
        raise typer.Exit(130) from None
    compared, written = compare(folders), report(folders, out / "report.html", force=True)
    if as_json:  # one document on standard output, and nothing else
        typer.echo("".join(written.shown), err=True)
        render(Result({"runs": compared.document, "lengths": lengths.document}, ()), as_json)
        return
    for each in (compared, lengths, Result(None, [CAVEAT, ""]), written):
        render(each, as_json)


def _lengths(runs: "list[Run]") -> Result:
    """Losses at lengths beyond that of training, with full attention and with a window of that length."""
    from nadaraya.cli.lengths import lengths_of
    from nadaraya.cli.texts import text_source
    from nadaraya.training import open_causal_model
    from nadaraya.training.lengths import write_length_file

    context = runs[0].text_recipe().data.context
    lengths = [times * context for times in TIMES]
    longer = [f"{length:,}\n{kind}" for length in lengths[1:] for kind in ("full", "window")]
    table = FigureTable(["nats/token\nat length"], [f"{context:,}", *longer])
    document: dict[str, Any] = {}
    for run in runs:
        causal, source = open_causal_model(str(run.path)), text_source(str(run.path), None, "--text")
        full, limited = (
            lengths_of(causal, source, lengths, PLACES, sliding_window=window).lengths
            for window in (None, context)
        )
        rows = [
            {"length": whole.length, "full": whole.cross_entropy, "window": part.cross_entropy}
            for whole, part in zip(full, limited, strict=True)
        ]
        write_length_file(run.path, rows, context=context, window=context)
        document[run.name] = {"context": context, "window": context, "rows": rows}
        losses = [rows[0]["full"], *(row[kind] for row in rows[1:] for kind in ("full", "window"))]
        table.add_row(run.name, *(f"{loss:.3f}" for loss in losses))
    note = f"{context:,} is the length of training; window: every layer sees {context:,} tokens only"
    return Result(document, [table, note, ""])

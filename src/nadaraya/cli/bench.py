"""`nadaraya bench`: speed and memory of models against their rivals."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nadaraya.cli.options import DeviceOption, chosen_device, figure_table, key_values, whole_numbers

if TYPE_CHECKING:
    from nadaraya.evaluation.throughput import Throughput

bench_app = typer.Typer(help="Measure speed and memory of models against their rivals.", no_args_is_help=True)


@bench_app.command("vit")
def vit(
    models: Annotated[
        list[str] | None, typer.Argument(help="timm's models; the others are compared with the first.")
    ] = None,
    size: Annotated[
        str, typer.Option(help="Without models, DeiT and GKA of this size: tiny, small or base.")
    ] = "tiny",
    device: DeviceOption = "",
    precision: Annotated[
        str, typer.Option(help="bfloat16 or float32; default bfloat16 on a GPU, float32 on the CPU.")
    ] = "",
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Compile every model with torch.compile.")
    ] = False,
    batch_sizes: Annotated[
        str, typer.Option(metavar="N,N,…", help="Images per forward pass; empty for none.")
    ] = "32,64,128,256,512",
    train_batch_sizes: Annotated[
        str, typer.Option(metavar="N,N,…", help="Images per training update; empty for none.")
    ] = "64,128",
    rounds: Annotated[int, typer.Option(help="Turns of each model at a batch size.", min=1)] = 5,
    image_size: Annotated[
        int | None, typer.Option(help="Pixels per side; default the models' own.", min=1, max=2**16)
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Keyword of timm's create_model.")
    ] = None,
    memory: Annotated[bool, typer.Option("--memory/--no-memory", help="Measure peak memory.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write them here as JSON, as they come.")] = None,
) -> None:
    """Images/s and peak memory, training and inference, models taking turns in one process.

    Figures are medians with quartiles. A model that does not fit in memory is a line that says so.
    """
    from nadaraya.evaluation.throughput import Settings, deit_and_gka, environment, measure, peaks
    from nadaraya.files import write_file

    device = chosen_device(device)
    settings = Settings(
        device=device,
        precision=precision or ("bfloat16" if device == "cuda" else "float32"),
        compiled=compiled,
        image_size=image_size,
        options=key_values(option),
        rounds=rounds,
        memory=memory,
    )
    names = models or deit_and_gka(size)
    accepted = "whole numbers separated by commas"
    cells = [
        ("training", batch) for batch in whole_numbers(train_batch_sizes, "--train-batch-sizes", accepted)
    ]
    cells += [("inference", batch) for batch in whole_numbers(batch_sizes, "--batch-sizes", accepted)]
    facts = {"environment": environment(), "settings": asdict(settings)}
    rows: list[Throughput] = []

    def document() -> str:
        return json.dumps({**facts, "rows": [asdict(row) for row in rows + peaks(rows)]}, indent=1)

    for mode, batch in cells:
        typer.echo(f"{mode}, batch {batch}: {', '.join(names)}", err=True)
        rows += measure(names, mode, batch, settings)
        if out:
            write_file(out, document() + "\n")
    if as_json:
        typer.echo(document())
    else:
        _print(rows + peaks(rows))


def _print(rows: "list[Throughput]") -> None:
    from rich.console import Console

    table = figure_table(["model"], ["images/s", "quartiles", "throughput", "MiB", "memory"], min_width=12)
    title = ""
    for row in rows:
        where = "inference, peak" if row.mode == "peak" else f"{row.mode}, batch {row.batch}"
        if where != title:
            title = where
            table.add_section()
            table.add_row(where)
        name = f"{row.model} ({row.batch})" if row.mode == "peak" else row.model
        spread = "" if row.low is None else f"{row.low:.1f}–{row.high:.1f}"
        speed = "failed" if row.failed else f"{row.images_per_second:.1f}"
        memory = "" if row.memory_mib is None else f"{row.memory_mib:.0f}"
        table.add_row(name, speed, spread, _times(row.speed_ratio), memory, _times(row.memory_ratio))
    console = Console()
    console.print(table)
    for row in rows:
        if row.failed:
            console.print(f"{row.mode}, batch {row.batch}, {row.model}: {row.failed}", markup=False)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}×"

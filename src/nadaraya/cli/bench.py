"""`nadaraya bench`: speed and memory of models against their rivals."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from nadaraya.evaluation.throughput import Results

bench_app = typer.Typer(help="Measure speed and memory of models against their rivals.", no_args_is_help=True)


@bench_app.callback()
def bench() -> None:
    """Measure speed and memory of models against their rivals."""


@bench_app.command("vit")
def vit(
    models: Annotated[
        list[str] | None, typer.Argument(help="timm's models; the others are compared with the first.")
    ] = None,
    size: Annotated[
        str, typer.Option(help="Without models, DeiT and GKA of this size: tiny, small or base.")
    ] = "tiny",
    device: Annotated[str, typer.Option(help="cpu or cuda; default cuda where there is one.")] = "",
    precision: Annotated[
        str, typer.Option(help="bfloat16 or float32; default bfloat16 on a GPU, float32 on the CPU.")
    ] = "",
    compiled: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Put every model through torch.compile.")
    ] = False,
    batch_sizes: Annotated[
        str, typer.Option(metavar="N,N,…", help="Images a forward pass; empty for none.")
    ] = "32,64,128,256,512",
    train_batch_sizes: Annotated[
        str, typer.Option(metavar="N,N,…", help="Images a training update; empty for none.")
    ] = "64,128",
    rounds: Annotated[int, typer.Option(help="Counted calls of every case.")] = 10,
    image_size: Annotated[
        int | None, typer.Option(help="Pixels a side; default the models' own.", min=1)
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Keyword of timm's create_model.")
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory/--no-memory", help="Measure peak memory; on the CPU a process a case.")
    ] = True,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Write all figures here, cell by cell; - prints them."),
    ] = None,
) -> None:
    """Images a second and peak memory, inference and training, models taking turns in one process.

    Figures are medians with quartiles. A case that does not fit in memory is a line that says so.
    """
    import torch

    from nadaraya.cli.options import key_values
    from nadaraya.evaluation.throughput import Grid, deit_and_gka, measure
    from nadaraya.evaluation.timing import write_json

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    grid = Grid(
        models or deit_and_gka(size),
        _whole_numbers(batch_sizes, "--batch-sizes"),
        _whole_numbers(train_batch_sizes, "--train-batch-sizes"),
        device=device,
        precision=precision or ("bfloat16" if device == "cuda" else "float32"),
        compiled=compiled,
        rounds=rounds,
        image_size=image_size,
        options=key_values(option or [], "--option"),
        memory=memory,
    )
    to_file = json_file is not None and str(json_file) != "-"

    def save(results: "Results") -> None:
        if to_file:
            assert json_file is not None
            write_json(json_file, results)

    results = measure(grid, progress=lambda line: typer.echo(line, err=True), save=save)
    if json_file is not None and not to_file:
        typer.echo(json.dumps(results, indent=1))
    else:
        _print(results)


def _whole_numbers(text: str, option: str) -> list[int]:
    from nadaraya.errors import InputError

    try:
        return [int(part) for part in text.split(",")] if text.strip() else []
    except ValueError:
        raise InputError(f"{option} {text!r}: expected whole numbers separated by commas") from None


def _print(results: "Results") -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("model", overflow="fold", min_width=12)
    for heading in ("images/s", "quartiles", "speed", "MiB", "of the\nfirst's"):
        table.add_column(heading, justify="right", no_wrap=True)
    failures = []
    for mode, ratios in results["ratios"].items():
        cells: dict[str, Any] = {
            **results[mode],
            **({"peak": results["peak"]} if mode == "inference" else {}),
        }
        for batch, cell in cells.items():
            where = f"{mode}, peak" if batch == "peak" else f"{mode}, batch {batch}"
            table.add_section()
            table.add_row(where)
            for name, row in cell.items():
                ratio = ratios.get(batch, {}).get(name, {})
                table.add_row(*_cells(name, row, ratio))
                failures += [
                    f"{where}, {name}: {row[key]}" for key in ("failed", "memory_failed") if key in row
                ]
    console = Console()
    console.print(table)
    for failure in dict.fromkeys(failures):
        console.print(failure, markup=False)
    console.print(f"Memory: {results['settings']['memory']}.", markup=False)


def _cells(name: str, row: "Results", ratio: "Results") -> list[str]:
    at = f" ({row['batch']})" if "batch" in row else ""
    if "failed" in row:
        return [name, "failed", "", "", "", ""]
    return [
        f"{name}{at}",
        f"{row['images_per_second']:.1f}",
        f"{row['low']:.1f}–{row['high']:.1f}",
        f"{ratio['speed']:.2f}×" if "speed" in ratio else "",
        f"{row['memory_mib']:.0f}" if "memory_mib" in row else "",
        f"{ratio['memory']:.2f}×" if "memory" in ratio else "",
    ]

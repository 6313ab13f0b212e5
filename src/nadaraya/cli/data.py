"""`nadaraya data`: fetch corpora into the cache folder and show what is there."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from nadaraya.cli.options import whole_numbers

data_app = typer.Typer(help="Fetch and list text corpora.", no_args_is_help=True)

CacheOption = Annotated[
    Path | None, typer.Option(help="Cache folder; default $NADARAYA_CACHE, else ~/.cache/nadaraya.")
]


@data_app.command("dickens")
def dickens(
    source_folder: Annotated[
        Path | None,
        typer.Option("--from", help="Take files from this folder: 580.txt, pg580.txt, … or one dickens.txt."),
    ] = None,
    cache: CacheOption = None,
    books: Annotated[
        str | None, typer.Option(help="Ebook numbers, such as 580,730; default all 25 works.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Fetch the works of Charles Dickens from Project Gutenberg; run it again after an interruption."""
    from rich.console import Console

    from nadaraya.data import cache_folder, fetch_dickens

    chosen = None if books is None else whole_numbers(books, "--books", "ebook numbers such as 580,730")
    path = fetch_dickens(cache, source_folder=source_folder, books=chosen, progress=sys.stderr.isatty())
    if as_json:
        typer.echo(json.dumps({"corpus": str(path), "bytes": path.stat().st_size}))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"corpus: {path} ({path.stat().st_size:,} bytes)")
    if cache is None or cache.resolve() == cache_folder().resolve():
        console.print("use it by name: nadaraya lags dickens")
    else:
        console.print(f"use it by name after: export NADARAYA_CACHE={cache.resolve()}")


@data_app.command("list")
def list_corpora(
    cache: CacheOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Show the embedded corpus and what the cache holds, each file checked against its digest."""
    from nadaraya.data import cache_folder, embedded_corpus
    from nadaraya.data.cache import is_intact, read_manifest

    folder = (cache or cache_folder()) / "dickens"
    embedded = embedded_corpus()
    rows: list[dict[str, Any]] = [
        {
            "corpus": "embedded",
            "file": "",
            "title": "this Python's language reference",
            "bytes": embedded.num_bytes,
            "sha256": embedded.sha256,
            "intact": True,
        }
    ]
    for name, record in read_manifest(folder).items():
        facts = {key: record.get(key) for key in ("title", "bytes", "sha256")}
        rows.append({"corpus": "dickens", "file": name, **facts, "intact": is_intact(folder, name)})
    if as_json:
        typer.echo(json.dumps({"cache": str(folder.parent), "files": rows}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("corpus", "file", "title", "bytes", "sha256", "state", box=None, header_style="bold")
    table.columns[3].justify = "right"
    for row in rows:
        names = (row[key] for key in ("corpus", "file", "title"))
        state = "intact" if row["intact"] else "[red]damaged[/red]"
        table.add_row(*names, f"{row['bytes']:,}", row["sha256"][:12], state)
    console = Console(highlight=False)
    console.print(f"cache: {folder.parent}", soft_wrap=True)
    console.print(table)

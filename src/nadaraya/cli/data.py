"""`nadaraya data`: fetch corpora into the cache folder, show what is there, make and check token shards."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from nadaraya.cli.options import whole_numbers
from nadaraya.cli.results import Result, command
from nadaraya.cli.tables import FigureTable
from nadaraya.errors import InputError

data_app = typer.Typer(help="Fetch, list and tokenise text corpora.", no_args_is_help=True)

CacheOption = Annotated[
    Path | None, typer.Option(help="Cache folder; default $NADARAYA_CACHE, else ~/.cache/nadaraya.")
]


@command(data_app, "dickens")
def dickens(
    source_folder: Annotated[
        Path | None,
        typer.Option("--from", help="Take files from this folder: 580.txt, pg580.txt, … or one dickens.txt."),
    ] = None,
    cache: CacheOption = None,
    books: Annotated[
        str | None, typer.Option(help="Ebook numbers, such as 580,730; default all 25 works.")
    ] = None,
) -> Result:
    """Fetch the works of Charles Dickens from Project Gutenberg; run it again after an interruption."""
    from nadaraya.data import fetch_dickens
    from nadaraya.data.cache import cache_folder

    chosen = None if books is None else whole_numbers(books, "--books", "ebook numbers such as 580,730")
    path = fetch_dickens(cache, source_folder=source_folder, books=chosen, progress=sys.stderr.isatty())
    size, by_name = path.stat().st_size, "use it by name: nadaraya lags dickens"
    if cache is not None and cache.resolve() != cache_folder().resolve():
        by_name = f"use it by name after: export NADARAYA_CACHE={cache.resolve()}"
    return Result({"corpus": str(path), "bytes": size}, [f"corpus: {path} ({size:,} bytes)", by_name])


@command(data_app, "list")
def list_corpora(
    cache: CacheOption = None,
) -> Result:
    """Show the embedded corpus and what the cache holds, each file checked against its digest."""
    from nadaraya.data.cache import cache_folder, read_manifest, stored_text
    from nadaraya.data.corpus import embedded_corpus

    folder = (cache or cache_folder()) / "dickens"
    own = embedded_corpus()
    facts = {"title": "this Python's language reference", "bytes": own.num_bytes, "sha256": own.sha256}
    rows: list[dict[str, Any]] = [{"corpus": "embedded", "file": "", **facts, "intact": True}]
    for name, record in read_manifest(folder).items():
        facts = record.model_dump(include={"title", "bytes", "sha256"})
        intact = stored_text(folder, name) is not None
        rows.append({"corpus": "dickens", "file": name, **facts, "intact": intact})
    table = FigureTable(["corpus", "file", "title"], ["bytes", "sha256", "state"])
    for row in rows:
        names = (row[key] for key in ("corpus", "file", "title"))
        state = "intact" if row["intact"] else "damaged"
        table.add_row(*names, f"{row['bytes']:,}", row["sha256"][:12], state)
    return Result({"cache": str(folder.parent), "files": rows}, [f"cache: {folder.parent}", table])


@command(data_app, "tokenize")
def tokenize(
    source: Annotated[
        str,
        typer.Argument(
            help="A .parquet, .jsonl or text file, a folder of them, or hub:NAME[:CONFIGURATION[:SPLIT]]."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="The folder of token shards.")],
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="A folder with the tokenizer.json to use.", show_default="byte pairs of the source"
        ),
    ] = None,
    vocabulary: Annotated[int, typer.Option(help="Number of tokens, where byte pairs are found.")] = 32768,
    sample_characters: Annotated[
        int, typer.Option(help="Characters that byte pairs are found in, from all files.")
    ] = 100_000_000,
    shard_tokens: Annotated[int, typer.Option(help="Tokens in a shard, at the most.")] = 100_000_000,
    validation_fraction: Annotated[
        float, typer.Option(help="Share of the documents that validate, chosen by their digests.")
    ] = 0.01,
    validation_documents: Annotated[
        int | None, typer.Option(help="Let the first so many documents validate instead.")
    ] = None,
    column: Annotated[str, typer.Option(help="Column of Parquet, or key of JSON, with the text.")] = "text",
    separator: Annotated[
        str, typer.Option(help="What stands between the documents of a plain text.")
    ] = "<|endoftext|>",
    workers: Annotated[
        int | None, typer.Option(help="Processes that tokenise.", show_default="one per usable core")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> Result:
    """Tokenise documents once into shards that `train` reads as data.corpus=OUT; run again to go on."""
    import torch

    from nadaraya.data import TokenShards, tokenize_corpus

    train = tokenize_corpus(
        source,
        out,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        sample_characters=sample_characters,
        shard_tokens=shard_tokens,
        validation_fraction=validation_fraction,
        validation_documents=validation_documents,
        column=column,
        separator=separator,
        workers=workers or torch.get_num_threads(),
        progress=not quiet,
    )
    parts = {"train": train, "validation": TokenShards(out, "validation", verify=False)}
    counts = {name: {"tokens": len(part), "documents": part.num_documents} for name, part in parts.items()}
    lines = [
        f"{name}: {part['tokens']:,} tokens of {part['documents']:,} documents"
        for name, part in counts.items()
    ]
    lines.append(f"train on them: nadaraya train demo data.corpus={out}")
    return Result({"shards": str(out), "sha256": train.sha256, **counts}, lines)


@data_app.command("check")
def check(
    folder: Annotated[Path, typer.Argument(help="A folder of token shards.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Compare every file of token shards with its digest; names all that are damaged, with exit status 2."""
    from nadaraya.data import check_shards

    found = check_shards(folder)
    if as_json:
        typer.echo(json.dumps({"shards": str(folder), "damaged": found}))
    if found:
        listed = ", ".join(f"{name} ({problem})" for name, problem in found.items())
        raise InputError(
            f"{folder} is damaged: {listed}; the same `nadaraya data tokenize` command makes files anew"
        )
    if not as_json:
        typer.echo(f"{folder}: every file is intact")

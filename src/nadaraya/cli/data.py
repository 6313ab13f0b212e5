"""`nadaraya data`: fetch corpora into the cache folder, show what is there, make and check token shards."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from nadaraya.cli.options import QuietOption, refuse_given, whole_numbers
from nadaraya.cli.results import Result, command
from nadaraya.cli.tables import FigureTable
from nadaraya.errors import InputError

data_app = typer.Typer(help="Fetch, list, tokenise and check text corpora.", no_args_is_help=True)

CacheOption = Annotated[
    Path | None,
    typer.Option(help="Cache folder.", show_default="$NADARAYA_CACHE, else ~/.cache/nadaraya"),
]


@command(data_app, "dickens")
def dickens(
    source_folder: Annotated[
        Path | None,
        typer.Option("--from", help="Take files from this folder: 580.txt, pg580.txt, … or one dickens.txt."),
    ] = None,
    cache: CacheOption = None,
    books: Annotated[
        str | None, typer.Option(help="Ebook numbers, such as 580,730.", show_default="all 25 works")
    ] = None,
) -> Result:
    """Fetch the works of Charles Dickens from Project Gutenberg; the same command resumes."""
    from nadaraya.data import fetch_dickens
    from nadaraya.files import cache_folder

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
    """List the embedded corpus and the files in the cache, each checked against its digest."""
    from nadaraya.data.cache import read_manifest, stored_text
    from nadaraya.data.corpus import embedded_corpus
    from nadaraya.files import cache_folder

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
    out: Annotated[Path, typer.Argument(help="Output folder of token shards.")],
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Folder with the tokenizer.json to use.", show_default="byte pairs of the source"),
    ] = None,
    vocabulary: Annotated[
        int | None, typer.Option(help="Vocabulary size of a new tokenizer.", show_default="32768")
    ] = None,
    sample_characters: Annotated[
        int | None,
        typer.Option(
            help="Characters, from all files, that a new tokenizer is trained on.", show_default="100000000"
        ),
    ] = None,
    shard_tokens: Annotated[int, typer.Option(help="Largest number of tokens per shard.")] = 100_000_000,
    validation_fraction: Annotated[
        float | None,
        typer.Option(
            help="Fraction of the documents for validation, chosen by their digests.", show_default="0.01"
        ),
    ] = None,
    validation_documents: Annotated[
        int | None, typer.Option(help="Number of documents for validation instead, the first ones.")
    ] = None,
    column: Annotated[str, typer.Option(help="Parquet column or JSON key of the text.")] = "text",
    separator: Annotated[
        str, typer.Option(help=r"Separator of documents in a text file, such as \n\n.")
    ] = "<|endoftext|>",
    workers: Annotated[
        int | None, typer.Option(help="Number of processes.", show_default="one per usable core")
    ] = None,
    quiet: QuietOption = False,
) -> Result:
    """Tokenise documents into shards for `train` (data.corpus=OUT); the same command resumes."""
    import torch

    from nadaraya.data import TokenShards, tokenize_corpus

    of_new = {"vocabulary": vocabulary, "sample_characters": sample_characters}
    of_digests = {"validation_fraction": validation_fraction}
    if tokenizer is not None:
        refuse_given("left out where --tokenizer is given", **of_new)
    if validation_documents is not None:
        refuse_given("left out where --validation-documents is given", **of_digests)
    given: Any = {name: value for name, value in (of_new | of_digests).items() if value is not None}
    train = tokenize_corpus(
        source,
        out,
        tokenizer=tokenizer,
        shard_tokens=shard_tokens,
        validation_documents=validation_documents,
        column=column,
        separator=separator.replace(r"\n", "\n"),
        workers=torch.get_num_threads() if workers is None else workers,
        progress=not quiet,
        **given,
    )
    parts = {"train": train, "validation": TokenShards(out, "validation", verify=False)}
    counts = {name: {"tokens": len(part), "documents": part.num_documents} for name, part in parts.items()}
    lines = [
        f"{name}: {part['tokens']:,} tokens of {part['documents']:,} documents"
        for name, part in counts.items()
    ]
    lines.append(f"train on them: nadaraya train demo data.corpus={out}")
    return Result({"shards": str(out), "sha256": train.sha256, **counts}, lines)


@command(data_app, "check")
def check(folder: Annotated[Path, typer.Argument(help="Folder of token shards.")]) -> Result:
    """Check every file of token shards against its digest; exits with status 2 if one is damaged."""
    from nadaraya.data import check_shards

    found = check_shards(folder)
    document = {"shards": str(folder), "damaged": found}
    if not found:
        return Result(document, [f"{folder}: every file is intact"])
    listed = ", ".join(f"{name} ({problem})" for name, problem in found.items())
    again = "the same `nadaraya data tokenize` command makes files anew"
    refusal = InputError(f"{folder} is damaged: {listed}; {again}")
    return Result(document, [], notes=[f"error: {refusal}"], status=2)

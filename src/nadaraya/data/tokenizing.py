"""Documents tokenised once, by several processes, into a folder of token shards.

Shard k has the documents from one place of the source to another, whatever the number of processes: the same
command makes the same bytes. A shard is complete or absent, so that a second run goes on after the last one,
and makes a damaged one anew.
"""

import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from nadaraya.data.documents import END, SEPARATOR, Documents, Place, open_documents
from nadaraya.data.encoding import Encoded, Encoder, tokenised
from nadaraya.data.shards import (
    MANIFEST,
    PARTS,
    TOKENIZER,
    Manifest,
    Shard,
    ShardFile,
    TokenShards,
    damaged,
    has_tokenizer,
    shard_name,
)
from nadaraya.data.tokenizer import check_token_bytes, tokenizer_from_file, train_byte_pair_tokenizer
from nadaraya.errors import InputError, must_be
from nadaraya.files import PARTIAL, check_utf8, remove_partial, sha256, write_file, write_into, writing

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_MOST, _MOST_WORKERS = 10**12, 1024  # of anything that is counted, and of processes
_LOCK = ".lock"
Part = Callable[[Place, str], str]  # that of a document


def tokenize_corpus(
    source: str | Path,
    folder: str | Path,
    *,
    tokenizer: str | Path | None = None,
    vocabulary: int = 32768,
    sample_characters: int = 100_000_000,
    shard_tokens: int = 100_000_000,
    validation_fraction: float = 0.01,
    validation_documents: int | None = None,
    column: str = "text",
    separator: str = SEPARATOR,
    workers: int = 1,
    progress: bool = False,
) -> TokenShards:
    """Tokenise documents once into a folder of token shards, or go on where an earlier call was stopped.

    The corpus need not fit in memory. A document goes to training or to validation by its own digest, so that
    equal documents are on the same side.

    Args:
        source: a .parquet or .jsonl file; any other file, as plain text; a folder, of which all .parquet,
            .jsonl and .txt files are read, however deep, in sorted order; or "hub:NAME",
            "hub:NAME:CONFIGURATION", "hub:NAME:CONFIGURATION:SPLIT" (default "train"), a data set of the
            Hugging Face hub, which is streamed.
        folder: the folder of shards, made when absent.
        tokenizer: a folder with the tokenizer.json of one of bytes and joined bytes, as those of GPT-2 and
            most later models, or of characters, that has an end-of-document token (`eos_token`). Documents
            begin with that one, so that in the folder of shards it is `bos_token` too. Default: byte pairs
            are found in the training documents.
        vocabulary: number of tokens of the byte pairs, default 32768.
        sample_characters: the most characters that the byte pairs are found in, as many from each file;
            default 1e8.
        shard_tokens: the most tokens of a file that has more than one document, default 1e8.
        validation_fraction: share of the documents that validate, default 0.01.
        validation_documents: the first so many documents validate, in place of the fraction; default none.
        column: of Parquet, or key of JSON, that holds the text; default "text".
        separator: what stands between the documents of a plain text, default "<|endoftext|>"; a text without
            is one document.
        workers: processes that tokenise, default 1: this one. With more, what a script does must stand under
            `if __name__ == "__main__":`, as each of them imports it.
        progress: show what is done and the time left on standard error.

    Returns:
        The training part.

    Raises:
        InputError: the source or an option cannot be used, one of the two parts would be empty, or the folder
            was begun with others. What was complete is kept.
        WriteFailed: the disk is full; what was complete is kept.

    >>> from pathlib import Path
    >>> from nadaraya.data import tokenize_corpus
    >>> _ = Path("poem.txt").write_text("Tyger Tyger<|endoftext|>burning bright<|endoftext|>In the forests")
    >>> tokenize_corpus("poem.txt", "shards", vocabulary=257, validation_documents=1)
    TokenShards('shards', 'train': 30 tokens of 2 documents)
    """
    from filelock import FileLock, Timeout
    from tqdm import tqdm

    for name, count, most in (
        ("shard_tokens", shard_tokens, _MOST),
        ("sample_characters", sample_characters, _MOST),
        ("workers", workers, _MOST_WORKERS),
        ("validation_documents", validation_documents, _MOST),
    ):
        if count is not None and not 1 <= count <= most:
            raise must_be(name, f"a positive integer of at most {most:,}", count)
    if not 0 < validation_fraction < 1:
        raise must_be("validation_fraction", "more than 0 and less than 1", validation_fraction)
    folder = Path(folder)
    check_utf8("separator", separator)
    check_utf8("the folder of shards", str(folder))
    begun = Manifest.read(folder).plan["source"] if (folder / MANIFEST).is_file() else None
    documents = open_documents(source, column=column, separator=separator, described=begun)
    part = _parts(documents, validation_fraction, validation_documents)
    if validation_documents is None:
        validates: dict[str, Any] = {"validation_fraction": validation_fraction}
    else:
        validates = {"validation_documents": validation_documents}
    if tokenizer is None:
        given = None
        pairs = {"tokenizer": "byte pairs", "vocabulary": vocabulary, "sample_characters": sample_characters}
    else:
        given = tokenizer_from_file(tokenizer)
        check_token_bytes(given)
        pairs = {"tokenizer": sha256(Path(tokenizer) / TOKENIZER)}
    if folder.exists():
        _check_folder(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    bar = tqdm(
        total=None if documents.part_read((0, 0)) is None else 1.0,
        bar_format="{desc} {percentage:3.0f}% |{bar}| {postfix} {remaining}",
        leave=False,
        disable=None if progress else True,  # None: off a terminal
    )
    try:
        with bar, FileLock(folder / _LOCK, timeout=0):
            remove_partial(folder)
            bar.set_description_str("reading the source")
            plan = {
                "source": documents.describe(),
                "column": column,
                "separator": separator,
                "shard_tokens": shard_tokens,
                **validates,
                **pairs,
            }
            manifest = _begun(folder, plan)
            if manifest is None or not has_tokenizer(folder, manifest):
                if given is None:
                    bar.set_description_str("finding byte pairs")
                    sample = documents.spread(sample_characters, lambda *document: part(*document) == "train")
                    given = train_byte_pair_tokenizer(sample, vocabulary, document_token=SEPARATOR)
                manifest = _begin(folder, plan, given, manifest)
            broken = damaged(folder, manifest, PARTS, digests=True)
            for name, problem in broken.items() if progress else ():
                bar.write(f"warning: {folder / name} is damaged ({problem}): it is made anew", sys.stderr)
            bar.set_description_str("tokenising")
            _tokenise(documents, part, folder, manifest, broken, workers, bar)
    except Timeout:
        raise InputError(f"{folder} is being written by another process: wait for it") from None
    return TokenShards(folder, verify=False)


def _parts(documents: Documents, fraction: float, first: int | None) -> Part:
    """Assign documents to parts: the first so many validate, or those whose digest is small.

    A source that leaves a part empty is refused, before anything is written.
    """
    training = None if first is None else next(islice(documents.read(), first, None), (END, ""))[0]

    def part(place: Place, text: str) -> str:
        if training is not None:
            return "validation" if place < training else "train"
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        return "validation" if int.from_bytes(digest[:8], "big") < fraction * 2**64 else "train"

    missing = set(PARTS)
    for document in documents.read():
        missing.discard(part(*document))
        if not missing:  # mostly after a few
            return part
    raise InputError(
        f"{documents.name} has no document for the part {' or '.join(map(repr, sorted(missing)))}: "
        "say how many validate, as by --validation-documents 1, or give another --validation-fraction"
    )


def _check_folder(folder: Path) -> None:
    """Refuse a folder of something else."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder")
    others = (item for item in folder.iterdir() if not item.name.startswith((PARTIAL, _LOCK)))
    if not (folder / MANIFEST).is_file() and any(others):
        raise InputError(f"{folder} has files in it and is not a folder of token shards: choose another one")


def _begun(folder: Path, plan: dict[str, Any]) -> Manifest | None:
    """The manifest of a folder that was begun by the same plan; None of an empty one."""
    if not (folder / MANIFEST).is_file():
        return None
    manifest = Manifest.read(folder)
    for key in sorted({*plan, *manifest.plan} - {"source"}):
        theirs, ours = manifest.plan.get(key), plan.get(key)
        if theirs != ours:
            raise InputError(
                f"{folder} was begun with {key} = {theirs!r}, not {ours!r}: choose another folder"
            )
    if manifest.plan["source"] != plan["source"]:
        different = _first_difference(manifest.plan["source"], plan["source"])
        raise InputError(f"{folder} was begun from another source ({different}): choose another folder")
    return manifest


def _first_difference(theirs: Any, ours: Any) -> str:
    files = [{file["name"]: file for file in source.get("files", [])} for source in (theirs, ours)]
    for name in dict.fromkeys(chain(*files)):
        if files[0].get(name) != files[1].get(name):
            return f"{name} was {'edited' if name in files[0] and name in files[1] else 'added or removed'}"
    return next(f"{key} was {theirs[key]}" for key in theirs if theirs[key] != ours.get(key))


def _begin(folder: Path, plan: Any, tokenizer: "PreTrainedTokenizerFast", begun: Manifest | None) -> Manifest:
    """Put the tokenizer into the folder, and the manifest of no shards where there is none."""
    number = tokenizer.eos_token_id
    if not isinstance(number, int):
        raise InputError("the tokenizer must have an end-of-document token (eos_token), got none")
    tokenizer.bos_token = tokenizer.eos_token
    with write_into(folder, TOKENIZER) as scratch:
        tokenizer.save_pretrained(scratch)
        made = Manifest(plan, sha256(scratch / TOKENIZER), len(tokenizer), number)
        if begun and begun.tokenizer_sha256 != made.tokenizer_sha256:
            raise InputError(
                f"{folder / TOKENIZER} is damaged, and comes out otherwise than it was: restore it"
            )
        if not begun:  # before the tokenizer: a folder with this alone is gone on with
            write_file(folder / MANIFEST, made.to_json())
    return begun or made


def _tokenise(
    documents: Documents,
    part: Part,
    folder: Path,
    manifest: Manifest,
    broken: Mapping[str, str],
    workers: int,
    bar: Any,
) -> None:
    """Make the shards that are damaged, then those that are absent, in order, and complete the manifest."""
    known = range(len(manifest.shards))
    begins = [(0, 0), *(shard.next for shard in manifest.shards), END]  # twice END after the last document
    anew = [number for number in known if any(shard_name(each, number) in broken for each in PARTS)]

    def assigned() -> Iterator[tuple[Place, str, str]]:
        for number in (*anew, len(known)):
            for place, text in documents.read(begins[number]):
                if place >= begins[number + 1]:
                    break
                yield place, part(place, text), text

    def encoded() -> Generator[Encoded]:
        tokens = 0
        for batch in tokenised(assigned(), Encoder(folder, manifest), workers):
            yield from batch
            tokens += sum(len(document.numbers) for document in batch) // manifest.dtype.itemsize
            bar.n = documents.part_read(batch[-1].place) or 0
            bar.set_postfix_str(f"{tokens:,} tokens")

    try:
        with closing(encoded()) as stream:
            following = pairwise(chain(stream, [None]))
            for number in anew:
                _make_shard(following, folder, number, manifest)
            while not manifest.shards or manifest.shards[-1].next != END:
                shard = _make_shard(following, folder, len(manifest.shards), manifest)
                manifest = replace(manifest, shards=(*manifest.shards, shard))
                write_file(folder / MANIFEST, manifest.to_json())
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise InputError(
            "a process that tokenises was killed, perhaps because memory ran out: run the same command "
            "again, with fewer workers; what was complete is kept. A script with workers=2 or more needs "
            '`if __name__ == "__main__":`'
        ) from None
    if not manifest.complete:
        write_file(folder / MANIFEST, replace(manifest, complete=True).to_json())


def _make_shard(stream: Any, folder: Path, number: int, manifest: Manifest) -> Shard:
    """Write documents, each with its follower, into one shard, until the next would make a file too large.

    A shard that the manifest has ends where it did, and must come out as it was.
    """
    known = manifest.shards[number] if number < len(manifest.shards) else None
    end, size = known.next if known else END, manifest.dtype.itemsize
    files: dict[str, IO[bytes]] = {}
    documents: Counter[str] = Counter()
    with write_into(folder, shard_name("train", number)) as scratch:
        with ExitStack() as opened:
            for document, following in stream:
                part = document.part
                if part not in files:
                    files[part] = opened.enter_context((scratch / shard_name(part, number)).open("wb"))
                files[part].write(document.numbers)
                documents[part] += 1
                if following is None or following.place >= end:
                    break
                file = files.get(following.part)
                if file and file.tell() + len(following.numbers) > manifest.plan["shard_tokens"] * size:
                    break
        made = {}
        for part in filter(files.__contains__, PARTS):
            path = scratch / shard_name(part, number)
            made[part] = ShardFile(path.stat().st_size // size, documents[part], sha256(path))
        shard = Shard(made, known.next if known else following.place if following else END)
        if known not in (None, shard):
            raise InputError(
                f"{folder / shard_name('train', number)} comes out otherwise than it was: the tokenizers "
                "library is another version; tokenise into another folder"
            )
    return shard

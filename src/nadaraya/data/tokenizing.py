"""Documents tokenised once, by several processes, into a folder of token shards.

Shard k has the documents from one place of the source to another, whatever the number of processes: the same
command makes the same bytes. A shard is complete or absent, so that a second run goes on after the last one,
and makes a damaged one anew.
"""

import hashlib
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from nadaraya.data.documents import END, SEPARATOR, Documents, Place, open_documents
from nadaraya.data.shards import (
    MANIFEST,
    PARTS,
    TOKENIZER,
    Manifest,
    Shard,
    ShardFile,
    TokenShards,
    damaged,
    read_tokenizer,
    shard_name,
)
from nadaraya.data.tokenizer import tokenizer_from_file, train_byte_pair_tokenizer
from nadaraya.errors import InputError, must_be
from nadaraya.files import PARTIAL, remove_partial, sha256, write_file, write_into, writing

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_BATCH = 500_000  # characters that a process tokenises at a time
_LOCK = ".lock"


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
        source: what `open_documents` takes: a file, a folder or "hub:NAME".
        folder: the folder of shards, made when absent.
        tokenizer: a folder with the tokenizer.json of one that has an end-of-document token (`eos_token`);
            default: byte pairs are found in the training documents.
        vocabulary: number of tokens of the byte pairs, default 32768.
        sample_characters: characters that the byte pairs are found in, taken from all files; default 1e8.
        shard_tokens: the most tokens of a file that has more than one document, default 1e8.
        validation_fraction: share of the documents that validate, default 0.01.
        validation_documents: the first so many documents validate, in place of the fraction; default none.
        column: of Parquet, or key of JSON, that holds the text; default "text".
        separator: what stands between the documents of a plain text, default "<|endoftext|>".
        workers: processes that tokenise, default 1: this one.
        progress: show what is done and the time left on standard error.

    Returns:
        The training part.

    Raises:
        InputError: the source or an option cannot be used, the folder was begun with others, or one of the
            two parts would be empty. What was complete is kept.
        WriteFailed: the disk is full; what was complete is kept.

    >>> from pathlib import Path
    >>> from nadaraya.data import tokenize_corpus
    >>> _ = Path("poem.txt").write_text("Tyger Tyger<|endoftext|>burning bright<|endoftext|>In the forests")
    >>> tokenize_corpus("poem.txt", "shards", vocabulary=257, validation_documents=1)
    TokenShards('shards', 'train': 30 tokens of 2 documents)
    """
    from filelock import FileLock, Timeout

    counts = {"shard_tokens": shard_tokens, "sample_characters": sample_characters, "workers": workers}
    if validation_documents is not None:
        counts["validation_documents"] = validation_documents
    for name, count in counts.items():
        if count < 1:
            raise must_be(name, "a positive integer", count)
    if not 0 < validation_fraction < 1:
        raise must_be("validation_fraction", "more than 0 and less than 1", validation_fraction)
    folder = Path(folder)
    documents = open_documents(source, column=column, separator=separator)
    split = _Split(documents, validation_fraction, validation_documents)
    given = None if tokenizer is None else tokenizer_from_file(tokenizer)
    if folder.exists():
        _check_folder(folder)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / _LOCK, timeout=0), _Shown(documents, progress) as shown:
            remove_partial(folder)
            shown.say("reading the source")
            plan = {
                "source": documents.describe(),
                "column": column,
                "separator": separator,
                "shard_tokens": shard_tokens,
                **split.plan(),
                "tokenizer": "byte pairs" if tokenizer is None else sha256(Path(tokenizer) / TOKENIZER),
                **(_pairs(vocabulary, sample_characters) if tokenizer is None else {}),
            }
            manifest = _begun(folder, plan)
            if manifest is None:
                made = given or _train(documents, split, vocabulary, sample_characters, shown)
                manifest = _begin(folder, plan, made)
            manifest = _tokenise(documents, split, folder, manifest, workers, shown)
    except Timeout:
        raise InputError(f"{folder} is being written by another process: wait for it") from None
    for part, documents_of in (("training", "train"), ("validation", "validation")):
        if not list(manifest.files(documents_of)):
            raise InputError(
                f"{folder} has no {part} document: choose another validation_fraction, or say the number of "
                "validation_documents, and another folder"
            )
    return TokenShards(folder, verify=False)


def _pairs(vocabulary: int, sample_characters: int) -> dict[str, int]:
    return {"vocabulary": vocabulary, "sample_characters": sample_characters}


class _Split:
    """Which documents validate: the first so many, or those whose digest is small."""

    def __init__(self, documents: Documents, fraction: float, first: int | None) -> None:
        self._fraction, self._first = fraction, first
        self._training: Place | None = None  # where it begins
        if first is not None:
            following = next(islice(documents.read(), first, None), None)
            self._training = following[0] if following else (sys.maxsize, 0)

    def plan(self) -> dict[str, Any]:
        if self._first is None:
            return {"validation_fraction": self._fraction}
        return {"validation_documents": self._first}

    def part(self, place: Place, text: str) -> str:
        if self._training is None:
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
            validates = int.from_bytes(digest[:8], "big") < self._fraction * 2**64
        else:
            validates = place < self._training
        return "validation" if validates else "train"


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
    read_tokenizer(folder, manifest)
    return manifest


def _first_difference(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    files = [{file["name"]: file for file in source.get("files", [])} for source in (theirs, ours)]
    for name in dict.fromkeys(chain(*files)):
        if files[0].get(name) != files[1].get(name):
            return f"{name} was {'edited' if name in files[0] and name in files[1] else 'added or removed'}"
    return next(f"{key} was {theirs[key]}" for key in theirs if theirs[key] != ours.get(key))


def _begin(folder: Path, plan: dict[str, Any], tokenizer: "PreTrainedTokenizerFast") -> Manifest:
    """Put the tokenizer, which must have a document token, into the folder, and the manifest of no shards."""
    number = tokenizer.eos_token_id
    if not isinstance(number, int):
        raise InputError("the tokenizer must have an end-of-document token (eos_token), got none")
    with write_into(folder, TOKENIZER) as scratch:
        tokenizer.save_pretrained(scratch)
    manifest = Manifest(plan, sha256(folder / TOKENIZER), len(tokenizer), number)
    write_file(folder / MANIFEST, manifest.to_json())
    return manifest


def _train(
    documents: Documents, split: _Split, vocabulary: int, size: int, shown: "_Shown"
) -> "PreTrainedTokenizerFast":
    """Byte pairs of training documents of about so many characters."""
    shown.say("finding byte pairs")
    sample = (text for place, text in documents.spread(size) if split.part(place, text) == "train")
    return train_byte_pair_tokenizer(sample, vocabulary, document_token=SEPARATOR)


def _tokenise(
    documents: Documents, split: _Split, folder: Path, manifest: Manifest, workers: int, shown: "_Shown"
) -> Manifest:
    """Make the shards that are damaged, then those that are absent, in order, and complete the manifest."""
    broken = damaged(folder, manifest, PARTS, digests=True)
    for name, problem in broken.items():
        shown.warn(f"{folder / name} is damaged ({problem}): it is made anew")
    begins = [(0, 0), *(shard.next for shard in manifest.shards)]
    with _encoding(folder, manifest, workers) as encode:

        def stream(begin: Place) -> _Stream:
            return _Stream(_encoded(documents, split, begin, encode, 2 * workers, shown))

        for number, shard in enumerate(manifest.shards):
            if any(shard_name(part, number) in broken for part in PARTS):
                _make_shard(stream(begins[number]), folder, number, manifest, expected=shard)
        if manifest.complete:
            return manifest
        rest = stream(begins[-1])
        while rest.head is not None:
            shard = _make_shard(rest, folder, len(manifest.shards), manifest)
            manifest = replace(manifest, shards=(*manifest.shards, shard))
            write_file(folder / MANIFEST, manifest.to_json())
    manifest = replace(manifest, complete=True)
    write_file(folder / MANIFEST, manifest.to_json())
    return manifest


@dataclass(frozen=True)
class _Encoded:
    """A document: where it stands in the source, the part that it belongs to, and its token numbers."""

    place: Place
    part: str
    numbers: np.ndarray


class _Stream:
    """Documents of which the next one, `head`, can be looked at; None after the last."""

    def __init__(self, documents: Iterator[_Encoded]) -> None:
        self._documents = documents
        self.take()

    def take(self) -> None:
        self.head = next(self._documents, None)


def _make_shard(
    stream: _Stream, folder: Path, number: int, manifest: Manifest, expected: Shard | None = None
) -> Shard:
    """Write the next documents into the files of one shard, until one of them would have too many tokens."""
    most: int = manifest.plan["shard_tokens"]
    files: dict[str, _ShardWriter] = {}
    with write_into(folder, shard_name("train", number)) as scratch:
        with ExitStack() as opened:
            while (document := stream.head) is not None:
                file = files.get(document.part)
                if file and file.tokens + len(document.numbers) > most:
                    break
                if not file:
                    path = scratch / shard_name(document.part, number)
                    file = files[document.part] = _ShardWriter(opened.enter_context(path.open("wb")))
                file.write(document.numbers)
                stream.take()
        shard = Shard(
            {part: files[part].content() for part in PARTS if part in files},
            stream.head.place if stream.head else END,
        )
        if expected not in (None, shard):
            raise InputError(
                f"{folder / shard_name('train', number)} comes out otherwise than it was: the tokenizers "
                "library is another version; tokenise into another folder"
            )
    return shard


class _ShardWriter:
    """Writes documents into one file, and counts them."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._digest = stream, hashlib.sha256()
        self.tokens = self._documents = 0

    def write(self, numbers: np.ndarray) -> None:
        data = numbers.tobytes()
        self._stream.write(data)
        self._digest.update(data)
        self.tokens += len(numbers)
        self._documents += 1

    def content(self) -> ShardFile:
        return ShardFile(self.tokens, self._documents, self._digest.hexdigest())


_Result = tuple[
    np.ndarray, list[int]
]  # numbers of documents one after another, and where each but the last ends
_Encode = Callable[[list[str]], Callable[[], _Result]]


def _encoded(
    documents: Documents, split: _Split, begin: Place, encode: _Encode, ahead: int, shown: "_Shown"
) -> Iterator[_Encoded]:
    """The documents from a place on, tokenised, in order; some batches are on their way at a time."""
    waiting: deque[tuple[list[tuple[Place, str]], Callable[[], _Result]]] = deque()

    def oldest() -> Iterator[_Encoded]:
        batch, result = waiting.popleft()
        try:
            numbers, ends = result()
        except BrokenProcessPool:
            raise InputError(
                "a process that tokenises was killed, perhaps because memory ran out: run the same command "
                "again, with fewer workers; what was complete is kept"
            ) from None
        for (place, part), of_one in zip(batch, np.split(numbers, ends), strict=True):
            yield _Encoded(place, part, of_one)
        shown.at(batch[-1][0], len(numbers))

    for batch in _batches(documents.read(begin)):
        texts = [text for _, text in batch]
        waiting.append(([(place, split.part(place, text)) for place, text in batch], encode(texts)))
        if len(waiting) > ahead:
            yield from oldest()
    while waiting:
        yield from oldest()


def _batches(documents: Iterator[tuple[Place, str]]) -> Iterator[list[tuple[Place, str]]]:
    batch, size = [], 0
    for place, text in documents:
        batch.append((place, text))
        size += len(text)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class _Encoder:
    """Texts to token numbers, the document token before each."""

    def __init__(self, folder: Path, document_token: int, dtype: str) -> None:
        self._tokenizer = tokenizer_from_file(folder).backend_tokenizer
        self._tokenizer.encode_special_tokens = True  # what stands for one in a text is text
        self._document_token, self._dtype = document_token, dtype

    def __call__(self, texts: list[str]) -> _Result:
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        numbers = [np.array([self._document_token, *one.ids], dtype=self._dtype) for one in encoded]
        if any((one[1:] == self._document_token).any() for one in numbers):
            raise InputError("the tokenizer reads a part of a document as the token that begins documents")
        return np.concatenate(numbers), np.cumsum([len(one) for one in numbers])[:-1].tolist()


_encoder: _Encoder  # that of a process of the pool


@contextmanager
def _encoding(folder: Path, manifest: Manifest, workers: int) -> Iterator[_Encode]:
    """How texts are tokenised: here when their result is asked for, or ahead in other processes."""
    needed = (folder, manifest.document_token, manifest.dtype.str)
    if workers == 1:
        encoder = _Encoder(*needed)
        yield lambda texts: partial(encoder, texts)
        return
    # Forked processes may hang in the threads of tokenizers and torch that were not copied.
    spawning = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, spawning, initializer=_start_process, initargs=needed)
    try:
        yield lambda texts: pool.submit(_encode, texts).result
    finally:
        pool.shutdown(cancel_futures=True)


def _start_process(*needed: Any) -> None:
    global _encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are what is parallel
    _encoder = _Encoder(*needed)


def _end_with_parent() -> None:
    """A parent that is killed tells nobody, and this process would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _encode(texts: list[str]) -> _Result:
    return _encoder(texts)


class _Shown:
    """Progress on standard error: a bar, tokens so far, the time left."""

    def __init__(self, documents: Documents, enabled: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        self._documents, self._tokens, self._enabled = documents, 0, enabled
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[tokens]:,} tokens"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not enabled,
        )
        self._line = self._bar.add_task("", total=None, tokens=0)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        self._bar.update(self._line, description=text)

    def warn(self, text: str) -> None:
        if self._enabled:
            self._console.print(f"warning: {text}", markup=False)

    def at(self, place: Place, tokens: int) -> None:
        self._tokens += tokens
        done = self._documents.part_read(place)
        if done is not None:
            self._bar.update(self._line, completed=done, total=1.0)
        self._bar.update(self._line, description="tokenising", tokens=self._tokens)

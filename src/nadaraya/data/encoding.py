"""Texts to token numbers, here or in other processes: the same numbers for any number of them."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from nadaraya.data.documents import Place
from nadaraya.data.shards import TOKENIZER, Manifest
from nadaraya.data.textfile import one_line
from nadaraya.errors import InputError

_BATCH = 500_000  # characters that a process tokenises at a time


class Encoded(NamedTuple):
    """A document: its place in the source, the part that it belongs to, and its token numbers."""

    place: Place
    part: str
    numbers: bytes


class Encoder(Dataset):
    """Texts to token numbers, the document token before each; errors are returned: those raised grow long."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._file, self._dtype = folder / TOKENIZER, manifest.dtype
        self._document_token = manifest.document_token

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer  # without transformers, which takes seconds in every process

        if get_worker_info():
            os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are what is parallel
        with one_line(str(self._file), "as a tokenizer"):
            tokenizer = Tokenizer.from_file(str(self._file))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True  # what stands for one in a text is text
        return tokenizer

    def __getitem__(self, texts: list[str]) -> list[bytes] | InputError:
        try:
            with one_line("a document", "by this tokenizer"):
                encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except InputError as error:
            return error
        numbers = [np.array([self._document_token, *one.ids], self._dtype) for one in encoded]
        if any((one[1:] == self._document_token).any() for one in numbers):
            return InputError("the tokenizer reads a part of a document as the token that begins documents")
        return [one.tobytes() for one in numbers]


def tokenised(
    documents: Iterable[tuple[Place, str, str]], encoder: Encoder, workers: int
) -> Iterator[list[Encoded]]:
    """Documents (place, part, text) with their token numbers, some at a time, in order."""
    waiting: deque[list[tuple[Place, str]]] = deque()  # of batches that are on their way

    def batches() -> Iterator[list[str]]:
        places, texts, size = [], [], 0
        for place, part, text in documents:
            places.append((place, part))
            texts.append(text)
            size += len(text)
            if size >= _BATCH:
                waiting.append(places)
                yield texts
                places, texts, size = [], [], 0
        if texts:
            waiting.append(places)
            yield texts

    loader: DataLoader = DataLoader(
        encoder,
        batch_size=None,
        sampler=batches(),
        num_workers=0 if workers == 1 else workers,
        # Forked processes may hang in the threads of tokenizers and torch that were not copied.
        multiprocessing_context=None if workers == 1 else "spawn",
        # Without a generator of its own it would draw a number from the global one.
        generator=torch.Generator(),
    )
    for numbers in loader:
        if isinstance(numbers, InputError):
            raise numbers
        yield [Encoded(*place, own) for place, own in zip(waiting.popleft(), numbers, strict=True)]

"""Texts to token numbers, here or in other processes: the same numbers for any number of them."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nadaraya.data.shards import TOKENIZER, Manifest
from nadaraya.data.textfile import one_line
from nadaraya.errors import InputError

Result = tuple[np.ndarray, list[int]]  # the numbers of documents in a row, and where all but the last end
Encode = Callable[[list[str]], Callable[[], Result]]


class Encoder:
    """Texts to token numbers, the document token before each."""

    def __init__(self, folder: Path, document_token: int, dtype: str) -> None:
        from tokenizers import Tokenizer  # without transformers, which takes seconds in every process

        with one_line(str(folder / TOKENIZER), "as a tokenizer"):
            self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True  # what stands for one in a text is text
        self._document_token, self._dtype = document_token, dtype

    def __call__(self, texts: list[str]) -> Result:
        with one_line("a document", "by this tokenizer"):
            encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        numbers = [np.array([self._document_token, *one.ids], dtype=self._dtype) for one in encoded]
        if any((one[1:] == self._document_token).any() for one in numbers):
            raise InputError("the tokenizer reads a part of a document as the token that begins documents")
        return np.concatenate(numbers), np.cumsum([len(one) for one in numbers])[:-1].tolist()


_encoder: Encoder  # that of a process of the pool


@contextmanager
def encoding(folder: Path, manifest: Manifest, workers: int) -> Iterator[Encode]:
    """How texts are tokenised: here when their result is asked for, or ahead in other processes."""
    needed = (folder, manifest.document_token, manifest.dtype.str)
    if workers == 1:
        encoder = Encoder(*needed)
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
    _encoder = Encoder(*needed)


def _end_with_parent() -> None:
    """A parent that is killed tells nobody, and this process would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _encode(texts: list[str]) -> Result:
    return _encoder(texts)

"""The heads and items of one call divided among threads on the CPU.

A row block is a dozen operators on a few megabytes. Each of them would wait for the slowest of PyTorch's
threads, which costs a third of the time on an idle machine and most of it on a busy one. Parts that do not
depend on each other, on a thread each, wait once.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

Part = tuple[slice, slice]  # items of the batch, heads
_T = TypeVar("_T")

_LEAST_SCORES = 2**23  # fewer are done while PyTorch's own threads still spin for their next operator


def whole(batch: int, heads: int) -> Part:
    """All items and heads."""
    return slice(0, batch), slice(0, heads)


def part_of(tensor: Tensor, indices: tuple[slice, ...]) -> Tensor:
    """Some items, heads, rows … of a tensor, whose dimensions of 1 serve all; a view."""
    pairs = zip(indices, tensor.shape, strict=False)
    return tensor[tuple(place if size > 1 else slice(None) for place, size in pairs)]


def partition(batch: int, heads: int, scores: int, device: torch.device) -> list[Part]:
    """Parts of the items or of the heads, one for each thread at most; one part where that would not pay.

    Args:
        batch: B.
        heads: H.
        scores: pairs of one head of one item.
        device: of the tensors.
    """
    count = torch.get_num_threads()
    if device.type != "cpu" or count == 1 or batch * heads * scores < _LEAST_SCORES:
        return [whole(batch, heads)]
    # Whichever leaves the largest part smallest; where equal, items: all of their heads lie together.
    if -(-batch // count) * heads <= -(-heads // count) * batch:
        return [(part, slice(0, heads)) for part in _parts(batch, count)]
    return [(slice(0, batch), part) for part in _parts(heads, count)]


def subparts(part: Part, pairs: int, num_heads: int) -> Iterator[Part]:
    """Parts of at most so many pairs of an item and a head, whose pairs lie in memory at equal distances.

    That is: all of the `num_heads` heads of several items, or some of one.
    """
    every_item, every_head = part
    heads = every_head.stop - every_head.start
    items, group = max(1, pairs // heads) if heads == num_heads else 1, min(heads, pairs)
    for item in range(every_item.start, every_item.stop, items):
        for head in range(every_head.start, every_head.stop, group):
            last_item, last_head = min(every_item.stop, item + items), min(every_head.stop, head + group)
            yield slice(item, last_item), slice(head, last_head)


def work_on(parts: list[Part], work: Callable[[Part], _T]) -> list[_T]:
    """Results of `work` for every part, in their order; without gradients."""
    if len(parts) == 1:
        return [work(parts[0])]
    pool = _pool(os.getpid(), len(parts), max(1, torch.get_num_threads() // len(parts)))
    # What a thread does not inherit; tensors of inference mode are written in it alone.
    mode = torch.inference_mode if torch.is_inference_mode_enabled() else torch.no_grad
    return list(pool.map(mode()(work), parts))


@lru_cache(maxsize=4)
def _pool(process: int, count: int, threads: int) -> ThreadPoolExecutor:
    """A process that was forked has none of its parent's threads, so it makes its own."""
    return ThreadPoolExecutor(count, "nadaraya", initializer=_limit_threads, initargs=(threads,))


def _limit_threads(threads: int) -> None:
    """Operators of the calling thread take so many threads.

    `torch.set_num_threads` also tells MKL, for the whole process and for good, not to choose its number of
    threads by itself, which slows PyTorch's attention of short sequences down.
    """
    torch.get_num_threads()  # a new thread takes over the number of the process, here and not later
    with suppress(OSError, AttributeError):  # another library than OpenMP
        ctypes.CDLL(torch._C.__file__).omp_set_num_threads(threads)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def _parts(size: int, count: int) -> list[slice]:
    count = min(size, count)
    bounds = [size * part // count for part in range(count + 1)]
    return [slice(first, last) for first, last in pairwise(bounds)]

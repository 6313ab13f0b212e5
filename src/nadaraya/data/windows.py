"""Windows of a long sequence, a function of the seed and the update alone: resuming needs no state.

Of a text in memory a batch has windows at random indices. Of token shards, the n − 1 tokens that follow
another one are the targets of an epoch. They are cut into windows of `context` targets each, of which the
last reaches back where they do not divide: what it shares with the window before it is context there and no
target. Every epoch takes all windows once, in an order of its own, and a batch goes on where the one before
it ended, from one epoch to the next: no target is left out and none comes twice.
"""

from collections.abc import Sized
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from nadaraya.data.shards import TokenShards
from nadaraya.errors import InputError, must_be

IGNORED = -100  # a target that is not learned, as cross_entropy has it
# Independent streams of random numbers; dropout has that of 1, images those between.
_BATCH, _ORDER = 0, 6


def check_length(tokens: Sized, context: int, part: str) -> None:
    """Refuse a text, "training" or "validation", in which not one window and its targets fits."""
    if len(tokens) <= context:
        raise InputError(
            f"the {part} text has {len(tokens)} tokens, shorter than one window of data.context = {context} "
            "and its next token: give more text or a smaller context"
        )


def windows_at(tokens: Tensor | TokenShards, starts: Tensor, length: int) -> Tensor:
    """(n, length) token numbers from each of n indices on."""
    if isinstance(tokens, Tensor):
        return tokens[starts[:, None] + torch.arange(length)]
    return tokens.tokens(starts.tolist(), length)


def training_batch(
    tokens: Tensor, context: int, batch_size: int, seed: int, step: int
) -> tuple[Tensor, Tensor]:
    """Windows at random indices of (n,) tokens, n > context: inputs and their next tokens, (B, context)."""
    generator = np.random.default_rng([seed, step, _BATCH])
    starts = generator.integers(0, len(tokens) - context, size=batch_size)
    rows = windows_at(tokens, torch.from_numpy(starts), context + 1)
    return rows[:, :-1], rows[:, 1:]


def spread_windows(tokens: Tensor | TokenShards, length: int, count: int) -> Tensor:
    """(count, length) token numbers, evenly spaced from the first window to the last, or all windows."""
    last = len(tokens) - length
    starts = torch.linspace(0, last, min(count, last + 1), dtype=torch.float64).long().unique()
    return windows_at(tokens, starts, length)


def spaced_numbers(total: int, count: int) -> np.ndarray:
    """`count` numbers from 0 to total − 1, evenly spaced, both ends among them; all where there are fewer."""
    return np.unique(np.linspace(0, total - 1, min(count, total)).round().astype(np.int64))


def num_windows(num_tokens: int, context: int) -> int:
    """Windows in one epoch of a sequence, ⌈(num_tokens − 1) / context⌉; an InputError where not one fits."""
    if not 0 < context < num_tokens:
        raise must_be("context", f"from 1 to {num_tokens - 1}, one less than there are tokens", context)
    return -(-(num_tokens - 1) // context)


def window_numbers(count: int, batch_size: int, seed: int, update: int) -> np.ndarray:
    """The windows of one update, counted from 1, of all processes: (batch_size,) from 0 to count − 1."""
    indices = np.arange((update - 1) * batch_size, update * batch_size)
    numbers = np.empty(batch_size, dtype=np.int64)
    for epoch in range(int(indices[0]) // count, int(indices[-1]) // count + 1):
        inside = indices // count == epoch
        numbers[inside] = _permutation(count, seed, epoch)[indices[inside] % count]
    return numbers


@lru_cache(maxsize=2)
def _permutation(count: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch, _ORDER]).permutation(count)


def read_windows(shards: TokenShards, numbers: np.ndarray, context: int) -> tuple[Tensor, Tensor]:
    """The inputs and targets, (n, context) each, of n windows by their numbers.

    A target is the token after its input; −100 where another window has it.
    """
    last = shards.num_tokens - context - 1
    wanted = np.asarray(numbers, dtype=np.int64) * context
    starts = np.minimum(wanted, last)
    rows = shards.tokens(starts.tolist(), context + 1)
    inputs, targets = rows[:, :-1], rows[:, 1:].clone()
    shared = torch.from_numpy(wanted - starts)  # targets of the window before
    targets[torch.arange(context) < shared[:, None]] = IGNORED
    return inputs, targets


def document_positions(tokens: Tensor, document_token: int) -> Tensor:
    """Position of every token in its own document, counted from the row's first token or the document's.

    (B, N) as the tokens are: the `position_ids` by which `KernelGPTModel` keeps packed documents apart.
    """
    indices = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    begins = torch.where(tokens == document_token, indices, 0).cummax(dim=1).values
    return indices - begins

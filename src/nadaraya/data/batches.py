"""Windows of a text in memory; a batch depends on the seed and the step alone: resuming needs no state."""

from collections.abc import Sized

import numpy as np
import torch
from torch import Tensor

from nadaraya.errors import InputError

_BATCH = 0  # an independent stream of random numbers; dropout has that of 1


def check_length(tokens: Sized, context: int, part: str) -> None:
    """Refuse a text, "training" or "validation", in which not one window and its targets fits."""
    if len(tokens) <= context:
        raise InputError(
            f"the {part} text has {len(tokens)} tokens, shorter than one window of data.context = {context} "
            "and its next token: give more text or a smaller context"
        )


def training_batch(
    tokens: Tensor, context: int, batch_size: int, seed: int, step: int
) -> tuple[Tensor, Tensor]:
    """Windows at random places of (n,) tokens, n > context: inputs and their next tokens, (B, context)."""
    generator = np.random.default_rng([seed, step, _BATCH])
    starts = generator.integers(0, len(tokens) - context, size=batch_size)
    return windows_at(tokens, torch.from_numpy(starts), context)


def validation_sample(tokens: Tensor, context: int, count: int) -> tuple[Tensor, Tensor]:
    """The same windows every time, evenly spaced from the first to the last one of the text.

    `count` of them, or fewer when the text has fewer places to start: (count, context) inputs and targets.
    """
    last = len(tokens) - context - 1
    starts = torch.linspace(0, last, min(count, last + 1), dtype=torch.float64).long().unique()
    return windows_at(tokens, starts, context)


def spaced_numbers(total: int, count: int) -> np.ndarray:
    """`count` numbers from 0 to total − 1, evenly spaced, both ends among them; all where there are fewer."""
    return np.unique(np.linspace(0, total - 1, min(count, total)).round().astype(np.int64))


def windows_at(tokens: Tensor, starts: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Position t of a window, which begins at one of `starts`, predicts position t + 1 of the text."""
    span = tokens[starts[:, None] + torch.arange(context + 1)]  # (B, context + 1)
    return span[:, :-1], span[:, 1:]

"""Windows of tokens; a batch depends on the seed and the step alone, so that resuming needs no state."""

import numpy as np
import torch
from torch import Tensor

from nadaraya.errors import InputError

_BATCH, _TORCH = 0, 1  # what a (seed, step) pair is used for: independent streams


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """The seed of torch's own generator (dropout) at one step of the run, in the process of this rank.

    It is independent of those of other steps and processes, and of the batch.
    """
    stream = [seed, step, _TORCH, rank] if rank else [seed, step, _TORCH]
    return int(np.random.SeedSequence(stream).generate_state(1, np.uint64)[0] >> 1)


def check_length(tokens: Tensor, context: int, part: str) -> None:
    """Refuse a text in which not one window of `context` inputs and their targets fits.

    Args:
        tokens: (n,) token ids.
        context: inputs in a window.
        part: what the text is, for the message ("training", "validation").

    Raises:
        InputError: n <= context, with both numbers.
    """
    if len(tokens) <= context:
        raise InputError(
            f"the {part} text has {len(tokens)} tokens, shorter than one window of data.context = {context} "
            "and its next token: give more text or a smaller context"
        )


def training_batch(
    tokens: Tensor, context: int, batch_size: int, seed: int, step: int
) -> tuple[Tensor, Tensor]:
    """Windows at random places: the same for the same seed and step, whatever was drawn before.

    Args:
        tokens: (n,) token ids, n > context.
        context: inputs in a window.
        batch_size: windows B.
        seed: seed of the run, >= 0.
        step: number of the update, >= 0.

    Returns:
        Inputs and targets, (B, context) each; every position has a target, the next token.
    """
    generator = np.random.default_rng([seed, step, _BATCH])
    starts = generator.integers(0, len(tokens) - context, size=batch_size)
    return _windows(tokens, torch.from_numpy(starts), context)


def validation_sample(tokens: Tensor, context: int, count: int) -> tuple[Tensor, Tensor]:
    """The same windows every time, evenly spaced from the first to the last one of the text.

    `count` of them, or fewer when the text has fewer places to start: (count, context) inputs and targets.
    """
    last = len(tokens) - context - 1
    starts = torch.linspace(0, last, count, dtype=torch.float64).long().unique()
    return _windows(tokens, starts, context)


def _windows(tokens: Tensor, starts: Tensor, context: int) -> tuple[Tensor, Tensor]:
    """Position t of a window, which begins at one of `starts`, predicts position t + 1 of the text."""
    span = tokens[starts[:, None] + torch.arange(context + 1)]  # (B, context + 1)
    return span[:, :-1], span[:, 1:]

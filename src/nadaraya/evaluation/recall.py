"""Recall by distance: does a model repeat what it saw once, so many tokens ago?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nadaraya.data import TokenShards
from nadaraya.data.windows import windows_at
from nadaraya.errors import check_at_least, must_be
from nadaraya.evaluation.language import predict


@dataclass(frozen=True)
class Recall:
    """Recall of a model at one distance."""

    distance: int  # from a token to its repetition, in tokens
    accuracy: float  # share of the repeated tokens, after the cue, that get the largest logit
    error: float | None  # its standard error over rows; None for a single one
    cross_entropy: float  # of these tokens, in nats/token; ln of `alphabet` without any recall
    alphabet: int  # number of tokens that random spans are drawn from


def recall_by_distance(
    model: nn.Module,
    tokens: Tensor | TokenShards,
    distances: Sequence[int],
    *,
    span: int = 16,
    cue: int = 4,
    rows: int = 64,
    seed: int = 0,
    batch_tokens: int = 16_384,
) -> tuple[Recall, ...]:
    """Show a model random tokens, a text, and the first of the random tokens again: does it give the others?

    A row is `span` tokens of the text, `span` random ones, text up to the distance, and the random ones once
    more. Nothing but the first occurrence tells those after the cue, so that a loss below ln(alphabet) is
    use of what lies that far back. The text, which would hide recall in a perplexity, is not predicted.

    Args:
        model: as in `evaluate_text`.
        tokens: (n,) token ids of a text, or shards, whose documents are read as one text; random tokens are
            drawn from those that it has here.
        distances: tokens between an occurrence and the other, each at least `span`.
        span: random tokens. Default 16.
        cue: tokens of the repetition that are not counted. Default 4.
        rows: for each distance. Default 64.
        seed: of the random tokens. Default 0.
        batch_tokens: rows at a time have at most so many tokens, or are one. Default 16,384.

    Returns:
        One for each distance, in the order given.

    Raises:
        InputError: a number out of range, or a text that is too short.

    >>> import torch
    >>> from nadaraya.evaluation import recall_by_distance
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo"))
    >>> [found.alphabet for found in recall_by_distance(model, torch.arange(93), [16, 32], rows=2)]
    [93, 93]
    """
    check_at_least(2, span=span)
    if not 0 < cue < span:
        raise must_be("cue", f"from 1 to {span - 1}, below span", cue)
    check_at_least(1, rows=rows)
    if not distances or min(distances) < span:
        raise must_be("distances", f"whole numbers of at least {span}, the span", list(distances))
    longest = max(distances) + 2 * span
    if (there := len(tokens)) < longest:
        accepted = f"at most {there - 2 * span:,} in a text of {there:,} tokens"
        raise must_be("distances", accepted, max(distances))
    places = torch.linspace(0, there - longest, rows, dtype=torch.float64).long()
    text = windows_at(tokens, places, longest).long()
    if isinstance(tokens, TokenShards):  # a model that keeps documents apart sees nothing across their border
        border = text == tokens.document_token
        text = text.masked_fill(border, int(text[~border][0]))
    alphabet = text.unique()
    generator = torch.Generator().manual_seed(seed)
    random = alphabet[torch.randint(len(alphabet), (rows, span), generator=generator)]
    found = []
    for distance in distances:
        inputs = text[:, : distance + 2 * span].clone()
        inputs[:, span : 2 * span] = inputs[:, -span:] = random
        batches = inputs.split(max(1, batch_tokens // inputs.shape[1]))
        logits = torch.cat([predict(model, rows)[:, -1 - span + cue : -1].float().cpu() for rows in batches])
        targets = random[:, cue:]
        right = (logits.argmax(-1) == targets).double().mean(1)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
        error = (right.std() / math.sqrt(rows)).item() if rows > 1 else None
        found.append(Recall(distance, right.mean().item(), error, loss, len(alphabet)))
    return tuple(found)

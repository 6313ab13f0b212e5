"""Which tokens of a prompt are scored, their losses in batches, and what is decided from them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nadaraya.errors import InputError
from nadaraya.evaluation.core.prompts import core_prompts, few_shot_rows
from nadaraya.evaluation.core.tasks import OPTIONS, CoreTask, Row
from nadaraya.evaluation.language import encoded, evaluating, rows_at_a_time

EXAMPLES = 64  # examples whose prompts are sorted by length together


class Decision(NamedTuple):
    """The option that each rule takes.

    Args:
        core: CORE's rule: the lowest mean loss over the tokens in which the options differ.
        acc: lm-eval's `acc`: the highest log-likelihood of the ending, a sum.
        acc_norm: lm-eval's `acc_norm`: the same divided by the option's number of characters.

    For language modelling all three are 0 when every token of the ending is the likeliest one, else −1.

    >>> from nadaraya.evaluation.core import Decision
    >>> Decision(core=1, acc=0, acc_norm=1).core
    1
    """

    core: int
    acc: int
    acc_norm: int


@dataclass(frozen=True)
class Scored:
    """The tokens of one prompt and where scoring starts.

    Args:
        tokens: all that the model reads, the beginning-of-text token first where the tokenizer has one.
        start: index of the first token that CORE's rule scores.
        ending: index of the first token after the context's own, where lm-eval scores from.
    """

    tokens: list[int]
    start: int
    ending: int

    @property
    def first(self) -> int:
        """Where either begins; nothing predicts the token at 0."""
        return max(1, min(self.start, self.ending))

    def cropped(self, context: int) -> "Scored":
        """The last `context` tokens, as the reference keeps them."""
        cut = max(0, len(self.tokens) - context)
        return Scored(self.tokens[cut:], max(0, self.start - cut), max(0, self.ending - cut))


class Losses(NamedTuple):
    """Of the tokens from `Scored.first` on: nats (n,), and whether all of CORE's are the likeliest ones."""

    nats: Tensor
    greedy: bool


def scored_prompts(task: CoreTask, rows: list[Row], index: int, tokenizer: Any) -> list[Scored]:
    """Tokens of an example's prompts: scored are those after the common beginning or in the common end."""
    prompts = core_prompts(task, rows[index], few_shot_rows(rows, index, task.shots))
    try:
        tokens = [encoded(tokenizer, prompt.text).tolist() for prompt in prompts]
        contexts = [encoded(tokenizer, prompt.context.rstrip()).tolist() for prompt in prompts]
    except InputError as error:
        raise InputError(
            f"{task.label}: {error}; tokenizers of bytes or byte pairs know every text"
        ) from None
    if task.kind == "schema":
        same = _common([sequence[::-1] for sequence in tokens])
        starts = [len(sequence) - same for sequence in tokens]
    else:
        starts = [_common(tokens if task.kind == "multiple_choice" else [tokens[0], contexts[0]])] * len(
            tokens
        )
    return [Scored(*parts) for parts in zip(tokens, starts, map(len, contexts), strict=True)]


def decide(kind: str, options: Sequence[tuple[Scored, Losses]], row: Row) -> Decision:
    """The decisions of one example."""
    if kind == "language_modeling":
        return Decision(*[0 if options[0][1].greedy else -1] * 3)
    # An option that begins all others has no token of its own. Its mean is NaN, which Python's `min` takes
    # when it comes first and never otherwise; so does the reference.
    means = [found.nats[max(item.start, 1) - item.first :].mean().item() for item, found in options]
    sums = [found.nats[max(item.ending, 1) - item.first :].sum().item() for item, found in options]
    per_character = [nats / len(option) for nats, option in zip(sums, row[OPTIONS[kind]], strict=True)]
    return Decision(*(costs.index(min(costs)) for costs in (means, sums, per_character)))


@torch.no_grad()
def token_losses(
    model: nn.Module, examples: Iterable[Sequence[Scored]], context: int, batch_size: int
) -> Iterator[list[tuple[Scored, Losses]]]:
    """Losses of every prompt of each example, in their order; prompts of like length share a batch."""
    remaining = iter(examples)
    while group := list(islice(remaining, EXAMPLES)):
        prompts = [prompt.cropped(context) for example in group for prompt in example]
        order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i].tokens))
        found: dict[int, Losses] = {}
        while order:
            longest = len(prompts[order[0]].tokens)
            rows = rows_at_a_time(model, longest, batch_size)
            now, order = order[:rows], order[rows:]
            found |= zip(now, _batch_losses(model, [prompts[i] for i in now]), strict=True)
        results = iter((prompt, found[i]) for i, prompt in enumerate(prompts))
        for example in group:
            yield [next(results) for _ in example]


def _batch_losses(model: nn.Module, prompts: list[Scored]) -> list[Losses]:
    """Padded on the right: no token attends to what comes after it, so that no mask is needed."""
    device = next(model.parameters()).device
    inputs = torch.nn.utils.rnn.pad_sequence([torch.tensor(p.tokens) for p in prompts], batch_first=True)
    with evaluating(model):
        logits: Any = model(input_ids=inputs.to(device), use_cache=False).logits  # (B, N, V)
    scored = [row[p.first - 1 : len(p.tokens) - 1] for row, p in zip(logits, prompts, strict=True)]
    targets = torch.tensor([token for p in prompts for token in p.tokens[p.first :]], dtype=torch.long)
    predicted = torch.cat(scored).float()  # (all scored tokens, V): one transfer from the device for all
    nats = F.cross_entropy(predicted, targets.to(device), reduction="none").cpu()
    if nats.isnan().any():
        raise InputError("the logits of the model must be finite, got nan: its weights have diverged")
    likeliest, sizes = predicted.argmax(-1).cpu() == targets, [len(part) for part in scored]
    return [
        Losses(part, bool(len(own := right[max(p.start, 1) - p.first :]) and own.all()))
        for p, part, right in zip(prompts, nats.split(sizes), likeliest.split(sizes), strict=True)
    ]


def _common(sequences: Sequence[Sequence[int]]) -> int:
    """How many tokens all sequences begin with."""
    return next(
        (i for i, column in enumerate(zip(*sequences, strict=False)) if len(set(column)) > 1),
        min(map(len, sequences)),
    )

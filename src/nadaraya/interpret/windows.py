"""Windows of the validation part of a run, on which heads and units are measured."""

from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from nadaraya.errors import InputError, check_at_least, must_be

if TYPE_CHECKING:
    from nadaraya.data import TokenShards
    from nadaraya.training import Run

_AT_A_TIME = 16  # windows in a forward pass: logits of all take much memory


class Windows(NamedTuple):
    """Some windows of tokens.

    Args:
        inputs: (B, N) token numbers.
        targets: (B, N) the tokens that follow them; −100 where one is not predicted.
        position_ids: (B, N) position of each token in its document, where documents are packed; default None.
    """

    inputs: Tensor
    targets: Tensor
    position_ids: Tensor | None = None

    @property
    def tokens(self) -> int:
        """The number that are predicted."""
        return int((self.targets >= 0).sum())

    def pieces(self) -> "list[Windows]":
        """The same windows, a few at a time."""
        positions = repeat(None) if self.position_ids is None else self.position_ids.split(_AT_A_TIME)
        parts = zip(self.inputs.split(_AT_A_TIME), self.targets.split(_AT_A_TIME), positions, strict=False)
        return [Windows(*part) for part in parts]

    def loss(self, model: nn.Module) -> float:
        """Mean loss of a causal language model, in nats/token, dropout off."""
        from nadaraya.evaluation.language import total_nats

        return sum(total_nats(model, *piece) for piece in self.pieces()) / self.tokens


def validation_tokens(run: "Run") -> "tuple[Tensor | TokenShards, int | None]":
    """The tokens of the validation part of a run; what begins a document where attention stays inside it."""
    from nadaraya.data.tokenizer import encode_text

    data = run.text_recipe().data
    if not run.on_shards:
        return encode_text(run.tokenizer(), run.text()), None
    shards = run.shards()
    return shards, shards.document_token if data.documents == "packed" else None


def windows_of(tokens: "Tensor | TokenShards", length: int, count: int) -> Tensor:
    """(count, length) tokens at evenly spaced positions of a text, from its first to its last.

    Fewer where there are fewer positions; an InputError for none, and for windows longer than the text.
    """
    from nadaraya.data.windows import spread_windows

    check_at_least(1, windows=count)
    there = len(tokens)
    if length < 2:
        raise must_be("context", "2 tokens or more", length)
    if length > there:
        raise InputError(f"the text must have {length:,} tokens or more for this context, got {there:,}")
    return spread_windows(tokens, length, count)


def validation_windows(run: "Run", count: int) -> Windows:
    """Windows of the validation part of a run, evenly spaced, the same every time.

    Args:
        run: a run on text or token shards.
        count: how many; fewer where there are fewer. All windows of token shards together predict each token
            but the first once, as `evaluate_shards` does.

    Raises:
        InputError: no windows, a run on images, or a text or shards that are not there any more.
    """
    if run.on_shards:
        return _adjacent(run, count)
    rows = windows_of(validation_tokens(run)[0], run.text_recipe().data.context + 1, count)
    return Windows(rows[:, :-1], rows[:, 1:])


def disjoint_windows(run: "Run", count: int) -> tuple[Windows, Windows]:
    """Two sets of windows of the validation part of a run, of which no token is predicted in both.

    The first is to choose on, the second to measure on, `count` windows in each or fewer. Windows of the one
    lie between those of the other, so that neither is nearer to the training text.
    """
    both = _adjacent(run, 2 * count)
    if len(both.inputs) < 2:
        raise InputError(f"the validation part of {run.path} must have two windows or more, got one")
    first, second = (
        Windows._make(part if part is None else part[start::2] for part in both) for start in (0, 1)
    )
    return first, second


def _adjacent(run: "Run", count: int) -> Windows:
    """Evenly spaced ones of the adjacent windows that the validation part of a run is made of."""
    from nadaraya.data import windows

    check_at_least(1, windows=count)
    (tokens, document_token), context = validation_tokens(run), run.text_recipe().data.context
    length = len(tokens)
    total = (length - 1) // context if isinstance(tokens, Tensor) else windows.num_windows(length, context)
    numbers = windows.spaced_numbers(total, count)
    if isinstance(tokens, Tensor):
        rows = windows.windows_at(tokens, torch.from_numpy(numbers) * context, context + 1)
        return Windows(rows[:, :-1], rows[:, 1:])
    inputs, targets = windows.read_windows(tokens, numbers, context)
    packed = None if document_token is None else windows.document_positions(inputs, document_token)
    return Windows(inputs, targets, packed)

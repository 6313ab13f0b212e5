"""Windows of the validation part of a run, on which heads and units are measured."""

from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from nadaraya.errors import InputError, must_be

if TYPE_CHECKING:
    from nadaraya.data import TokenShards
    from nadaraya.training import Run

_AT_A_TIME = 16  # windows in a forward pass: logits of all take much memory


class Windows(NamedTuple):
    """Some windows of tokens.

    Args:
        inputs: (B, N) token numbers.
        targets: (B, N) the tokens that follow them; −100 where one is not predicted.
        position_ids: (B, N) place of each token in its document, where documents are packed; default None.

    >>> import torch
    >>> from nadaraya.interpret.windows import Windows
    >>> text = torch.arange(9)[None]
    >>> Windows(text[:, :-1], text[:, 1:]).tokens
    8
    """

    inputs: Tensor
    targets: Tensor
    position_ids: Tensor | None = None

    @property
    def tokens(self) -> int:
        """How many are predicted."""
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


def validation_windows(run: "Run", count: int) -> Windows:
    """Windows of the validation part of a run, evenly spaced, the same every time.

    Args:
        run: a run on text or token shards.
        count: how many; fewer where there are fewer. All windows of token shards together predict each token
            but the first once, as `evaluate_shards` does.

    Raises:
        InputError: no windows, a run on images, or a text or shards that are not there any more.
    """
    from nadaraya.data.batches import validation_sample

    _check_count(count)
    if run.on_shards:
        return _spaced(run, count)
    return Windows(*validation_sample(_validation_tokens(run), run.text_recipe().data.context, count))


def validation_tokens(run: "Run") -> "tuple[Tensor | TokenShards, int | None]":
    """All tokens of the validation part of a run.

    Args:
        run: a run on text or token shards.

    Returns:
        The tokens or the shards, and the token that begins a document where attention stays inside each.

    Raises:
        InputError: as of `validation_windows`.
    """
    if not run.on_shards:
        return _validation_tokens(run), None
    shards = run.shards()
    return shards, shards.document_token if run.text_recipe().data.documents == "packed" else None


def disjoint_windows(run: "Run", count: int) -> tuple[Windows, Windows]:
    """Two sets of windows of the validation part of a run, of which no token is predicted in both.

    Windows of the one lie between those of the other, so that neither is nearer to the training text.

    Args:
        run: a run on text or token shards.
        count: windows in each; fewer where there are fewer.

    Returns:
        Windows to choose on, and windows to measure on.

    Raises:
        InputError: as of `validation_windows`, or a validation part of a single window.
    """
    _check_count(count)
    both = _spaced(run, 2 * count)
    if len(both.inputs) < 2:
        raise InputError(f"the validation part of {run.path} must have two windows or more, got one")
    first, second = (
        Windows._make(part if part is None else part[start::2] for part in both) for start in (0, 1)
    )
    return first, second


def _spaced(run: "Run", count: int) -> Windows:
    """Evenly spaced ones of the adjacent windows that the validation part of a run is made of."""
    from nadaraya.data import document_positions, num_windows, read_windows
    from nadaraya.data.batches import spaced_numbers, windows_at

    data = run.text_recipe().data
    if not run.on_shards:
        tokens = _validation_tokens(run)
        numbers = spaced_numbers((len(tokens) - 1) // data.context, count)
        return Windows(*windows_at(tokens, torch.from_numpy(numbers) * data.context, data.context))
    shards = run.shards()
    numbers = spaced_numbers(num_windows(len(shards), data.context), count)
    inputs, targets = read_windows(shards, numbers, data.context)
    packed = data.documents == "packed"
    return Windows(inputs, targets, document_positions(inputs, shards.document_token) if packed else None)


def _validation_tokens(run: "Run") -> Tensor:
    """The tokens of the validation text of a run on a text in memory."""
    from nadaraya.data import encode_text
    from nadaraya.data.batches import check_length

    data = run.text_recipe().data
    tokens = encode_text(run.tokenizer(), run.corpus().split(data.validation_fraction)[1])
    check_length(tokens, data.context, "validation")
    return tokens


def _check_count(count: int) -> None:
    if count < 1:
        raise must_be("windows", "1 or more", count)

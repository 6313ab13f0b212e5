"""Cross-entropy and bits per byte of texts and token shards under a causal language model."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nadaraya.data import TokenShards
from nadaraya.data.tokenizer import check_token_bytes, check_vocabulary, encode_text, token_num_bytes
from nadaraya.data.windows import document_positions, num_windows, read_windows
from nadaraya.errors import must_be
from nadaraya.modes import evaluating

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LARGEST_LOGITS = 2**28  # numbers in a batch's logits: 1 GiB in float32
ANY = 2**63


@dataclass(frozen=True)
class CausalModel:
    """A model with what is needed to evaluate it; an InputError where the tokenizer is not that of the model.

    Args:
        name: the folder or the name at the hub.
        model: maps token ids to logits, in eval mode, on the CPU.
        tokenizer: its tokenizer.
        context: tokens that it reads at a time.

    >>> from nadaraya.data import byte_tokenizer
    >>> from nadaraya.evaluation.language import CausalModel
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo", vocab_size=256))
    >>> CausalModel("demo", model, byte_tokenizer(), context=256).context
    256
    """

    name: str
    model: Any
    tokenizer: Any
    context: int

    def __post_init__(self) -> None:
        check_vocabulary(self.tokenizer, num_tokens(self.model))
        self.tokenizer.split_special_tokens = True  # what spells a special token in a text is text


@dataclass(frozen=True)
class TextEvaluation:
    """Result of `evaluate_text`.

    Args:
        cross_entropy: in nats/token.
        bits_per_byte: of the UTF-8 text.
        tokens: how many were predicted, all but the first.
        bytes: of the text of those tokens.

    >>> from nadaraya.evaluation.language import TextEvaluation
    >>> TextEvaluation(cross_entropy=1.2, bits_per_byte=1.7, tokens=5_000, bytes=5_100).tokens
    5000
    """

    cross_entropy: float
    bits_per_byte: float
    tokens: int
    bytes: int


@torch.no_grad()
def evaluate_text(
    model: nn.Module, tokens: Tensor, *, context: int, num_bytes: int, batch_size: int = 16
) -> TextEvaluation:
    """Predict every token of a text but the first, each exactly once.

    The text is cut into adjacent windows of `context` inputs; the target of a window's last input is the
    first input of the next one. A token is thus predicted from the tokens before it in its own window, 1 to
    `context` of them. The last window may be shorter. With L_t the loss of token t in nats:

        cross_entropy = Σ_t L_t / tokens          bits_per_byte = Σ_t L_t / (ln 2 · num_bytes)

    Args:
        model: maps (B, N) token ids to an output with `.logits` (B, N, V); set to eval mode while it is used.
        tokens: (n,) token ids, n >= 2.
        context: inputs per window.
        num_bytes: UTF-8 bytes of the text of the predicted tokens, tokens[1:].
        batch_size: windows at a time, default 16; fewer where their logits would exceed 1 GiB.

    Returns:
        Cross-entropy in nats/token, bits per byte, and both counts.

    Raises:
        InputError: fewer than two tokens.

    >>> import torch
    >>> from nadaraya.evaluation import evaluate_text
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo"))
    >>> evaluate_text(model, torch.arange(90), context=32, num_bytes=89).tokens
    89
    """
    predicted = len(tokens) - 1
    if predicted < 1:
        raise must_be("text", "2 or more tokens long", len(tokens))
    whole = predicted // context * context
    rows = rows_at_a_time(model, min(context, predicted), batch_size)
    inputs, targets = (
        [*part[:whole].reshape(-1, context).split(rows), part[whole:][None]]
        for part in (tokens[:-1], tokens[1:])
    )
    batches = zip(inputs, targets, strict=True)
    nats = sum(total_nats(model, *batch) for batch in batches if batch[0].numel())
    return TextEvaluation(nats / predicted, nats / math.log(2) / num_bytes, predicted, num_bytes)


def rows_at_a_time(model: Any, length: int, most: int) -> int:
    """Number of rows of so many tokens whose logits stay within a bound, at least 1 and at most `most`.

    A module without a configuration of transformers has its `most`.
    """
    vocabulary = num_tokens(model)
    return max(1, min(most, LARGEST_LOGITS // (length * vocabulary))) if vocabulary < ANY else most


def num_tokens(model: Any) -> int:
    """Number of tokens of a model; 2⁶³ of a module without a configuration of transformers."""
    return int(model.config.get_text_config().vocab_size) if hasattr(model, "config") else ANY


def total_nats(
    model: nn.Module, inputs: Tensor, targets: Tensor, position_ids: Tensor | None = None
) -> float:
    """Σ −log p(target), in nats, as `token_nats` gives them, in float64."""
    return token_nats(model, inputs, targets, position_ids).double().sum().item()


def token_nats(
    model: nn.Module, inputs: Tensor, targets: Tensor, position_ids: Tensor | None = None
) -> Tensor:
    """−log p(target) of each (B, N) target that follows the inputs, dropout off; 0 where a target is −100.

    `position_ids`, (B, N), tell the model of packed documents. An InputError for tokens it does not have.
    """
    largest, known = int(torch.maximum(inputs, targets).max()), num_tokens(model)
    if largest >= known:
        raise must_be("token numbers", f"below the {known:,} tokens of the model", largest)
    logits = predict(model, inputs, position_ids).flatten(0, 1).float()
    losses = F.cross_entropy(logits, targets.to(logits.device).flatten(), reduction="none")
    return losses.view(targets.shape)


@torch.no_grad()
def predict(model: Any, inputs: Tensor, position_ids: Tensor | None = None) -> Tensor:
    """Logits (B, N, V) on the model's device that follow token numbers (B, N), dropout off."""
    device = next(model.parameters()).device
    packed = {} if position_ids is None else {"position_ids": position_ids.to(device)}
    with evaluating(model):
        logits: Tensor = model(input_ids=inputs.to(device), use_cache=False, **packed).logits
    return logits


def bits_per_byte(
    model: nn.Module, windows: Iterable[tuple[Tensor, Tensor]], bytes_of_token: Tensor
) -> float:
    """Bits per byte over a fixed set of windows, as nanochat defines it.

    With L_t the loss of target t in nats and b_t the bytes of its token, over targets with b_t > 0:

        Σ_t L_t / (ln 2 · Σ_t b_t)

    Special tokens have no bytes and are left out of both sums, and so are targets below 0. On the windows of
    a text without special tokens it is that of `evaluate_text`. nanochat's windows begin with the
    beginning-of-text token and hold packed documents; `evaluate_text` cuts one text into adjacent windows.

    Args:
        model: as in `evaluate_text`.
        windows: pairs of inputs and the targets that follow them, (B, N) each.
        bytes_of_token: (vocabulary,), from `token_bytes`.

    Returns:
        Bits per byte.

    Raises:
        InputError: no target has bytes.

    >>> import torch
    >>> from nadaraya.data import byte_tokenizer
    >>> from nadaraya.evaluation import bits_per_byte
    >>> from nadaraya.evaluation.language import token_bytes
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo", vocab_size=256))
    >>> windows = [(torch.arange(8)[None], torch.arange(1, 9)[None])]
    >>> 5 < bits_per_byte(model, windows, token_bytes(byte_tokenizer())) < 15
    True
    """
    return summed_nats(model, ((*window, None) for window in windows), bytes_of_token)[1]


def summed_nats(
    model: nn.Module, windows: Iterable[tuple[Tensor, Tensor, Tensor | None]], bytes_of_token: Tensor
) -> tuple[float, float, int]:
    """Σ −log p in nats over all targets of windows; bits per byte; and the bytes that they are counted over.

    Windows are inputs, targets, and `position_ids` where documents are packed; see `bits_per_byte`.
    """
    total, nats, count = 0.0, 0.0, 0
    for inputs, targets, positions in windows:
        sizes = target_bytes(targets, bytes_of_token)
        losses = token_nats(model, inputs, targets.masked_fill(targets < 0, -100), positions).double().cpu()
        total += losses.sum().item()
        nats += losses[sizes > 0].sum().item()
        count += int(sizes.sum())
    if not count:
        raise must_be("windows", "those with a target that has bytes", 0)
    return total, nats / math.log(2) / count, count


def target_bytes(targets: Tensor, bytes_of_token: Tensor) -> Tensor:
    """Bytes of the text of each target, on the CPU; 0 of those below 0."""
    targets = targets.cpu()
    if (largest := int(targets.max())) >= len(bytes_of_token):
        raise must_be("token numbers", f"below the {len(bytes_of_token):,} tokens of the tokenizer", largest)
    return bytes_of_token.cpu()[targets.clamp(min=0)] * (targets >= 0)


def token_bytes(tokenizer: "PreTrainedTokenizerFast") -> Tensor:
    """UTF-8 bytes of every token, (vocabulary,) int64; 0 for special tokens, which stand for no text.

    An InputError for tokens that are neither characters nor bytes and joined bytes, as those of
    `nadaraya.data`, GPT-2 and most later models: they have no bytes of their own.
    """
    check_token_bytes(tokenizer)
    special = set(tokenizer.all_special_ids)
    return torch.tensor([0 if i in special else token_num_bytes(tokenizer, i) for i in range(len(tokenizer))])


def encoded(tokenizer: "PreTrainedTokenizerFast", text: str) -> Tensor:
    """(n,) token numbers of a text, after the token that begins documents, where there is one."""
    tokens, first = encode_text(tokenizer, text), tokenizer.bos_token_id
    return tokens if first is None else F.pad(tokens, (1, 0), value=first)


def evaluate_string(
    model: nn.Module, tokenizer: "PreTrainedTokenizerFast", text: str, *, context: int, batch_size: int = 16
) -> TextEvaluation:
    """Predict every token of a string but the first; see `evaluate_text`.

    Where documents of the tokenizer begin with a token of their own, the string does too, and its first token
    is predicted as well.

    Args:
        model: as in `evaluate_text`.
        tokenizer: that of the model.
        text: what is predicted; the bytes counted are those after its first token.
        context: inputs per window.
        batch_size: windows at a time, default 16.

    Returns:
        As `evaluate_text`.

    Raises:
        InputError: a character that the tokenizer does not have, or a text too short.

    >>> from nadaraya.data import train_character_tokenizer
    >>> from nadaraya.evaluation import evaluate_string
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> tokenizer = train_character_tokenizer("a naïve text")
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo", vocab_size=tokenizer.vocab_size))
    >>> evaluate_string(model, tokenizer, "a naïve text", context=8).bytes
    12
    """
    tokens = encoded(tokenizer, text)
    first = token_num_bytes(tokenizer, int(tokens[0])) if len(tokens) else 0
    num_bytes = len(text.encode()) - first
    return evaluate_text(model, tokens, context=context, num_bytes=num_bytes, batch_size=batch_size)


def evaluate_shards(
    model: nn.Module,
    shards: TokenShards,
    *,
    context: int,
    batch_size: int = 16,
    documents: Literal["packed", "joined"] = "packed",
) -> TextEvaluation:
    """Predict every token of the shards but the first, each exactly once, in adjacent windows.

    As `evaluate_text`. The token that begins a document is predicted from the end of the one before: it says
    that this one is complete. It has no bytes, and bits per byte leave it out, as `bits_per_byte` does. With
    "packed" documents attention stays inside each of them (the model takes `position_ids`); "joined" are one
    text.
    """

    def windows() -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
        for numbers in torch.arange(num_windows(shards.num_tokens, context)).split(batch_size):
            inputs, targets = read_windows(shards, numbers.numpy(), context)
            packed = document_positions(inputs, shards.document_token) if documents == "packed" else None
            yield inputs, targets, packed

    nats, bits_per_byte, num_bytes = summed_nats(model, windows(), token_bytes(shards.tokenizer))
    predicted = shards.num_tokens - 1
    return TextEvaluation(nats / predicted, bits_per_byte, predicted, num_bytes)

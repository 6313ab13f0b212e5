"""Loss at lengths beyond the context of training: the same tokens from more and more before them."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from nadaraya.data import TokenShards
from nadaraya.data.windows import document_positions, windows_at
from nadaraya.errors import check_at_least, must_be, unknown_name
from nadaraya.evaluation.language import target_bytes, token_nats
from nadaraya.models.extending import extend_context, see_last

FarContext = Literal["shuffled", "cut"]
Extended = Literal["interpolate", "ntk", "yarn"]


@dataclass(frozen=True)
class LengthLoss:
    """The loss at one length.

    Attributes:
        length: L, inputs of a window.
        cross_entropy: of the targets, in nats/token.
        bits_per_byte: of their text; None where the bytes of tokens are not known.
        change: cross-entropy less that of the same targets at the shortest length.
        error: standard error of the change over windows; None for a single one.

    >>> from nadaraya.evaluation.lengths import LengthLoss
    >>> LengthLoss(512, cross_entropy=1.3, bits_per_byte=1.9, change=-0.02, error=0.004).length
    512
    """

    length: int
    cross_entropy: float
    bits_per_byte: float | None
    change: float
    error: float | None


@dataclass(frozen=True)
class LengthLosses:
    """Result of `length_losses`.

    Attributes:
        lengths: by length, ascending.
        windows: how many there are of each length.
        stride: targets per window, its last ones.
        tokens: targets, the same at every length.
        bytes: of their text; None where not known.
        by_position: mean loss of each token of the longest windows in nats, which 1, 2, … tokens precede.

    >>> from nadaraya.evaluation.lengths import LengthLosses
    >>> LengthLosses((), windows=64, stride=128, tokens=8192, bytes=8192, by_position=()).tokens
    8192
    """

    lengths: tuple[LengthLoss, ...]
    windows: int
    stride: int
    tokens: int
    bytes: int | None
    by_position: tuple[float, ...]


def length_losses(
    model: nn.Module,
    tokens: Tensor | TokenShards,
    lengths: Sequence[int],
    *,
    windows: int = 64,
    stride: int | None = None,
    bytes_of_token: Tensor | None = None,
    document_token: int | None = None,
    batch_tokens: int = 16_384,
    sliding_window: int | None = None,
    far_context: FarContext | None = None,
    extended: Extended | None = None,
) -> LengthLosses:
    """Predict the same tokens at several context lengths.

    Windows of every length end at the same places, and in each the last `stride` tokens are predicted: at
    length L from the L − stride + 1 to L tokens before them. Lengths thus differ in nothing but what is seen.
    Adjacent windows whose every token is predicted, as `evaluate_text` takes them, would differ in how many
    tokens have little before them, too: short windows have more of these, which makes a model seem to gain
    from length (the "early token curse" of Press et al. 2022).

    Args:
        model: as in `evaluate_text`.
        tokens: (n,) token ids, or shards.
        lengths: inputs per window, in any order.
        windows: how many of each length, evenly spaced over the text, without a target in common; fewer where
            the text is too short. Default 64.
        stride: targets per window; default half of the shortest length.
        bytes_of_token: (vocabulary,), from `token_bytes`; default: no bits per byte.
        document_token: where given, attention stays inside each of the documents, which begin with it: the
            model takes `position_ids`. Default: the text is one document.
        batch_tokens: windows at a time have at most so many inputs, or are one. Default 16,384.
        sliding_window: tokens that every attention layer sees, as `extend_context` by "window" has it: the
            control for a gain or a loss by length. Default: all.
        far_context: what becomes of inputs that are further away than the shortest length: "shuffled", in an
            order at random, inside each document, or "cut", not there. A model that uses them loses by it.
            Default: the text.
        extended: how `extend_context` changes rotary positions at lengths beyond the model's context, by the
            factor of the two. Default: not at all.

    Returns:
        The losses.

    Raises:
        InputError: a length below 1, above the positions for which the model has embeddings, or not shorter
            than the text; or no windows, or a stride above the shortest length; or a sliding window or
            another method for a model that cannot have it.

    >>> import torch
    >>> from nadaraya.evaluation import length_losses
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo"))
    >>> result = length_losses(model, torch.arange(90), [8, 16, 32])
    >>> [loss.length for loss in result.lengths], result.windows, result.tokens
    ([8, 16, 32], 15, 60)
    """
    if not lengths or min(lengths) < 1:
        raise must_be("lengths", "whole numbers of at least 1", list(lengths))
    if far_context not in (None, *get_args(FarContext)):
        raise unknown_name("far_context", str(far_context), get_args(FarContext))
    if extended not in (None, *get_args(Extended)):
        raise unknown_name("extended", str(extended), get_args(Extended))
    check_at_least(1, windows=windows)
    shortest, longest = min(lengths), max(lengths)
    stride = max(1, shortest // 2) if stride is None else stride
    if not 1 <= stride <= shortest:
        raise must_be("stride", f"from 1 to the shortest length, {shortest}", stride)
    positions = embedded_positions(model)
    if positions is not None and longest > positions:
        raise must_be("lengths", f"at most {positions:,}, for which this model has positions", longest)
    if (there := len(tokens)) <= longest:
        raise must_be("lengths", f"below the {there:,} tokens of the text", longest)

    context = getattr(getattr(model, "config", None), "max_position_embeddings", longest)
    most = (there - 1 - longest) // stride + 1
    starts = stride * torch.linspace(0, most - 1, min(windows, most), dtype=torch.float64).round().long()
    generator = torch.Generator().manual_seed(0)
    losses: dict[int, list[Tensor]] = {length: [] for length in sorted(set(lengths))}
    targets, at_positions = [], torch.zeros(longest, dtype=torch.float64)
    with ExitStack() if sliding_window is None else see_last(model, sliding_window):
        for some in starts.split(max(1, batch_tokens // longest)):
            rows = windows_at(tokens, some, longest + 1)
            targets.append(rows[:, -stride:])
            for length in losses:
                if far_context != "cut" or length == shortest:  # which comes first, and serves all then
                    inputs = rows[:, -length - 1 : -1]
                    ids = None if document_token is None else document_positions(inputs, document_token)
                    if far_context == "shuffled":
                        far, near = inputs[:, :-shortest], inputs[:, -shortest:]
                        places = torch.rand(far.shape, generator=generator)
                        if document_token is not None:  # documents keep their tokens and beginnings
                            begins = far == document_token
                            places = places.masked_fill(begins, 0.0).double() + begins.cumsum(1)
                        inputs = torch.cat([far.gather(1, places.argsort(1)), near], 1)
                    with ExitStack() as changed:
                        if extended and length > context:
                            changed.enter_context(extend_context(model, extended, factor=length / context))
                        found = token_nats(model, inputs, rows[:, -length:], ids).double().cpu()
                losses[length].append(found[:, -stride:])
            at_positions[-found.shape[1] :] += found.sum(0)  # of the longest, which comes last

    text = torch.cat(targets).cpu()
    sizes = None if bytes_of_token is None else target_bytes(text, bytes_of_token)
    by_length = {length: torch.cat(parts) for length, parts in losses.items()}  # (windows, stride)
    return LengthLosses(
        tuple(_summary(length, nats, by_length[shortest], sizes) for length, nats in by_length.items()),
        len(starts),
        stride,
        text.numel(),
        None if sizes is None else int(sizes.sum()),
        tuple((at_positions / len(starts)).tolist()),
    )


def embedded_positions(model: nn.Module) -> int | None:
    """Number of positions that a model has learned embeddings for, as GPT-2 has; None without."""
    config: Any = getattr(model, "config", None)
    limits = (getattr(config, name, None) for name in ("max_position_embeddings", "n_positions"))
    limit = next((limit for limit in limits if isinstance(limit, int)), None)
    embeddings = [name for name, part in model.named_modules() if isinstance(part, nn.Embedding)]
    names = [name.rpartition(".")[2] for name in embeddings]
    return limit if any("position" in name or name == "wpe" for name in names) else None


def _summary(length: int, nats: Tensor, shortest: Tensor, sizes: Tensor | None) -> LengthLoss:
    """The loss at one length; all (windows, stride)."""
    change = (nats - shortest).mean(1)
    error = (change.std() / math.sqrt(len(change))).item() if len(change) > 1 else None
    bits = None
    if sizes is not None and sizes.any():
        bits = (nats[sizes > 0].sum() / math.log(2) / sizes.sum()).item()
    return LengthLoss(length, nats.mean().item(), bits, change.mean().item(), error)

"""Logits by lag on the diagonals of all pairs, −∞ where causality, a window or leave-one-out hides a lag."""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nadaraya.attention import reference
from nadaraya.attention.arguments import AttentionArguments


class MaskedLags(NamedTuple):
    """The lags of a call and which of them take part."""

    num_queries: int
    num_keys: int
    offset: int
    causal: bool
    window: int | None
    exclude_self: bool

    def diagonals(self, table: Tensor | None, like: Tensor) -> Tensor:
        """The logits by j − i, from −(Nq − 1) to Nk − 1 aligned at the ends, (H or 1, Nq + Nk − 1).

        Args:
            table: signed, (H or 1, 2L − 1), or None: the masks alone.
            like: has the dtype and device.
        """
        # lag = (i + offset) − j, descending as j − i ascends
        first, total = self.offset + self.num_queries - 1, self.num_queries + self.num_keys - 1
        if table is None:
            diagonals = like.new_zeros((1, total))
        else:
            middle = table.shape[1] // 2
            diagonals = table[:, middle + first - total + 1 : middle + first + 1].flip(1)
        if self.exclude_self and 0 <= first < total:
            own = torch.tensor([first], device=diagonals.device)
            diagonals = diagonals.index_fill(1, own, -torch.inf)
        # Places first − lag of lags that are not hidden.
        reach = self.window if self.window is not None else total + abs(first) + 1
        low = min(total, max(0, first - reach + 1))
        high = max(low, min(total, first + (1 if self.causal else reach)))
        if low or high < total:
            diagonals = F.pad(diagonals[:, low:high], (low, total - high), value=-torch.inf)
        return diagonals.contiguous()


def masked_lags(args: AttentionArguments) -> MaskedLags | None:
    """The lags of a call that has logits for them or hides some, but for causal calls of the last token."""
    lags = MaskedLags(
        args.query.shape[2], args.key.shape[2], args.offset, args.causal, args.window, args.exclude_self
    )
    if args.lag_logits is not None or args.window is not None or args.exclude_self:
        return lags
    return lags if args.causal and lags.offset != lags.num_keys - 1 else None


def of_all_pairs(diagonals: Tensor, num_keys: int) -> Tensor:
    """Diagonals written out, (1, H or 1, Nq, Nk)."""
    pairs = diagonals.unfold(1, num_keys, 1)[None]  # by j − i
    return pairs.flip(2) if pairs.shape[2] > 1 else pairs  # one row would be copied for nothing


def pairs_of(args: AttentionArguments, first_sees_itself: bool) -> Tensor | None:
    """The logits by lag of all pairs, (1, H or 1, Nq, Nk), or None; to be read only."""
    if (lags := masked_lags(args)) is None:
        return None
    like = args.lag_logits
    if like is None:
        if _can_keep(args):
            return _mask(lags, args.compute_dtype, first_sees_itself)
        like = args.query.new_empty((), dtype=args.compute_dtype)
    return _written_out(lags, args.lag_logits, like, first_sees_itself)


def lags_of_pairs(args: AttentionArguments) -> Tensor:
    """i − j of all queries and keys, (Nq, Nk); to be read only."""
    numbers = args.query.shape[2], args.key.shape[2], args.offset, args.query.device
    return _lags(*numbers) if _can_keep(args) else reference.lags_between(*numbers)


def _can_keep(args: AttentionArguments) -> bool:
    """Return whether tensors are of numbers that are there, on the CPU."""
    known = type(args.query) is Tensor and args.query.device.type == "cpu"
    return known and not torch.compiler.is_compiling()


# What is made once serves all layers of a model, calls with gradients, too.
@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _mask(lags: MaskedLags, dtype: torch.dtype, first_sees_itself: bool) -> Tensor:
    return _written_out(lags, None, torch.empty((), dtype=dtype, device="cpu"), first_sees_itself)


@lru_cache(maxsize=8)
@torch.inference_mode(False)
def _lags(*numbers: Any) -> Tensor:
    return reference.lags_between(*numbers)


def _written_out(lags: MaskedLags, table: Tensor | None, like: Tensor, first_sees_itself: bool) -> Tensor:
    pairs = of_all_pairs(lags.diagonals(table, like), lags.num_keys)
    if first_sees_itself:
        pairs[..., 0, 0] = 0.0
    return pairs

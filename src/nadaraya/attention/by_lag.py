"""Logits by lag on the diagonals of all pairs, −∞ where causality, a window or leave-one-out hides a lag."""

from functools import lru_cache
from typing import NamedTuple

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
    mirrored: bool  # logits of −r are those of r

    def diagonals(self, table: Tensor | None, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The logits by j − i, from −(Nq − 1) to Nk − 1 aligned at the ends, (H or 1, Nq + Nk − 1).

        Of a signed table, (H or 1, 2L − 1), or of masks alone, which have the dtype and the device.
        """
        # lag = (i + offset) − j, descending as j − i ascends
        first, total = self.offset + self.num_queries - 1, self.num_queries + self.num_keys - 1
        if table is None:
            diagonals = torch.zeros((1, total), dtype=dtype, device=device)
        else:
            middle = table.shape[1] // 2
            if self.mirrored:
                diagonals = table[:, middle - first : middle - first + total]
            else:
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
        return diagonals


def masked_lags(args: AttentionArguments) -> MaskedLags | None:
    """The lags of a call that has logits for them or hides some, but for causal calls of the last token."""
    last = args.offset == args.key.shape[2] - 1
    parts = (args.lag_logits, args.window)
    if not (args.exclude_self or (args.causal and not last) or any(part is not None for part in parts)):
        return None
    sizes = args.query.shape[2], args.key.shape[2], args.offset
    return MaskedLags(*sizes, args.causal, args.window, args.exclude_self, args.mirrored)


def of_all_pairs(diagonals: Tensor, num_keys: int) -> Tensor:
    """Diagonals written out, (1, H or 1, Nq, Nk)."""
    if diagonals.shape[1] == num_keys:
        return diagonals[None, :, None]
    return diagonals.unfold(1, num_keys, 1)[None].flip(2)  # by j − i


def pairs_of(args: AttentionArguments, first_sees_itself: bool) -> Tensor | None:
    """The logits by lag of all pairs, (1, H or 1, Nq, Nk), or None; to be read only."""
    if (lags := masked_lags(args)) is None:
        return None
    make = _kept_pairs if args.lag_logits is None and _can_keep(args) else _pairs
    return make(lags, args.lag_logits, args.compute_dtype, args.query.device, first_sees_itself)


def lags_of_pairs(args: AttentionArguments) -> Tensor:
    """i − j of all queries and keys, (Nq, Nk); to be read only."""
    make = _kept_lags if _can_keep(args) else reference.lags_between
    return make(args.query.shape[2], args.key.shape[2], args.offset, args.query.device)


def _can_keep(args: AttentionArguments) -> bool:
    """Return whether tensors are of numbers that are there, on the CPU."""
    known = type(args.query) is Tensor and args.query.device.type == "cpu"
    return known and not torch.compiler.is_compiling()


def _pairs(
    lags: MaskedLags, table: Tensor | None, dtype: torch.dtype, device: torch.device, first_sees_itself: bool
) -> Tensor:
    pairs = of_all_pairs(lags.diagonals(table, dtype, device), lags.num_keys)
    if first_sees_itself:
        pairs[..., 0, 0] = 0.0
    return pairs


# What is made once serves all layers of a model, and calls with gradients, which refuse inference tensors.
_kept_pairs = lru_cache(maxsize=8)(torch.inference_mode(False)(_pairs))
_kept_lags = lru_cache(maxsize=8)(torch.inference_mode(False)(reference.lags_between))

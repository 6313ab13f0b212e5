"""A kernel of the lag as a table of logits, kept between the tokens of a text that grows."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from nadaraya.kernels import Kernel


class _Kept(NamedTuple):
    """Logits by lag, (H or 1, L) or signed (H or 1, 2L − 1)."""

    state: tuple[Any, ...]  # of the tensors that they were made from, and whether of the past alone
    num_lags: int  # L
    logits: Tensor


class LagTable:
    """The logits of one kernel, kept without gradients while the text and the parameters stay the same.

    Decoding asks for a longer table at every token: one with room to grow is made, of the lags that are new.
    """

    def __init__(self) -> None:
        self._kept: _Kept | None = None

    def logits(self, kernel: Kernel, num_lags: int, causal: bool, decoding: bool) -> Tensor:
        """(H or 1, L) for lags 0 … L − 1, or (H or 1, 2L − 1) for a signed kernel that is not causal.

        Args:
            kernel: the same in every call.
            num_lags: L.
            causal: whether the future is never looked at.
            decoding: whether earlier tokens of the same text were seen.
        """
        if not decoding:
            # Parameters may have been written through `.data`, which leaves no trace: the kept table goes.
            self._kept = None
        tensors = (*kernel.parameters(), *kernel.buffers())
        # Inference tensors do not say when they change.
        untold = any(t.is_inference() for t in tensors)
        if untold or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return torch.atleast_2d(kernel.lag_logits(num_lags, causal=causal))
        past_alone = kernel.symmetric or causal
        state = (past_alone, *((t.data_ptr(), t._version) for t in tensors))
        kept = self._kept
        if kept is None or kept.state != state:
            kept = _Kept(state, num_lags, torch.atleast_2d(kernel.lag_logits(num_lags, causal=causal)))
        elif kept.num_lags < num_lags:
            longer = num_lags + max(64, num_lags // 4)
            if past_alone:
                new = torch.arange(kept.num_lags, longer, device=kernel.device)
                table = torch.cat((kept.logits, torch.atleast_2d(kernel.log(new))), dim=1)
            else:
                table = torch.atleast_2d(kernel.lag_logits(longer))
            kept = _Kept(state, longer, table)
        self._kept = kept
        if past_alone:
            return kept.logits[:, :num_lags]
        past = kept.num_lags - num_lags
        return kept.logits[:, past : past + 2 * num_lags - 1]

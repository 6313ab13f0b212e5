"""A kernel of the lag as a table of logits, kept between the tokens of a text that grows."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from nadaraya.kernels import Kernel

_ROOM = 64  # lags that a table has for tokens to come


class _Kept(NamedTuple):
    """Logits by signed lag, (H or 1, 2L − 1)."""

    state: tuple[Any, ...]  # of the tensors that they were made from, and whether both sides are one
    num_lags: int  # L
    logits: Tensor


class LagTable:
    """The logits of one kernel, kept without gradients while the text and the parameters stay the same.

    Decoding asks for a longer table at every token: one with room to grow is made, of the lags that are new.
    """

    def __init__(self) -> None:
        self._kept: _Kept | None = None

    def logits(self, kernel: Kernel, num_lags: int, causal: bool, decoding: bool) -> Tensor:
        """(H or 1, 2L − 1) by signed lag, or (H or 1, L) for lags 0 … L − 1 where both sides are one.

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
        anew = torch.is_grad_enabled() or torch.compiler.is_compiling()
        if anew or any(t.is_inference() for t in tensors):  # which do not say when they change
            return torch.atleast_2d(kernel.lag_logits(num_lags, causal=causal))
        mirrored = kernel.symmetric or causal
        state = (mirrored, *((t.data_ptr(), t._version) for t in tensors))
        kept = self._kept
        if kept is None or kept.state != state:
            table = torch.atleast_2d(kernel.lag_logits(num_lags, causal=causal))
            kept = _Kept(state, num_lags, _with_mirror(table[:, :1], table[:, 1:]) if mirrored else table)
        elif kept.num_lags < num_lags:
            if mirrored:
                longer = num_lags + _ROOM
                new = torch.arange(kept.num_lags, longer, device=kernel.device)
                table = _with_mirror(kept.logits, torch.atleast_2d(kernel.log(new)))
            else:  # all of it is made anew
                longer = num_lags + max(_ROOM, num_lags // 4)
                table = torch.atleast_2d(kernel.lag_logits(longer))
            kept = _Kept(state, longer, table)
        self._kept = kept
        beyond = kept.num_lags - num_lags
        return kept.logits[:, beyond : beyond + 2 * num_lags - 1]


def _with_mirror(middle: Tensor, further: Tensor) -> Tensor:
    """Logits by signed lag with those of further lags on both sides."""
    return torch.cat((further.flip(1), middle, further), dim=1)

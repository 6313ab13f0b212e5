"""A kernel of the lag as a table of logits, kept between the tokens of a text that grows."""

from typing import NamedTuple

import torch
from torch import Tensor

from nadaraya.kernels import Kernel


class _Kept(NamedTuple):
    """Logits by lag, (H or 1, L) or signed (H or 1, 2L − 1)."""

    state: list[tuple[int, int]]  # of the tensors that they were made from
    num_lags: int  # L
    logits: Tensor


class LagTable:
    """The logits of one kernel. Decoding asks for a longer table at every token.

    Without gradients, one with room to grow is kept while the text and the parameters stay the same.
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
        untold = not decoding or any(t.is_inference() for t in tensors)
        if untold or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return torch.atleast_2d(kernel.lag_logits(num_lags, causal=causal))
        state = [(t.data_ptr(), t._version) for t in tensors]
        if self._kept is None or self._kept.state != state or self._kept.num_lags < num_lags:
            longer = 1 << (num_lags - 1).bit_length()
            table = torch.atleast_2d(kernel.lag_logits(longer, causal=causal))
            self._kept = _Kept(state, longer, table)
        if kernel.symmetric or causal:
            return self._kept.logits[:, :num_lags]
        past = self._kept.num_lags - num_lags
        return self._kept.logits[:, past : past + 2 * num_lags - 1]

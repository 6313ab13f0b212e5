"""A kernel of the lag as a table of logits, kept between the tokens of a text that grows."""

import math
from typing import Any

import torch
from torch import Tensor

from nadaraya.attention.positions import SignedLogits
from nadaraya.kernels import Kernel

_ROOM = 64  # lags that a table has for tokens to come


class LagTable:
    """The logits of one kernel, kept without gradients while the text and the parameters stay the same.

    Decoding asks for a longer table at every token: one with room to grow is made, of the lags that are new.
    """

    def __init__(self) -> None:
        self._state: tuple[Any, ...] = ()  # of the tensors that it was made from, and whether it is mirrored
        self._kept = SignedLogits(torch.empty(1, 0))

    def logits(self, kernel: Kernel, num_lags: int, causal: bool, decoding: bool) -> Tensor | SignedLogits:
        """By signed lag; with gradients, the kernel's (H or 1, L or 2L − 1).

        Args:
            kernel: the same in every call.
            num_lags: L.
            causal: whether the future is never looked at.
            decoding: whether earlier tokens of the same text were seen.
        """
        named = (named for each in kernel.modules() for named in (each._parameters, each._buffers))
        tensors = [tensor for each in named for tensor in each.values() if tensor is not None]
        anew = torch.is_grad_enabled() or torch.compiler.is_compiling()
        if anew or any(t.is_inference() for t in tensors):  # which do not say when they change
            self._state = ()
            return torch.atleast_2d(kernel.lag_logits(num_lags, causal=causal))
        mirrored = kernel.symmetric or causal
        state = (mirrored, *((t.data_ptr(), t._version) for t in tensors))
        kept = (self._kept.logits.shape[1] + 1) // 2
        # Parameters may have been written through `.data`, which leaves no trace: a new text has a new table.
        if not decoding or self._state != state:
            kept, table = num_lags, torch.atleast_2d(kernel.lag_logits(num_lags, causal=causal))
            self._keep(_with_mirror(table[:, :1], table[:, 1:]) if mirrored else table, mirrored)
        elif kept < num_lags and mirrored:
            new = torch.arange(kept, kept := num_lags + _ROOM, device=kernel.device)
            self._keep(_with_mirror(self._kept.logits, torch.atleast_2d(kernel.log(new))), mirrored)
        elif kept < num_lags:  # all of it is made anew
            kept = num_lags + max(_ROOM, num_lags // 4)
            self._keep(torch.atleast_2d(kernel.lag_logits(kept)), mirrored)
        self._state, beyond = state, kept - num_lags
        return self._kept._replace(logits=self._kept.logits[:, beyond : beyond + 2 * num_lags - 1])

    def _keep(self, logits: Tensor, mirrored: bool) -> None:
        """With the least logit, unless it must be waited for or is −∞, maybe only for tokens to come."""
        lowest = float(logits.amin()) if logits.device.type == "cpu" else -math.inf
        self._kept = SignedLogits(logits, mirrored, lowest if lowest > -math.inf else None)


def _with_mirror(middle: Tensor, further: Tensor) -> Tensor:
    """Logits by signed lag with those of further lags on both sides."""
    return torch.cat((further.flip(1), middle, further), dim=1)

"""A gated kernel of the lag beside an attention, which stays exactly what it was while the gates are 0."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nadaraya.attention import GridLogits
from nadaraya.errors import InputError
from nadaraya.kernels import GridKernel, Kernel

BANK = "nadaraya_bank"  # the attribute of an attention module that holds its GatedKernel
OVER, WINDOWED = "nadaraya_over_", "nadaraya-window-"  # begin names of implementations of attention
_MOST_PREFIX = 16  # class and register tokens; more are none, as the detection tokens of YOLOS


def unwrapped(model: Any) -> Any:
    """The model within one that torch.compile or peft made of it."""
    model = getattr(model, "_orig_mod", model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


class Place(NamedTuple):
    """An attention module, its heads, and of images the convolution that makes patches."""

    module: nn.Module
    num_heads: int
    patches: nn.Conv2d | None


class GatedKernel(nn.Module):
    """g_h κ_h(i − j), added to the logits of head h; g = 0 at first.

    As in `gpa-rope`, κ is added as it is: its derivative by g is κ, which is bounded. That of g log κ grows
    with the lag without bound, and 0 · log 0 of a compact kernel is no number.
    """

    def __init__(self, num_heads: int, make: Callable[[int], Kernel], of_patches: bool = False) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(num_heads))
        self.kernel = GridKernel(num_heads, make) if of_patches else make(num_heads)
        if isinstance(self.kernel, Kernel):
            self.kernel.check_serves(num_heads, "kernel")
        self.grid = (0, 0)
        self._open: tuple[int, int] | None = None  # the gates that were last seen open

    def note_grid(self, conv: nn.Module, args: Any, patches: Tensor) -> None:
        """Keep the rows and columns of patches: a forward hook of the convolution that makes them."""
        self.grid = (patches.shape[2], patches.shape[3])

    def position(self, num_queries: int, num_keys: int, first: Tensor | int | None = None) -> Any:
        """The operator's position: of a grid, by lag, or of all pairs with the first query at key `first`."""
        if isinstance(self.kernel, GridKernel):
            height, width = self.grid
            prefix = num_keys - height * width
            if not 0 <= prefix <= _MOST_PREFIX:
                raise InputError(f"{num_keys} tokens are not {height} x {width} patches after a few others")
            return GridLogits(self.gate[:, None, None] * self.kernel.lag_logits(height, width).exp(), prefix)
        length = max(num_queries, num_keys)
        lags = torch.arange(1 - length, length, device=self.gate.device)
        table = self.gate[:, None] * self.kernel(lags)
        if first is None:
            return table
        queries, keys = (torch.arange(n, device=table.device) for n in (num_queries, num_keys))
        return table[:, first + queries[:, None] - keys + length - 1]

    def is_closed(self) -> bool:
        """Test whether all gates are 0; a compiled call does not look, and takes them for open."""
        if torch.compiler.is_compiling():
            return False
        # A look stalls a GPU: "open" is kept until the gates change, "closed" is not, as some optimizers
        # write behind autograd's back.
        gate = self.gate.detach()
        if gate.is_meta:
            raise InputError("the kernel bank is on no device: attach it after the model is offloaded")
        looked = None if gate.is_inference() else (gate.data_ptr(), gate._version)
        if looked is not None and looked == self._open:
            return False
        closed = not bool(gate.any())
        self._open = None if closed else looked
        return closed


class WithGradientOf(torch.autograd.Function):
    """The former output, every bit of it, with the gradients of both."""

    @staticmethod
    def forward(ctx: Any, former: Tensor, ours: Tensor) -> Tensor:
        return former.view_as(former)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients * 2

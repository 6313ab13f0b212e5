"""The passes over the scores of a tile in the backward pass of `blocked`: by PyTorch, or compiled.

PyTorch makes six of them between the products: the bias, exp, its underflow twice, weights times gradients,
sums along diagonals. Compiled by numba, where that is installed, they are two.
"""

import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

_PAYS = 2**22  # scores of a call; loading takes a second, compiling some more, once


def can_compile(scores: int, parts: int, like: Tensor) -> bool:
    """Return whether compiled passes serve a call of so many scores and parts, whose biases are by lag alone.

    A compiled loop has one core: there must be a part for each.

    A property of the call, not of what was done before: a training that is resumed has the same last bits.
    """
    return (
        scores >= _PAYS
        and like.device.type == "cpu"
        and like.dtype == torch.float32
        and parts == torch.get_num_threads()
        and _loops_are_there()
    )


@cache
def _loops_are_there() -> bool:
    try:
        import nadaraya.attention.one_pass  # noqa: F401
    except ImportError:  # no numba, or one that does not fit what else is installed
        return False
    return True


class ByTorch:
    """Passes over a tile (B, H, R, K) with rows in reverse; the next tile writes over what is returned.

    Args:
        most: scores of a tile.
        like: has the dtype and device.
    """

    def __init__(self, most: int, like: Tensor) -> None:
        self._room, self._skewed = like.new_empty(most), _Skewed(like.new_empty(2 * most))

    def weights(self, queries: Tensor, keys: Tensor, bias: Tensor | None, shape: tuple[int, ...]) -> Tensor:
        """exp(queries keysᵀ + bias), (B, H, R, K), of (B · H, R, d) and (B · H, K, d)."""
        found = self._room[: math.prod(shape)].view(shape)
        found.copy_(found.new_zeros(()) if bias is None else bias)
        found.flatten(0, 1).baddbmm_(queries, keys.mT)
        exp_without_underflow(found)
        return found

    def gradients(self, grads: Tensor, values: Tensor, weights: Tensor, along: Tensor | None) -> Tensor:
        """(grads valuesᵀ) ∘ weights, (B, H, R, K), added to `along` (H, R + K − 1) by diagonal."""
        found, wide = self._skewed.place(weights.shape)
        torch.bmm(grads, values.mT, out=found.view(-1, *found.shape[2:])).mul_(weights.flatten(0, 1))
        if along is not None:
            # Over both dimensions at once is slow.
            along += wide[0].sum(1) if len(wide) == 1 else wide.sum(0).sum(1)
        return found


class Compiled:
    """The same, for a bias that is a view of diagonals."""

    def __init__(self, most: int, like: Tensor) -> None:
        self._rooms = like.new_empty(most), like.new_empty(most)

    def weights(self, queries: Tensor, keys: Tensor, bias: Tensor | None, shape: tuple[int, ...]) -> Tensor:
        """See `ByTorch`."""
        from nadaraya.attention.one_pass import weights_from

        assert bias is not None
        found = self._rooms[0][: math.prod(shape)].view(shape)
        torch.bmm(queries, keys.mT, out=found.flatten(0, 1))
        lags = (bias.shape[1], bias.shape[2] + bias.shape[3] - 1)  # of which the bias is a view
        weights_from(found.numpy(), bias.as_strided(lags, (bias.stride(1), 1)).numpy(), _least(found.dtype))
        return found

    def gradients(self, grads: Tensor, values: Tensor, weights: Tensor, along: Tensor | None) -> Tensor:
        """See `ByTorch`."""
        from nadaraya.attention.one_pass import gradients_from

        found = self._rooms[1][: weights.numel()].view(weights.shape)
        torch.bmm(grads, values.mT, out=found.flatten(0, 1))
        if along is None:
            return found.mul_(weights)
        gradients_from(found.numpy(), weights.numpy(), along.numpy())
        return found


def exp_without_underflow(logits: Tensor) -> Tensor:
    """exp in place; what is too small to count is 0: numbers near underflow take a hundred times as long."""
    least = _least(logits.dtype)
    logits.clamp_(min=least).exp_()
    return F.threshold(logits, 1.01 * math.exp(least), 0.0, inplace=True)


def _least(dtype: torch.dtype) -> float:
    return 0.75 * math.log(torch.finfo(dtype).tiny)


class _Skewed:
    """A place for a tile's (B, H, rows, keys) in a wider array, otherwise zero.

    Row r lies r places to the right there: a diagonal of the tile with reversed rows is a column.
    """

    def __init__(self, room: Tensor) -> None:
        self._room, self._shape = room, torch.Size()

    def place(self, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """The place, and the wider array."""
        batch, heads, rows, keys = shape
        wide = rows + keys - 1
        buffer = self._room[: batch * heads * rows * wide].view(batch, heads, rows, wide)
        strides = (heads * rows * wide, rows * wide, wide + 1, 1)
        if shape != self._shape:
            buffer.as_strided((batch, heads, rows - 1, rows), strides, keys).zero_()  # between two rows
            self._shape = shape
        return buffer.as_strided(shape, strides), buffer

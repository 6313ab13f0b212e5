"""Memory for earlier tokens while a text grows: keys and values, or a state of constant size."""

from typing import Any, Protocol

import torch
from torch import Tensor


class KeyValueCache(Protocol):
    """Protocol of a cache for decoding, as far as the layer uses it."""

    def length(self) -> int:
        """Number of tokens seen before this call, those that a window has dropped included."""

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Appends (B, G, n, ·) and returns all that is kept, in order of position."""

    def state(self) -> Tensor | None:
        """The state of a layer that keeps one in place of tokens; None at the beginning."""

    def keep_state(self, state: Tensor, tokens: int) -> None:
        """Keeps the state after so many more tokens."""


def factorises(content: Any) -> bool:
    """Return whether a layer's content, or what makes it, gives features, whose sums are a state."""
    return bool(getattr(getattr(content, "func", content), "factored", False))


def with_earlier(
    cache: KeyValueCache, key: Tensor, value: Tensor, log_forget: Tensor | None, one_tensor: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys, values and gates so far: one tensor where it is both; gates are columns of the keys."""
    if log_forget is not None:
        batch, groups, tokens, width = key.shape
        # The gates of the heads that share a key, (B, G, N, H / G).
        columns = log_forget.view(batch, groups, -1, tokens).transpose(2, 3)
        wide, value = cache.update(torch.cat((key, columns.to(key.dtype)), dim=-1), value)
        gates = wide[..., width:].transpose(2, 3).flatten(1, 2).to(log_forget.dtype)
        return wide[..., :width], value, gates
    if value is key and one_tensor:
        key, _ = cache.update(key, key[..., :0])
        return key, key, None
    key, value = cache.update(key, value)
    return key, value, None

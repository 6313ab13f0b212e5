"""A layer of transformers' dynamic cache with room behind its keys: a token is written, none copied."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer, LinearAttentionAndFullAttentionLayer


class GrowingLayer(DynamicLayer):
    """A dynamic layer whose keys and values are the filled part of larger tensors.

    Transformers' own copies all earlier tokens at every new one, most of the time of decoding a long text.
    Keys that were reordered, cropped or put in from outside are copied once.
    """

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Appends (B, G, n, ·), and returns all tokens so far."""
        if not self._may_write(key_states):
            return super().update(key_states, value_states, *args, **kwargs)
        self.keys, self.values = self._appended("keys", key_states), self._appended("values", value_states)
        return self.keys, self.values

    def _may_write(self, new: Tensor) -> bool:
        """Return whether there are keys like the new ones, and nothing differentiates or compiles."""
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or not self.get_seq_length():
            return False
        kept: Any = self.keys
        if kept.is_inference() and not torch.is_inference_mode_enabled():
            return False
        alike: bool = (kept.dtype, kept.device, len(kept)) == (new.dtype, new.device, len(new))
        return alike

    def _appended(self, name: str, new: Tensor) -> Tensor:
        rooms = self.__dict__.setdefault("rooms", {})  # one with shallow copies, which so notice each other
        earlier: Tensor = getattr(self, name)
        tokens = earlier.shape[2] + new.shape[2]
        room, filled = rooms.get(name, (None, None))
        if filled is not earlier or room.shape[2] < tokens:
            room = earlier.new_empty((*earlier.shape[:2], tokens + max(64, tokens // 4), earlier.shape[3]))
            room[:, :, : earlier.shape[2]] = earlier
        room[:, :, earlier.shape[2] : tokens] = new
        filled = room[:, :, :tokens]
        rooms[name] = room, filled
        return filled


class GrowingLayerWithStates(GrowingLayer, LinearAttentionAndFullAttentionLayer):  # type: ignore[misc, override]
    """Keys and values beside the states of a convolution."""


_GROWS: dict[type, type] = {
    DynamicLayer: GrowingLayer, LinearAttentionAndFullAttentionLayer: GrowingLayerWithStates,
}  # fmt: skip


def let_grow(cache: Cache, index: int) -> None:
    """Give a layer of a dynamic cache room behind its tokens; other caches, and windows, stay as they are."""
    layer: Any = cache.layers[index] if index < len(cache.layers) else None
    kind = None if torch.compiler.is_compiling() else _GROWS.get(type(layer))
    if kind is not None and layer.get_seq_length():
        made = kind()
        made.__dict__.update(layer.__dict__)
        cache.layers[index] = made

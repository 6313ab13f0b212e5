"""Self-attention of the decoders of transformers: Llama and its relatives, GPT-2 and GPT-NeoX."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from nadaraya.errors import must_be

_FUSED = {"c_attn": "c_proj", "query_key_value": "dense"}


def attention_layers(model: nn.Module) -> dict[int, Any]:
    """The attention of every layer of a model of transformers, by the index of the layer.

    Raises:
        InputError: attention of a kind that is not read here.
    """
    modules: Iterable[Any] = model.modules()
    found = {part.layer_idx: part for part in modules if _is_attention(part)}
    if not found:
        accepted = "with q_proj, k_proj, v_proj and o_proj in its attention, or that of GPT-2 or GPT-NeoX"
        raise must_be("model", accepted, type(model).__name__)
    return found


def linear_maps(part: Any) -> dict[str, Any]:
    """Modules of W_Q, W_K, W_V and W_O by their letters: the first three are one where they are fused."""
    for fused, out in _FUSED.items():
        if hasattr(part, fused):
            return {**dict.fromkeys("qkv", getattr(part, fused)), "o": getattr(part, out)}
    return {letter: getattr(part, f"{letter}_proj", None) for letter in "qkvo"}


@torch.no_grad()
def matrices_of(part: Any) -> dict[str, Tensor]:
    """W_Q, W_K, W_V and W_O by their letters, outputs by inputs, with the biases as a last column."""
    maps = linear_maps(part)
    rows = {letter: _rows(maps[letter]) for letter in "qo"}
    if hasattr(part, "c_attn"):
        rows |= zip("qkv", rows["q"].chunk(3), strict=True)
    elif hasattr(part, "query_key_value"):
        by_head = rows["q"].unflatten(0, (-1, 3, width_of(part)))
        rows |= {letter: by_head[:, place].flatten(0, 1) for place, letter in enumerate("qkv")}
    else:
        rows |= {letter: _rows(maps[letter]) for letter in "kv"}
    return rows


def width_of(part: Any) -> int:
    """Width d of a head."""
    width: int = part.head_size if hasattr(part, "head_size") else part.head_dim
    return width


def heads_of(part: Any) -> list[int]:
    """The heads that an attention has, as they were numbered before any was removed."""
    out = linear_maps(part)["o"]
    inputs = len(out.weight) if isinstance(out, Conv1D) else out.weight.shape[1]
    return list(getattr(part, "nadaraya_heads", range(inputs // width_of(part))))


def _is_attention(part: Any) -> bool:
    kind = Conv1D if hasattr(part, "c_attn") else nn.Linear
    read = all(isinstance(each, kind) for each in linear_maps(part).values())
    crosses = getattr(part, "is_cross_attention", False)
    own = "head_size" if hasattr(part, "query_key_value") else "head_dim"  # BLOOM's layout is another
    return read and not crosses and hasattr(part, own) and getattr(part, "layer_idx", None) is not None


def _rows(linear: Any) -> Tensor:
    weight = linear.weight.t() if isinstance(linear, Conv1D) else linear.weight
    bias = weight.new_zeros(len(weight)) if linear.bias is None else linear.bias
    return torch.cat([weight, bias[:, None]], 1)

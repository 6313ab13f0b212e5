"""Kernels beside the attention of transformers' models, with whichever implementation they had.

`attn_implementation="nadaraya_over_sdpa"` is sdpa where a module has no bank, or closed gates; with open ones
the operator does the whole call. Masks are those of the former implementation, also to models that edit them,
and None where it has none, but written out only for those who look.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface, PreTrainedModel, masking_utils
from transformers.masking_utils import AttentionMaskInterface

from nadaraya.errors import InputError, must_be
from nadaraya.models.attach import interface, masks
from nadaraya.models.gated import BANK, OVER, WINDOWED, Place, WithGradientOf

_MASKS: dict[str, Callable[..., Tensor | None]] = {
    "eager": masking_utils.eager_mask, "sdpa": masking_utils.sdpa_mask, "nadaraya": masks.attention_mask,
}  # fmt: skip
_HEADS = ("num_heads", "num_attention_heads", "n_heads")
_CROSS = ("cross", "encdec", "encoder_attn")  # of attention to another sequence, where there is no lag


class _Name(str):
    """The name of the attention over a former one, equal to the former's: some models ask which they have.

    DeepSeek V3.2 and MiniMax M3, say, write what is sparse into the masks of "eager" and "sdpa" alone.
    """

    def __eq__(self, other: object) -> bool:
        return str(other) in (str(self), self.removeprefix(OVER))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def places(model: PreTrainedModel) -> dict[str, Place]:
    """Self-attention that goes through the AttentionInterface, by the names of its modules."""
    found, part = {}, model
    for name, module in model.named_modules():
        part = module if isinstance(module, PreTrainedModel) else part
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        named = f"{name.rpartition('.')[2]} {type(module).__name__}".lower()
        crosses = getattr(module, "is_cross_attention", False) or any(word in named for word in _CROSS)
        compresses = getattr(module, "compressor", None) is not None  # a key stands for many tokens
        if crosses or compresses or "ALL_ATTENTION_FUNCTIONS" not in getattr(code, "co_names", ()):
            continue
        own = next((number for at in _HEADS if (number := getattr(module, at, None))), None)
        heads = getattr(module, "nadaraya_heads", range(own or module.config.num_attention_heads))
        patches = None
        if part.main_input_name == "pixel_values":
            convs = (m for m in (*part.modules(), *model.modules()) if isinstance(m, nn.Conv2d))
            if (patches := next(convs, None)) is None:
                raise must_be("model", "one whose patches are made by a Conv2d", type(part).__name__)
        found[name] = Place(module, len(heads), patches)
    return found


def enter(model: PreTrainedModel, modules: Sequence[nn.Module]) -> Callable[[], None]:
    """Let modules take notice of their banks, until the result is called."""
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    before = [(part, part.config._attn_implementation) for part in parts]
    if unknown := {former for _, former in before if not former.startswith(WINDOWED)} - {*_MASKS}:
        raise must_be("attn_implementation", f"one of {', '.join(map(repr, _MASKS))}", unknown.pop())
    if any(getattr(module, "reorder_and_upcast_attn", False) for module in modules):
        raise must_be("reorder_and_upcast_attn", "False, as it goes around all other attention", True)
    for part, former in before:  # the whole, which sets all in it, before its parts
        over = _Name(OVER + former) if part._can_set_attn_implementation() else former
        part.config._attn_implementation = over
    handles = [module.register_forward_pre_hook(_check_implementation) for module in modules]

    return functools.partial(_leave, parts, handles)


def _leave(parts: Sequence[PreTrainedModel], handles: Sequence[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
    for part in parts:  # a window may have come or gone
        part.config._attn_implementation = part.config._attn_implementation.removeprefix(OVER)


def _check_implementation(module: Any, args: Any) -> None:
    if not (given := module.config._attn_implementation).startswith(OVER):
        raise InputError(f"attn_implementation {given!r} would leave the kernel bank out: detach it first")


def _attention(
    former: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """An attention of transformers' AttentionInterface, with the bank of the module where it has one."""
    bank: Any = getattr(module, BANK, None)
    closed = bank is None or bank.is_closed()
    ours_below = former.startswith("nadaraya")
    if not ours_below:
        options.pop("block_indices", None)  # MiniMax M3's mask has them
    if closed:
        function: Any = interface.attention
        mask = attention_mask
        if not ours_below:
            eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
            function = AttentionInterface().get_interface(former, eager)
            mask = mask.written() if isinstance(mask, masks.UnwrittenMask) else mask
        before, weights = function(module, query, key, value, mask, **options)
        if bank is None or not (torch.is_grad_enabled() and bank.gate.requires_grad):
            return before, weights
        # The gates alone learn from what follows, and no more random numbers are drawn.
        query, key, value, options = tree_map_only(
            Tensor, Tensor.detach, (query, key, value, {**options, "dropout": 0.0})
        )
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    if attention_mask is None and causal and 1 < (end := query.shape[2]) < key.shape[2]:
        key, value = key[:, :, :end], value[:, :, :end]  # the rest of a static cache is empty
    out, ours = interface.attention(module, query, key, value, attention_mask, **options, bank=bank)
    return (WithGradientOf.apply(before, out), weights) if closed else (out, ours)


def _mask(former: str, **call: Any) -> Tensor | None:
    """The former implementation's mask, as a rule where that is known."""
    if former.startswith("nadaraya"):
        return AttentionMaskInterface()[former](**call)
    ours, write = masks.attention_mask(**call), _MASKS[former]
    if not isinstance(ours, masks.UnwrittenMask):
        return write(**call)
    # A rule that does not tell queries apart shows without N × N numbers whether the mask is left out.
    skips = former == "sdpa" and call.get("allow_is_causal_skip", True)
    probe = {"mask_function": lambda b, h, i, j: b >= 0, "allow_is_causal_skip": skips, "use_vmap": False}
    if masking_utils.sdpa_mask(**{**call, **probe}) is None:
        return None
    kind: dict[str, Any] = {"dtype": torch.bool if former == "sdpa" else ours.dtype, "device": ours.device}
    written = functools.cache(lambda: write(**call))
    return masks.UnwrittenMask(ours.options, ours.last, ours.first, written, tuple(ours.shape), **kind)


def register_over(former: str) -> None:
    """Make an implementation's name with banks beside it known to transformers."""
    AttentionInterface.register(OVER + former, functools.partial(_attention, former))
    AttentionMaskInterface.register(OVER + former, functools.partial(_mask, former))


for _former in _MASKS:
    register_over(_former)

"""The masks of transformers by their rules: what is causal, a window, padding or documents stays unwritten.

transformers makes a mask by handing a function of indices, put together from functions of its own, to the
mask function of the attention that a model uses. Here that function is read instead of evaluated. What the
model hands on is a tensor in name, of shape (B, 1, Nq, Nk), without storage: the attention reads its options,
and anything else that looks at it gets the numbers that eager attention adds.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers import masking_utils
from transformers.utils.import_utils import is_tracing

from nadaraya.attention.functional import AttentionOptions

MaskFunction = Callable[..., Any]


class UnwrittenMask(Tensor):
    """A mask (B, 1, Nq, Nk) to be added to logits, without storage; operations on it get it written out."""

    options: AttentionOptions | None  # for the keys that any query may see; None where only numbers tell
    last: int  # how many keys these are
    first: int  # the place of the first query among all keys
    written: Callable[[], Tensor | None]  # gives the numbers, 0 or the lowest

    @staticmethod
    def __new__(
        cls,
        options: AttentionOptions | None,
        last: int,
        first: int,
        written: Callable[[], Tensor | None],
        shape: tuple[int, ...],
        **kind: Any,
    ) -> "UnwrittenMask":
        mask = Tensor._make_wrapper_subclass(cls, shape, **kind)
        mask.options, mask.last, mask.first, mask.written = options, last, first, written
        return mask

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.ops.aten.detach.default:
            return args[0]
        args, kwargs = tree_map_only(cls, lambda mask: mask.written(), (args, kwargs or {}))
        return function(*args, **kwargs)


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    window: int | None = None,
    **options: Any,
) -> Tensor | None:
    """The masks of `attn_implementation="nadaraya"`, as transformers' AttentionMaskInterface calls for them.

    To a model they are those of "eager", numbers that are there whenever they hide a pair: models edit them.
    The arguments are those of `transformers.masking_utils.sdpa_mask`, and `window`, the keys that a query
    sees at most, on either side, itself included. While a model is compiled, None may stand for causality
    alone (`allow_is_causal_skip`); it may stand for no mask at all by `allow_is_bidirectional_skip`.

    Returns:
        None, an `UnwrittenMask`, or a mask (B, 1, Nq, Nk) to be added to logits.
    """
    if window is not None and window < kv_length:
        both = (masking_utils.sliding_window_bidirectional_overlay(window - 1), mask_function)
        mask_function = masking_utils.and_masks(*both)
        allow_is_causal_skip = allow_is_bidirectional_skip = False
    call: dict[str, Any] = dict(
        batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
        mask_function=mask_function, attention_mask=attention_mask, device=device, **options,
    )  # fmt: skip
    traced = [t for t in (attention_mask, q_offset) if isinstance(t, Tensor)]
    compiled = torch.compiler.is_compiling() or any(map(is_tracing, traced))
    may_skip = compiled and allow_is_causal_skip and q_length == kv_length
    if may_skip and masking_utils.sdpa_mask(**call) is None:
        return None
    if q_length == 1 or compiled:  # the mask of one query is no larger than its keys
        call["allow_is_bidirectional_skip"] = allow_is_bidirectional_skip
        return masking_utils.eager_mask(**call, dtype=dtype)
    padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        padding = padding[:, kv_offset : kv_offset + kv_length]
    positions = torch.arange(kv_length, device=device) + kv_offset
    first = int(q_offset) - kv_offset
    end = first + q_length
    known = _read(mask_function, positions) if q_length <= end <= kv_length else None
    last = end if known is not None and known.get("causal") else kv_length
    known = _that_hide(known, padding, batch_size, last, end == last)
    if allow_is_bidirectional_skip and known == {"causal": False}:
        return None
    written = functools.cache(lambda: masking_utils.eager_mask(**call, dtype=dtype))
    shape = (batch_size, 1, q_length, kv_length)
    return UnwrittenMask(known, last, first, written, shape, dtype=dtype, device=device)


def _read(function: MaskFunction, positions: Tensor, causal: bool = False) -> AttentionOptions | None:
    """The options that say what a function, perhaps part of a `causal` one, does; None where unknown."""
    if getattr(function, "__module__", None) != masking_utils.__name__:
        return None
    held = inspect.getclosurevars(function).nonlocals
    match function.__qualname__.split(".")[0]:
        case "and_masks":
            causal = causal or masking_utils.causal_mask_function in held["mask_functions"]
            parts = [_read(part, positions, causal) for part in held["mask_functions"]]
            options = [option for part in parts for option in (part or {}).items()]
            known = None not in parts and len(dict(options)) == len(options)
            return AttentionOptions(**dict(options)) if known else None  # type: ignore[typeddict-item]
        case "remap_positions_for_packed_sequence":
            # Positions that count the tokens of each document leave lags within one as they are.
            return _read(held["mask_function"], positions, causal)
        case "bidirectional_mask_function":
            return {}
        case "causal_mask_function":
            return {"causal": True}
        case "sliding_window_overlay" if causal:  # by itself it bounds one side
            return {"window": held["sliding_window"]}
        case "sliding_window_bidirectional_overlay":
            return {"window": held["sliding_window"] + 1}
        case "packed_sequence_mask_function":
            return {"document_ids": held["packed_sequence_mask"]}
        case "chunked_overlay":
            return {"document_ids": (positions - held["left_padding"][:, None]) // held["chunk_size"]}
    return None


def _that_hide(
    known: AttentionOptions | None, padding: Tensor | None, batch: int, last: int, lined_up: bool
) -> AttentionOptions | None:
    """The options without those that hide nothing, with padding; None where they need queries lined up."""
    if known is None:
        return None
    options: AttentionOptions = {"causal": known.get("causal", False)}
    window, ids = known.get("window"), known.get("document_ids")
    if window is not None and window < last:
        options["window"] = window
    if ids is not None and bool((ids[:, :last] != ids[:, :1]).any()):
        options["document_ids"] = ids[:, :last].expand(batch, -1)
    if len(options) > 1 and not lined_up:
        return None
    if padding is not None and not bool(padding[:, :last].all()):
        options["key_mask"] = padding[:, :last].expand(max(batch, len(padding)), -1)
    return options

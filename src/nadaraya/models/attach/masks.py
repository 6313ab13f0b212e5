"""The masks of transformers as rules: what is causal, a window, padding or documents stays unwritten.

transformers makes a mask by handing a function of indices, put together from functions of its own, to the
mask function of the attention that a model uses. Here that function is read instead of evaluated. What the
model hands on is a tensor in name, of shape (B, 1, Nq, Nk), without storage: the attention reads its rule,
and anything else that looks at it gets the mask written out. Unknown functions are written out at once.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers import masking_utils
from transformers.utils.import_utils import is_tracing

MaskFunction = Callable[..., Any]


@dataclass(frozen=True)
class Rule:
    """Which pairs take part, query i standing at place i + offset of the keys.

    Attributes:
        causal: keys at the query's place and before.
        window: |lag| < window; None for no limit.
        offset: place of query 0 among the keys.
        key_mask: (B, Nk) bool, True where a key takes part.
        document_ids: (B, Nk), pairs of one document; every document in one piece.
    """

    causal: bool = False
    window: int | None = None
    offset: int = 0
    key_mask: Tensor | None = field(default=None, repr=False)
    document_ids: Tensor | None = field(default=None, repr=False)


class UnwrittenMask(Tensor):
    """A boolean mask (B, 1, Nq, Nk) that has a rule and no storage; operations on it get it written out."""

    rule: Rule
    written: Callable[[], Tensor | None]

    @staticmethod
    def __new__(
        cls, rule: Rule, written: Callable[[], Tensor | None], shape: tuple[int, ...]
    ) -> "UnwrittenMask":
        tensors = (rule.key_mask, rule.document_ids)
        device = next((tensor.device for tensor in tensors if tensor is not None), None)
        mask = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)
        mask.rule, mask.written = rule, written
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

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"UnwrittenMask({tuple(self.shape)}, {self.rule})"


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
    **options: Any,
) -> Tensor | None:
    """The masks of `attn_implementation="nadaraya"`, as transformers' AttentionMaskInterface calls for them.

    Args:
        batch_size, q_length, kv_length: B, Nq and Nk.
        q_offset, kv_offset: position of the first query and of the first key.
        mask_function: which pairs take part, by their indices.
        attention_mask: (B, all positions) bool, True where a key takes part.
        allow_is_causal_skip, allow_is_bidirectional_skip: whether None may stand for causality alone, and for
            no mask at all.
        **options: further arguments of `transformers.masking_utils.sdpa_mask`.

    Returns:
        None, an `UnwrittenMask`, or a boolean mask (B, 1, Nq, Nk).
    """

    def written(may_skip: bool = False) -> Tensor | None:
        return masking_utils.sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,  # type: ignore[arg-type]
            allow_is_causal_skip=may_skip and allow_is_causal_skip,
            allow_is_bidirectional_skip=may_skip and allow_is_bidirectional_skip,
            **options,
        )  # fmt: skip

    traced = [t for t in (attention_mask, q_offset) if isinstance(t, Tensor)]
    # The mask of one query is no larger than its keys.
    if q_length == 1 or torch.compiler.is_compiling() or any(map(is_tracing, traced)):
        return written(may_skip=True)
    offset = int(q_offset) - kv_offset
    last = offset + q_length
    positions = torch.arange(kv_length, device=options.get("device")) + kv_offset
    rule = _read(mask_function, positions)
    if rule is None or offset < 0 or last > kv_length:
        return written(may_skip=True)
    if last < kv_length and not rule.causal and (rule.window is not None or rule.document_ids is not None):
        return written()
    ids = rule.document_ids
    padding = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        padding = padding[:, kv_offset : kv_offset + kv_length].expand(batch_size, -1)
    rule = Rule(
        rule.causal,
        rule.window if rule.window is not None and rule.window < kv_length else None,
        offset,
        None
        if padding is None or bool(padding[:, :last].all() if rule.causal else padding.all())
        else padding,
        None if ids is None or bool((ids == ids[:, :1]).all()) else ids.expand(batch_size, -1),
    )
    if rule.window is None and rule.key_mask is None and rule.document_ids is None:
        square = q_length == kv_length
        if allow_is_causal_skip and square if rule.causal else allow_is_bidirectional_skip:
            return None
    return UnwrittenMask(rule, written, (batch_size, 1, q_length, kv_length))


def _read(mask_function: MaskFunction, positions: Tensor) -> Rule | None:
    """The rule of a mask function of transformers, or None where it has a part that is not known."""
    parts = _parts(mask_function)
    if parts is None:
        return None
    rule, one_sided = Rule(), False
    for name, held in parts:
        if name == "causal_mask_function":
            rule = replace(rule, causal=True)
        elif name == "sliding_window_overlay.<locals>.inner_mask":
            one_sided, rule = True, replace(rule, window=held["sliding_window"])
        elif name == "sliding_window_bidirectional_overlay.<locals>.inner_mask":
            rule = replace(rule, window=held["sliding_window"] + 1)
        elif name == "packed_sequence_mask_function.<locals>.inner_mask" and rule.document_ids is None:
            rule = replace(rule, document_ids=held["packed_sequence_mask"])
        elif name == "chunked_overlay.<locals>.inner_mask" and rule.document_ids is None:
            chunks = (positions - held["left_padding"][:, None]) // held["chunk_size"]
            rule = replace(rule, document_ids=chunks)
        elif name != "bidirectional_mask_function":
            return None
    return None if one_sided and not rule.causal else rule


def _parts(mask_function: MaskFunction) -> list[tuple[str, dict[str, Any]]] | None:
    """The functions whose intersection a mask function is, by name and with what they hold."""
    if getattr(mask_function, "__module__", None) != masking_utils.__name__:
        return None
    name = mask_function.__qualname__
    held = dict(inspect.getclosurevars(mask_function).nonlocals)
    if name == "and_masks.<locals>.and_mask":
        inner = list(held["mask_functions"])
    elif name == "remap_positions_for_packed_sequence.<locals>.inner_mask":
        # Positions that count the tokens of each document leave lags within one as they are.
        inner = [held["mask_function"]]
    else:
        return [(name, held)]
    parts: list[tuple[str, dict[str, Any]]] = []
    for function in inner:
        found = _parts(function)
        if found is None:
            return None
        parts += found
    return parts

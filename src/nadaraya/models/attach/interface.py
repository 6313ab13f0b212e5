"""`attn_implementation="nadaraya"`: the operator behind the call that modules of transformers make."""

from typing import Any

import torch
from torch import Tensor, nn

from nadaraya.attention import kernel_attention
from nadaraya.attention.blocked import masked_bias
from nadaraya.attention.functional import AttentionOptions
from nadaraya.errors import InputError
from nadaraya.models.attach.masks import Rule, UnwrittenMask
from nadaraya.models.attach.relative import relative_position


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention of `attn_implementation="nadaraya"`, as transformers' AttentionInterface calls it.

    Args:
        module: the attention module that calls.
        query: (B, H, Nq, d).
        key: (B, G, Nk, d), H a multiple of G.
        value: (B, G, Nk, dv).
        attention_mask: what `masks.attention_mask` made, or a mask (B or 1, H or 1, Nq, Nk), bool (True takes
            part) or added.
        dropout: probability of dropping a weight, in training.
        scaling: factor of q·k; default 1/√d.
        is_causal: whether, without a mask, queries see only keys before them; default the module's, or True.
        position_bias: (B or 1, H or 1, Nq, Nk), added, or what an attached module hands on in its place.
        s_aux: (H,) logits of a sink per head, which takes weight and gives no value.
        sinks: (B, H, Nq, 1), the same for each query.
        **options: `output_attentions` asks for the weights; a `softcap` is refused; others have no effect.

    Returns:
        (B, Nq, H, dv) and, where asked for, the weights (B, H, Nq, Nk).

    Raises:
        InputError: softcapped logits, or arguments that the operator does not take.
    """
    if options.get("softcap") is not None:
        raise InputError(
            f"softcap must be None for attn_implementation='nadaraya', got {options['softcap']}: "
            "attn_implementation='eager' has capped logits"
        )
    seen = getattr(module, "nadaraya_seen_keys", None)
    if seen is not None:  # heads were removed, and those that remain do not share keys evenly
        key, value = key[:, seen], value[:, seen]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    call, last = _masks(attention_mask, bool(causal), query, key)
    key, value = key[:, :, :last], value[:, :, :last]
    position = relative_position(module, position_bias, query.shape[2], key.shape[2])
    if position is not None:
        call["position"] = position
    elif position_bias is not None and position_bias.numel():
        bias, mask = position_bias[..., :last], call.get("attn_mask")
        call["attn_mask"] = bias if mask is None else masked_bias(bias, mask, bias.dtype)
    call["content"] = scaling
    sink = sinks[..., 0] if sinks is not None else None if s_aux is None else s_aux[:, None]
    weights = None
    if options.get("output_attentions"):
        _, weights = kernel_attention(query, key, value, return_weights=True, **call)
    call["dropout_p"] = dropout if module.training else 0.0
    if sink is None:
        out = kernel_attention(query, key, value, **call)
    else:
        # A logit s without a value: Σ_j κ_j v_j / (Σ_j κ_j + eˢ).
        out, lse = kernel_attention(query, key, value, return_lse=True, **call)
        share = torch.sigmoid(lse - sink.to(lse.dtype))[..., None]
        out = out * share.to(out.dtype)
        weights = None if weights is None else weights * share
    return out.transpose(1, 2).contiguous(), None if weights is None else weights.to(query.dtype)


def _masks(mask: Tensor | None, causal: bool, query: Tensor, key: Tensor) -> tuple[AttentionOptions, int]:
    """The operator's masks, and how many keys there are to see."""
    num_queries, num_keys = query.shape[2], key.shape[2]
    if mask is None:
        causal = causal and num_queries > 1
        # As in transformers' own, a static cache that holds nothing but these tokens needs no mask.
        return {"causal": causal}, num_queries if causal else num_keys
    if not isinstance(mask, UnwrittenMask):
        one_row = mask.dtype == torch.bool and mask.dim() == 4 and mask.shape[1] == mask.shape[2] == 1
        if one_row and mask.shape[3] == num_keys:
            return {"key_mask": mask[:, 0, 0].to(key.device).expand(key.shape[0], -1)}, num_keys
        return {"attn_mask": mask}, num_keys
    if mask.shape[2:] != (num_queries, num_keys):
        return {"attn_mask": mask.written()}, num_keys
    rule: Rule = mask.rule
    last = rule.offset + num_queries if rule.causal else num_keys
    call: AttentionOptions = {"causal": rule.causal, "window": rule.window}
    if rule.key_mask is not None:
        call["key_mask"] = rule.key_mask[:, :last].to(key.device)
    if rule.document_ids is not None:
        call["document_ids"] = rule.document_ids[:, :last].to(key.device)
    return call, last

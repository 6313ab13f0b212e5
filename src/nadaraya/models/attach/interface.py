"""`attn_implementation="nadaraya"`: the operator behind the call that modules of transformers make."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from transformers.utils.output_capturing import _active_collector

from nadaraya.attention import document_ids_of_lengths
from nadaraya.attention.autocast import in_autocast_dtype
from nadaraya.attention.blocked import masked_bias
from nadaraya.attention.functional import AttentionOptions, kernel_attention
from nadaraya.errors import must_be
from nadaraya.models.attach.masks import UnwrittenMask
from nadaraya.models.attach.relative import relative_position
from nadaraya.models.gated import GatedKernel

# What modules hand on that changes no weight, or has changed the mask already.
_WITHOUT_EFFECT = (
    "cache_position", "deterministic", "logits_to_keep", "max_length_k", "max_length_q", "num_items_in_batch",
    "output_attentions", "output_hidden_states", "output_router_logits", "position_ids", "sliding_window",
    "use_cache",
)  # fmt: skip
_PACKED = ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx")


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
    softcap: float | None = None,
    indices: Tensor | None = None,
    bank: GatedKernel | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention of `attn_implementation="nadaraya"`, as transformers' AttentionInterface calls it.

    Args:
        module: the attention module that calls.
        query, key, value: (B, H, Nq, d), (B, G, Nk, d) and (B, G, Nk, dv), H a multiple of G.
        attention_mask: what `masks.attention_mask` made, or a mask (B or 1, H or 1, Nq, Nk), bool (True takes
            part) or added.
        dropout: probability of dropping a weight, in training.
        scaling: factor of q·k; default 1/√d.
        is_causal: whether, without a mask, queries see only keys before them; default the module's, or True.
        position_bias: (B or 1, H or 1, Nq, Nk), added, or what an attached module hands on in its place.
        s_aux: (H,) logits of a sink per head, which takes weight and gives no value.
        sinks: (B, H, Nq, 1), the same for each query.
        softcap: c of logits c tanh(s / c), s the scaled products; all pairs are written out then.
        indices: (B, Nq, k) the only keys that a query sees, of those that the mask shows it.
        bank: a kernel of the lag between queries and keys of one sequence, added to the logits.
        **options: `output_attentions` asks for the weights, as the model's own does; `cu_seq_lens_q`,
            `cu_seq_lens_k` and `seq_idx` tell documents, which the mask must know; some have no effect.

    Returns:
        (B, Nq, H, dv) and, where asked for, the weights (B, H, Nq, Nk).

    Raises:
        InputError: an option that is not known, such as `block_indices`; documents that the mask does not
            know; causal queries without a mask that are not as many as the keys; what the operator does not
            take.
    """
    # Rotations and norms widen queries and keys.
    query, key, value = (in_autocast_dtype(tensor) for tensor in (query, key, value))
    seen = getattr(module, "nadaraya_seen_keys", None)
    if seen is not None:  # heads were removed, and those that remain do not share keys evenly
        key, value = key[:, seen], value[:, seen]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    visible = attention_mask
    if indices is not None:  # of DeepSeek's kin, whose mask is always there
        hidden = indices.new_ones(*indices.shape[:2], key.shape[2], dtype=torch.bool)
        hidden = hidden.scatter(-1, indices.long(), False)[:, None]
        assert attention_mask is not None
        lowest = torch.finfo(query.dtype).min if attention_mask.is_floating_point() else False
        attention_mask = attention_mask.masked_fill(hidden, lowest)
    call, last = _masks(attention_mask, bool(causal), query, key)
    _check(options, call.get("document_ids"))
    every_value, key, value = value, key[:, :, :last], value[:, :, :last]
    lengths = query.shape[2], key.shape[2]
    position = relative_position(module, position_bias, *lengths)
    if bank is not None:
        placed = causal and position is None and "attn_mask" in call
        beside = bank.position(*lengths, _first_place(visible, *lengths) if placed else None)
        if position is not None and not (isinstance(position, Tensor) and isinstance(beside, Tensor)):
            raise must_be("position of a module with a kernel bank", "no mixture", type(module).__name__)
        call["position"] = beside if position is None else position + beside
    elif position is not None:
        call["position"] = position
    if softcap is not None:  # no model has both
        position_bias = _capped(query, key, scaling, softcap)
    if position is None and position_bias is not None and position_bias.numel():
        bias, mask = position_bias[..., :last], call.get("attn_mask")
        call["attn_mask"] = bias if mask is None else masked_bias(bias, mask, bias.dtype)
    call["content"] = scaling
    sink = sinks[..., 0] if sinks is not None else None if s_aux is None else s_aux[:, None]
    recorded = None if torch.compiler.is_compiling() else _active_collector.get()
    weights = None
    # Not all modules hand on that their model was asked for weights.
    if options.get("output_attentions") or any("attentions" in name for name in recorded or ()):
        _, weights = kernel_attention(query, key, value, return_weights=True, **call)
    call["dropout_p"] = dropout if module.training else 0.0
    blind = "key_mask" in call and (call["causal"] or "window" in call)
    if sink is None and not blind:
        out = kernel_attention(query, key, value, **call)
    else:
        out, lse = kernel_attention(query, key, value, return_lse=True, **call)
    if sink is not None:
        # A logit s without a value: Σ_j κ_j v_j / (Σ_j κ_j + eˢ).
        share = torch.sigmoid(lse - sink.to(lse.dtype))[..., None]
        out = out * share.to(out.dtype)
        weights = None if weights is None else weights * share
    elif blind:
        # Eager attention adds the same number to all keys of a query that sees none, which gives their mean.
        mean = every_value.mean(2, keepdim=True).repeat_interleave(query.shape[1] // value.shape[1], 1)
        out = torch.where(torch.isneginf(lse)[..., None], mean, out)
    return out.transpose(1, 2).contiguous(), None if weights is None else weights.to(query.dtype)


def _check(options: dict[str, Any], documents: Tensor | None) -> None:
    """Refuse options that are not known, and documents other than those that the mask has from positions."""
    for name, given in options.items():
        if given is None or given is False or name in _WITHOUT_EFFECT:
            continue
        if name not in _PACKED:
            raise must_be(name, "None for attn_implementation='nadaraya' ('eager' may know it)", given)
        begins = (given if name == "seq_idx" else document_ids_of_lengths(given)).diff() != 0
        if begins.any() and (documents is None or not torch.equal(begins, documents.diff() != 0)):
            accepted = "that of position_ids that begin again, with use_cache=False and no attention_mask"
            raise must_be(name, accepted, given)


def _masks(mask: Tensor | None, causal: bool, query: Tensor, key: Tensor) -> tuple[AttentionOptions, int]:
    """The operator's masks, and how many keys there are to see."""
    lengths = query.shape[2], key.shape[2]
    if mask is None:
        causal = causal and lengths[0] > 1
        if causal and lengths[0] != lengths[1]:
            accepted = f"given for {lengths[0]} causal queries of {lengths[1]} keys"
            raise must_be("attention_mask", accepted, mask)
        return {"causal": causal}, lengths[1]
    if not isinstance(mask, UnwrittenMask) or mask.options is None or mask.shape[2:] != lengths:
        return {"attn_mask": mask.written() if isinstance(mask, UnwrittenMask) else mask}, lengths[1]
    options: Any = tree_map_only(Tensor, lambda tensor: tensor.to(key.device), dict(mask.options))
    return options, mask.last


def _capped(query: Tensor, key: Tensor, scaling: float | None, softcap: float) -> Tensor:
    """c tanh(s / c) − s (B, H, Nq, Nk), to be added to the logits s."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query.float() @ key.float().mT * (scaling or query.shape[-1] ** -0.5)
    return softcap * torch.tanh(scores / softcap) - scores


def _first_place(mask: Any, num_queries: int, num_keys: int) -> Tensor | int | None:
    """The first query's place among the keys of a causal mask, (); None where the ends are aligned.

    A static cache has room behind the queries. Where only numbers tell, a query sees its own key last, unless
    that is padding.
    """
    if num_queries == num_keys:
        return None
    if isinstance(mask, UnwrittenMask):
        return mask.first
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    last = torch.where(seen, torch.arange(num_keys, device=mask.device), -1).amax(-1)
    return (last - torch.arange(num_queries, device=mask.device)).amax()

"""Heads removed from the models of transformers: Llama and its relatives, GPT-2 and GPT-NeoX."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel

from nadaraya.errors import InputError, must_be
from nadaraya.kernels.heads import keep_columns, keep_rows, kept_blocks, seen_keys
from nadaraya.models.attach.decoders import attention_layers, heads_of
from nadaraya.models.gated import BANK

_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
_NORMS = ("q_norm.weight", "k_norm.weight")


def prune_attention_heads(model: PreTrainedModel, heads: Mapping[int | str, Sequence[int]]) -> Any:
    """A model of transformers without some heads; `prune_heads` calls it for models that are not KernelGPT.

    Args:
        model: one whose attention has q_proj, k_proj, v_proj and o_proj, as Llama and its relatives, or
            GPT-2 or GPT-NeoX; left as it is. Where key and value heads are left with unequal numbers of
            heads, it must have `attn_implementation="nadaraya"`.
        heads: the heads to remove by layer, as they were numbered before any was removed.

    Returns:
        The smaller model; `config.pruned_heads` keeps the list.

    Raises:
        InputError: attention of another kind, or heads that the model has not, or all of a layer.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from nadaraya.models import prune_heads
    >>> sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=9, **sizes))
    >>> prune_heads(model, {0: [1]}).model.layers[0].self_attn.o_proj.weight.shape
    torch.Size([8, 4])
    """
    smaller = copy.deepcopy(model)
    layers = attention_layers(smaller)
    if any(hasattr(part, BANK) for part in layers.values()):
        raise must_be("model", "one without a kernel bank: detach it first", type(model).__name__)
    for layer, removed in heads.items():
        if not str(layer).isdecimal() or int(layer) not in layers:
            raise must_be("heads", f"by layer, from 0 to {max(layers)}", {layer: list(removed)})
        part = layers[int(layer)]
        there = heads_of(part)
        kept = [head for head in there if head not in removed]
        if not set(removed) <= set(there) or not kept:
            accepted = f"of {', '.join(map(str, there))} in layer {layer}, and not all of them"
            raise must_be("heads", accepted, list(removed))
        _keep(part, kept)
    smaller.config.pruned_heads = {
        str(number): sorted(set(range(part.nadaraya_all_heads)) - set(part.nadaraya_heads))
        for number, part in layers.items()
        if hasattr(part, "nadaraya_heads")
    }
    return smaller


def _keep(part: Any, kept: list[int]) -> None:
    there = heads_of(part)
    if not hasattr(part, "nadaraya_heads"):
        part.nadaraya_all_heads = len(there)
    rows = [there.index(head) for head in kept]
    if hasattr(part, "c_attn"):
        fused = [third * len(there) + row for third in range(3) for row in rows]
        keep_rows(part.c_attn, fused, 3 * len(there))
        keep_columns(part.c_proj, rows, len(there))
        part.split_size, part.num_heads = len(kept) * part.head_dim, len(kept)
    elif hasattr(part, "query_key_value"):
        keep_rows(part.query_key_value, rows, len(there))
        keep_columns(part.dense, rows, len(there))
    else:
        _keep_projections(part, there, kept, rows)
    part.nadaraya_heads = tuple(kept)


def _keep_projections(part: Any, there: list[int], kept: list[int], rows: list[int]) -> None:
    for name, parameter in part.named_parameters():
        shared_norm = name in _NORMS and parameter.numel() == part.head_dim
        if name.split(".")[0] not in (*_PROJECTIONS, "sinks") and not shared_norm:
            raise InputError(f"heads of {type(part).__name__} cannot be removed: it has {name}")
    if hasattr(part, "sinks"):
        part.sinks = kept_blocks(part.sinks, rows, len(there))
    if not hasattr(part, "nadaraya_kv_heads"):
        part.nadaraya_kv_heads = tuple(range(part.k_proj.out_features // part.head_dim))
        part.nadaraya_shared = len(there) // len(part.nadaraya_kv_heads)
    before, shared = part.nadaraya_kv_heads, part.nadaraya_shared
    kv_heads = tuple(sorted({head // shared for head in kept}))
    keep_rows(part.q_proj, rows, len(there))
    for linear in (part.k_proj, part.v_proj):
        keep_rows(linear, [before.index(head) for head in kv_heads], len(before))
    keep_columns(part.o_proj, rows, len(there))
    part.nadaraya_kv_heads = kv_heads
    for name, number in (("num_heads", len(kept)), ("num_key_value_heads", len(kv_heads))):
        if hasattr(part, name):  # of StableLM, whose forward pass asks for them
            setattr(part, name, number)
    part.nadaraya_seen_keys = seen_keys(kept, shared)
    even = part.nadaraya_seen_keys is None
    part.num_key_value_groups = len(kept) // len(kv_heads) if even else 1
    if not even and part.config._attn_implementation != "nadaraya":
        accepted = "'nadaraya' where key heads are left with unequal numbers of heads"
        raise must_be("attn_implementation", accepted, part.config._attn_implementation)

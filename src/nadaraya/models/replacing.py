"""`replace_attention`: layers of a variant in place of a trained decoder's own, starting from its weights."""

import copy
import inspect
import json
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nadaraya.attention import variants
from nadaraya.attention.layer import KernelSelfAttention
from nadaraya.attention.projections import Projections
from nadaraya.errors import InputError, must_be
from nadaraya.kernels.bank import shared_by_layers
from nadaraya.models.attach.decoders import attention_layers, linear_maps, matrices_of, width_of
from nadaraya.models.block import LayerCache
from nadaraya.models.inputs import documents_of

# Rotations of some layers alone, unless `use_rope` tells which, and factors of queries by position.
_MORE = re.compile(r"if self\.(?!use_rope).*:\s+query_states, key_states = apply_rotary|attn_scale\(")
REPLACED = "replaced_attention"  # of a configuration: calls of `replace_attention`


class ReplacedAttention(nn.Module):
    """A `KernelSelfAttention` behind the call of transformers' decoder layers; it reports no weights."""

    def __init__(self, attention: KernelSelfAttention, layer_idx: int, dropout: nn.Module | None) -> None:
        super().__init__()
        self.attention, self.layer_idx = attention, layer_idx
        self.training = attention.training
        self.dropout = nn.Identity() if dropout is None else copy.deepcopy(dropout)

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Any = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        layer_past: Any = None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        cached, cache = 0, None
        past_key_values = layer_past if past_key_values is None else past_key_values
        if past_key_values is not None:
            if self.attention.decodes_by_state:
                raise must_be("use_cache", "False for a variant that keeps a state", True)
            cached = int(past_key_values.get_seq_length(self.layer_idx))
            cache = LayerCache(past_key_values, self.layer_idx, cached)
        masks = _masks(attention_mask, cached, hidden_states.shape[1], self.attention.window)
        return self.dropout(self.attention(hidden_states, **masks, cache=cache)), None


def replace_attention(
    model: Any,
    variant: str | Sequence[str],
    *,
    layers: Sequence[int] | None = None,
    options: Mapping[str, Any] | None = None,
) -> ExitStack:
    """Put layers of a variant in place of a decoder's self-attention, with the weights that both have.

    The start of more training, or of distillation. W_Q, W_K, W_V and W_O are copied, with biases, norms of
    queries and keys, rotary angles and sliding windows, so that "rope" computes what the model did, and
    "nope" what GPT-2 did. A matrix that makes the values besides keys or queries starts as W_V. Without any
    for values ("gka", "vlt"), W_O starts as W_O W_V, with which heads that all weigh alike give what they
    gave. Kernels start as always.

    Args:
        model: a causal model of transformers with q_proj, k_proj, v_proj and o_proj, like Llama, Mistral or
            Qwen, or GPT-2 or GPT-NeoX. It is changed; `save_pretrained` writes it, `load_pruned` reads it.
        variant: as for `KernelGPTConfig`; several names are repeated over the replaced layers.
        layers: indices of those to replace; default all.
        options: of the variants.

    Returns:
        A context manager that puts the former layers back at its end; so does its `close()`. Training,
        padding and `generate` go on, with a cache but for a variant that keeps a state ("linear").

    Raises:
        InputError: attention of another kind, no such layer, or a variant that the model cannot have; later,
            `position_ids` that do not count tokens, or packed ones with a cache.

    >>> import torch
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> from nadaraya.models import replace_attention
    >>> sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=2, num_attention_heads=2)
    >>> model, tokens = LlamaForCausalLM(LlamaConfig(vocab_size=9, **sizes)), torch.tensor([[3, 4, 5]])
    >>> before = model(tokens).logits
    >>> with replace_attention(model, "gka", layers=[1]):
    ...     model(tokens, labels=tokens).loss.backward()
    >>> torch.equal(model(tokens).logits, before)
    True
    """
    found = attention_layers(model)
    chosen = list(found) if layers is None else [layers] if isinstance(layers, int) else list(layers)
    if not chosen or not set(chosen) <= set(found) or len(set(chosen)) < len(chosen):
        raise must_be("layers", f"one or more of {', '.join(map(str, found))}", layers)
    named = variants.by_layer(variant, len(chosen), options)
    made = [_made(found[layer], each, model) for layer, (_, each) in zip(chosen, named, strict=True)]
    names = {id(module): name for name, module in model.named_modules()}
    undo = ExitStack()
    for layer, attention in zip(chosen, made, strict=True):
        undo.callback(_put_back, model, names[id(found[layer])], found[layer])
        dropout = getattr(found[layer], "resid_dropout", None)
        model.set_submodule(names[id(found[layer])], ReplacedAttention(attention, layer, dropout))
    if any(attention.decodes_by_state for attention in made):
        for config in filter(None, (model.config, getattr(model, "generation_config", None))):
            undo.callback(setattr, config, "use_cache", config.use_cache)
            config.use_cache = False
    text = getattr(model, "base_model", model)  # which a head calls, and some callers
    undo.callback(text.register_forward_pre_hook(_check_positions, with_kwargs=True).remove)
    call = {"variant": variant, "layers": chosen, "options": dict(options or {})}
    with suppress(TypeError):  # options that JSON does not know are given again by hand
        json.dumps(call)
        setattr(model.config, REPLACED, [*(getattr(model.config, REPLACED, None) or ()), call])
        undo.callback(_forget, model.config, call)
    return undo


def _forget(config: Any, call: dict[str, Any]) -> None:
    calls = getattr(config, REPLACED)
    calls.remove(call)
    if not calls:
        delattr(config, REPLACED)


def _check_positions(model: Any, args: tuple[Any, ...], options: dict[str, Any]) -> None:
    """Refuse positions that new layers, which count tokens, would not know of."""
    options = inspect.signature(model.forward).bind_partial(*args, **options).arguments
    options |= options.get("kwargs", {})
    positions, mask, rows = (options.get(name) for name in ("position_ids", "attention_mask", "input_ids"))
    rows = options.get("inputs_embeds") if rows is None else rows
    told = mask is not None and (not isinstance(mask, Tensor) or mask.dim() > 2)  # of what queries see
    if positions is None or rows is None or told:
        return
    cache = options.get("past_key_values")
    cached = 0 if cache is None else int(cache.get_seq_length())
    packed = documents_of(positions, {}, None if mask is None else mask != 0, rows, cached) is not None
    given = options.get("use_cache")
    if packed and (model.config.use_cache if given is None else given):
        raise must_be("use_cache", "False where position_ids begin again", True)


def _put_back(model: nn.Module, name: str, former: Any) -> None:
    """Put a layer back, in the mode and, where it has changed since, the dtype and place of the one there."""
    there = model.get_submodule(name)
    weight = next(there.parameters())
    was = next(former.parameters())
    if (weight.device, weight.dtype) != (was.device, was.dtype):
        former.to(weight.device, weight.dtype)
    model.set_submodule(name, former.train(there.training))


def _made(part: Any, arguments: dict[str, Any], model: nn.Module) -> KernelSelfAttention:
    """The layer in place of one of transformers, on its device and in its dtype."""
    kind, width, maps = type(part).__name__, width_of(part), linear_maps(part)
    known = {name for name, module in part.named_children() if any(module is each for each in maps.values())}
    for name, each in part.named_parameters():
        if name.split(".")[0] not in known and not (name[1:6] == "_norm" and len(each) == width):
            raise InputError(f"{kind} cannot be replaced: it has {name}")
    scale = getattr(part, "scaling", 0.0)
    capped = getattr(part, "attn_logit_softcapping", None) or abs(scale**2 * width - 1) > 1e-6
    uneven = getattr(part, "nadaraya_seen_keys", None) is not None
    if capped or uneven or not getattr(part, "is_causal", True):
        raise must_be("attention", "causal, with logits q·k / √d of keys that heads share evenly", kind)
    source = inspect.getsource(inspect.unwrap(type(part).forward))
    clips = getattr(getattr(part, "config", None), "clip_qkv", None) is not None
    if clips or _MORE.search(source):
        accepted = "one that rotates queries and keys in all layers and changes them no more"
        raise must_be("attention", accepted, kind)
    order, rotation = _rotation(part, model)
    windows = [w for w in (_window(part), arguments.get("window")) if w]
    rows = matrices_of(part)
    if len(rows["q"]) != rows["o"].shape[1] - 1:
        raise must_be("attention", "without a gate in the matrix of its queries", kind)
    heads, kv_heads = (len(rows[letter]) // width for letter in "qk")
    grouped = arguments.get("projections", "qkvo") in ("qkvo", "q(kv)o")
    dropout = getattr(part, "attention_dropout", getattr(part, "attn_dropout", 0.0))
    layer = KernelSelfAttention(
        len(rows["o"]),
        heads,
        causal=True,
        num_key_value_heads=kv_heads if grouped else heads,
        head_dim=width,
        bias=maps["q"].bias is not None,
        out_bias=maps["v"].bias is not None or maps["o"].bias is not None,
        dropout=getattr(dropout, "p", dropout),
        **{**arguments, "window": min(windows, default=None)},
    )
    if list(shared_by_layers(layer)):
        raise InputError("share must be 'none' or 'heads': replaced layers have nothing in common")
    _copy(rows, layer.projections, order)
    for name in ("q", "k"):
        if getattr(layer.projections, f"{name}_proj") is not None and hasattr(part, f"{name}_norm"):
            norm = copy.deepcopy(getattr(part, f"{name}_norm"))
            for gain in norm.parameters():
                gain.data = gain.data[order]
            setattr(layer.projections, f"{name}_norm", norm)
            layer.projections.register_forward_hook(partial(_normalised, name))
    if rotation is not None and layer.rotary is not None and not layer.rotary.learned:
        layer.rotary.replaced = rotation
    dtype = rows["q"].dtype
    for name, child in layer.named_children():  # in half precision periods would be off
        wide = name in ("content", "position", "rotary")
        child.to(rows["q"].device, torch.promote_types(dtype, torch.float32) if wide else dtype)
    return layer.train(part.training)


def _window(part: Any) -> int | None:
    """The sliding window of a layer of transformers: its own, or its configuration's, as Mistral's."""
    if not getattr(part, "is_sliding", True):
        return None
    if hasattr(part, "sliding_window"):
        own: int | None = part.sliding_window
        return own
    config = getattr(part, "config", None)
    kinds = getattr(config, "layer_types", None)
    slides = kinds is None or kinds[part.layer_idx] == "sliding_attention"
    slides = slides and getattr(config, "use_sliding_window", True)
    return getattr(config, "sliding_window", None) if slides else None


def _rotation(part: Any, model: nn.Module) -> tuple[list[int], tuple[Tensor, float] | None]:
    """Channels of a head so that those that turn together are neighbours; angles (d/2,) and a factor."""
    order = list(range(width_of(part)))
    turn = getattr(sys.modules[type(part).__module__], "rotate_half", None)
    found = [each for each in model.modules() if isinstance(getattr(each, "inv_freq", None), Tensor)]
    if len(found) != (turn is not None):
        raise must_be("model", "one with one set of rotary angles, or none", type(model).__name__)
    if turn is None:
        return order, None
    rotary: Any = found[0]
    angles = rotary.inv_freq.detach().float() * getattr(part, "use_rope", True)
    turned = turn(torch.arange(1.0, 2 * len(angles) + 1)).long().tolist()  # −b in place of a, a in that of b
    pairs = [(place, -source - 1) for place, source in enumerate(turned) if source < 0]
    order[: len(turned)] = [channel for pair in pairs for channel in pair]
    return order, (F.pad(angles, (0, (len(order) - len(turned)) // 2)), rotary.attention_scaling)


@torch.no_grad()
def _copy(rows: dict[str, Tensor], mine: Projections, order: list[int]) -> None:
    """Start the projections from W_Q, W_K, W_V and W_O whose biases are a last column."""
    heads, shared = mine.shape.num_heads, {"q(kv)o": "k", "(qkv)o": "q"}.get(mine.form)
    theirs = {"o": rows["o"]}
    for name in "qkv":
        by_head = rows[name].unflatten(0, (-1, mine.shape.head_dim))
        by_head = by_head if name == "v" else by_head[:, order]
        each = heads // len(by_head) if mine.shape.num_key_value_heads == heads else 1
        theirs[name] = by_head.repeat_interleave(each, 0).flatten(0, 1)
    if "v" not in mine.form:
        out = theirs["o"]
        theirs["o"] = out[:, :-1] @ theirs["v"] + F.pad(out[:, -1:], (len(out), 0))
    for name in "qkvo":
        linear, start = getattr(mine, f"{name}_proj"), theirs["v" if name == shared else name]
        if linear is not None:
            linear.weight.copy_(start[:, :-1])
            if linear.bias is not None:
                linear.bias.copy_(start[:, -1])


def _normalised(letter: str, projections: Any, inputs: Any, heads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Queries or keys, and what is the same tensor, normalised as the former layer did."""
    former = heads["qk".index(letter)]
    normed = getattr(projections, f"{letter}_norm")(former)
    return tuple(normed if each is former else each for each in heads)


def _masks(mask: Tensor | None, cached: int, tokens: int, window: int | None) -> dict[str, Tensor]:
    """Padding alone where a mask of transformers has nothing else; otherwise which keys each query sees."""
    if mask is None:
        return {}
    so_far = cached + tokens
    seen = (mask if mask.dtype == torch.bool else mask == 0)[:, 0, :, :so_far]
    seen = F.pad(seen, (so_far - seen.shape[2], 0))  # a cache of a window has the last keys alone
    key_mask, place = seen.any(1), torch.arange(so_far, device=mask.device)
    lags = place[cached:, None] - place
    rule = (lags >= 0) & (lags < (window or so_far)) & key_mask[:, None]
    masks = {"key_mask": key_mask, "attn_mask": seen[:, None]}
    if bool((seen == rule).all()):
        del masks["attn_mask"]
    return masks

"""Relative positions that modules of transformers write out as N × N biases, handed to the operator by lag.

An attached module passes on, in the place of its `position_bias`, what the bias is made of. Its parameters
stay its own, and so does all that it computes with them.

- T5 and its kin: b(i, j) = E[bucket(j − i), h]. The embedding E, (buckets, H), goes along.
- Inkling: b(i, j) = Σ_m w_im P[m, i − j], 0 beyond the extent of P. The weights w go along.

A single query's bias is no larger than its keys, so cached decoding keeps the module's own.
"""

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nadaraya.attention import MixedLogits

# One forward method, by the names that it has in models of T5's kin.
_BUCKETS = (
    "T5Attention", "MT5Attention", "SwitchTransformersAttention", "LongT5Attention", "Pop2PianoAttention",
)  # fmt: skip
_MIXED = ("InklingAttention", "Inkling2SlidingAttention", "Inkling2FullAttention")


def is_relative(module: nn.Module) -> bool:
    """Test whether a module's positions can be handed on unwritten."""
    return type(module).__name__ in (*_BUCKETS, *_MIXED)


def hand_on(module: nn.Module) -> Callable[[], None]:
    """Let a module that `is_relative` hand on what its bias is made of, until the result is called."""
    if type(module).__name__ in _BUCKETS:
        return module.register_forward_pre_hook(_hand_on_buckets, with_kwargs=True).remove
    bias: Any = module.rel_logits_proj
    bias.forward = MethodType(_weights_of_profiles, module)
    return partial(delattr, bias, "forward")


def hands_on(module: nn.Module) -> bool:
    """Test whether `hand_on` was called and not taken back."""
    if type(module).__name__ in _MIXED:
        return "forward" in vars(module.rel_logits_proj)
    return _hand_on_buckets in module._forward_pre_hooks.values()


def relative_position(
    module: Any, handed_on: Tensor | None, num_queries: int, num_keys: int
) -> Tensor | MixedLogits | None:
    """The operator's position from what an attached module handed on; None from anything else."""
    name = type(module).__name__
    if handed_on is None or not handed_on.numel():
        return None
    if name in _BUCKETS and handed_on.dim() == 2:
        length = max(num_queries, num_keys)
        buckets = module._relative_position_bucket(
            torch.arange(length - 1, -length, -1, device=handed_on.device),  # key's place − query's = −lag
            bidirectional=not module.is_decoder,
            num_buckets=module.relative_attention_num_buckets,
            max_distance=module.relative_attention_max_distance,
        )
        return F.embedding(buckets, handed_on).T
    if name in _MIXED and handed_on.dim() == 5:
        profiles = module.rel_logits_proj.proj
        # Nothing is added at negative lags, which masks may let through.
        signed = F.pad(profiles, (profiles.shape[1] - 1, 0))
        return MixedLogits(handed_on[0], signed, signed=True)
    return None


def _hand_on_buckets(
    module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    if kwargs.get("position_bias") is not None or not _is_ours(module):
        return None
    if kwargs.get("key_value_states") is not None or not module.has_relative_attention_bias:
        return args, {**kwargs, "position_bias": module.q.weight.new_empty(0)}
    tokens = args[0] if args else kwargs["hidden_states"]
    traced_cache = torch.compiler.is_compiling() and kwargs.get("past_key_values") is not None
    if tokens.shape[1] == 1 or traced_cache:
        return None
    # A copy: re-entrant checkpointing would make the parameter itself, as its output, part of a graph.
    return args, {**kwargs, "position_bias": module.relative_attention_bias.weight.clone()}


def _weights_of_profiles(
    module: Any, weights: Tensor, query_positions: Tensor, key_positions: Tensor
) -> Tensor:
    """(1, B, H, Nq, M): one dimension more than a bias, and scaled row by row it stays what it is."""
    traced_cache = torch.compiler.is_compiling() and len(query_positions) != len(key_positions)
    if len(query_positions) == 1 or traced_cache or not _is_ours(module):
        bias = module.rel_logits_proj
        return type(bias).forward(bias, weights, query_positions, key_positions)
    return weights.transpose(1, 2)[None]


def _is_ours(module: Any) -> bool:
    """Test whether what is handed on will be read; another implementation may have been set since."""
    name = module.config._attn_implementation
    return bool(name.endswith("nadaraya") or name.startswith("nadaraya-window-"))

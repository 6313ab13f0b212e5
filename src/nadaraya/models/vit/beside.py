"""Kernels of the patch grid beside the attention of timm's vision transformers."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Attention, maybe_add_mask, resolve_self_attn_mask
from torch import Tensor, nn

from nadaraya.attention.functional import kernel_attention
from nadaraya.models.gated import BANK, Place, WithGradientOf


class _BesideAttention(Attention):
    """timm's attention with a bank; its modules become one, and what they were again, where they are."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        gate = None if self.gate is None else self.gate(x).sigmoid()
        qkv = self.qkv(x).unflatten(2, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        query, key = self.q_norm(query), self.k_norm(key)
        x = self.norm(self._attended(query, key, value, attn_mask, is_causal).transpose(1, 2).flatten(2))
        out: Tensor = self.proj_drop(self.proj(x if gate is None else x * gate))
        return out

    def _attended(self, query: Tensor, key: Tensor, value: Tensor, mask: Any, causal: bool) -> Tensor:
        bank, dropout = getattr(self, BANK), self.attn_drop.p if self.training else 0.0
        options: Any = {"attn_mask": mask, "dropout_p": dropout}
        if closed := bank.is_closed():
            if self.fused_attn:
                before = F.scaled_dot_product_attention(query, key, value, is_causal=causal, **options)
            else:
                logits = (query * self.scale) @ key.transpose(-2, -1)
                logits = maybe_add_mask(logits, resolve_self_attn_mask(key.shape[2], logits, mask, causal))
                before = self.attn_drop(logits.softmax(dim=-1)) @ value
            if not (torch.is_grad_enabled() and bank.gate.requires_grad):
                return before
            query, key, value, options["dropout_p"] = query.detach(), key.detach(), value.detach(), 0.0
        options |= {"content": self.scale, "position": bank.position(key.shape[2], key.shape[2])}
        out: Tensor = kernel_attention(query, key, value, causal=causal, **options)
        return WithGradientOf.apply(before, out) if closed else out


def places(model: Any) -> dict[str, Place]:
    """timm's plain attention, by the names of its modules."""
    own = getattr(model.patch_embed, "proj", None)  # of a hybrid it follows other convolutions
    convs = (module for module in model.patch_embed.modules() if isinstance(module, nn.Conv2d))
    patches = own if isinstance(own, nn.Conv2d) else next(convs)
    named = model.named_modules()
    return {name: Place(m, m.num_heads, patches) for name, m in named if type(m) is Attention}


def enter(model: nn.Module, modules: Sequence[nn.Module]) -> Callable[[], None]:
    """Let modules take notice of their banks, until the result is called."""

    _become(_BesideAttention, modules)
    return partial(_become, Attention, modules)


def _become(kind: type[nn.Module], modules: Sequence[nn.Module]) -> None:
    for module in modules:
        module.__class__ = kind

"""Kernel attention in a timm vision transformer that exists already."""

from collections.abc import Mapping
from typing import Any

import torch
from timm.layers import Attention
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from nadaraya.errors import InputError, must_be
from nadaraya.models.vit.attention import VisionAttention, layer_options
from nadaraya.models.vit.model import KernelVisionTransformer, check_patch_drop, check_pattern


def convert(
    model: VisionTransformer,
    variant: str = "gka",
    variant_options: Mapping[str, Any] | None = None,
    pattern: str = "G",
) -> VisionTransformer:
    """Replace the attention of a timm vision transformer, in place; weights that both have are kept.

    Args:
        model: a `VisionTransformer` of timm, pretrained or not.
        variant: as for `KernelVisionTransformer`.
        variant_options: as for `KernelVisionTransformer`.
        pattern: which blocks are replaced (G); the others keep their attention.

    Returns:
        The model itself, now with `kernel_parameters` and their place in `no_weight_decay`.

    Raises:
        InputError: the model is no plain `VisionTransformer`, or its attention has norms, gates or head
            widths that the variant does not have; the model is then left as it was.

    >>> import timm
    >>> from nadaraya.models.vit import convert
    >>> model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=2)
    >>> [block.attn.__class__.__name__ for block in convert(model, "gka", pattern="GA").blocks]
    ['VisionAttention', 'Attention']
    """
    if type(model) not in (VisionTransformer, KernelVisionTransformer):
        raise must_be("model", "timm's VisionTransformer", type(model).__name__)
    check_pattern(pattern)
    grid = model.patch_embed.grid_size
    options = layer_options(variant, variant_options, grid, model.num_prefix_tokens)
    check_patch_drop(variant, options, getattr(model.patch_drop, "prob", 0.0))
    blocks: list[Any] = list(model.blocks)
    chosen = [block for depth, block in enumerate(blocks) if pattern[depth % len(pattern)] == "G"]
    layers = [_converted(block.attn, options) for block in chosen]
    for block, layer in zip(chosen, layers, strict=True):
        block.attn = layer
    model.__class__ = KernelVisionTransformer
    assert isinstance(model, KernelVisionTransformer)
    model.set_grid(model.patch_embed.grid_size)
    return model


@torch.no_grad()
def _converted(attention: nn.Module, options: Mapping[str, Any]) -> VisionAttention:
    if type(attention) is not Attention:
        raise must_be("attention", "timm's Attention", type(attention).__name__)
    extras = (attention.q_norm, attention.k_norm, attention.norm, attention.gate or nn.Identity())
    own_width = attention.attn_dim != attention.proj.out_features
    if own_width or not all(isinstance(extra, nn.Identity) for extra in extras):
        raise InputError("convert takes attention without norms, gates and head widths of its own")
    layer = VisionAttention(
        attention.attn_dim,
        attention.num_heads,
        qkv_bias=attention.qkv.bias is not None,
        proj_bias=attention.proj.bias is not None,
        attn_drop=attention.attn_drop.p,
        proj_drop=attention.proj_drop.p,
        **options,
    ).to(attention.proj.weight)
    mine = layer.projections
    mine.o_proj.load_state_dict(attention.proj.state_dict())
    for third, projection in enumerate((mine.q_proj, mine.k_proj, mine.v_proj)):
        if projection is not None:
            projection.weight.copy_(attention.qkv.weight.chunk(3)[third])
            if projection.bias is not None:
                projection.bias.copy_(attention.qkv.bias.chunk(3)[third])
    layer.fused_attn = attention.fused_attn
    layer.train(attention.training)
    return layer

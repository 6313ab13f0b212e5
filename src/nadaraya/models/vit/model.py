"""The vision transformer with kernel attention, and the models of Kundu et al. (2026) by name in timm."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

from timm.layers import to_2tuple
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model, resolve_pretrained_cfg
from timm.models.vision_transformer import Block, VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

from nadaraya.errors import InputError, must_be
from nadaraya.models.vit.attention import VISION_VARIANTS, VisionAttention, layer_options


class KernelBlock(Block):
    """timm's pre-norm block with a `VisionAttention` where the pattern has the letter G."""

    def __init__(self, *, kernel_options: Mapping[str, Any], pattern: str, **block: Any) -> None:
        kernel = pattern[block["depth"] % len(pattern)] == "G"
        if kernel and (block["qk_norm"] or block["scale_attn_norm"]):
            raise InputError(
                "qk_norm and scale_attn_norm belong to timm's attention; kernel attention has "
                "variant_options={'head_norm': True}"
            )
        # The place is held by a module that draws no weights in vain.
        super().__init__(**{**block, "attn_layer": nn.Identity} if kernel else block)
        if kernel:
            shared = ("dim", "num_heads", "qkv_bias", "proj_bias", "attn_drop", "proj_drop")
            attention = VisionAttention(**{name: block[name] for name in shared}, **kernel_options)
            self.attn = attention.to(device=block.get("device"), dtype=block.get("dtype"))


class KernelVisionTransformer(VisionTransformer):
    """timm's `VisionTransformer` with kernel attention (Kundu et al. (2026), section 3).

    Args:
        variant: "gka" (default), "gka-loo" (no token sees itself), "vlt", "softmax", or another of
            `nadaraya.models.vit.attention.VISION_VARIANTS`.
        variant_options: further keywords of the attention layers, such as {"bandwidth": 4.0},
            {"per": "channel"} or {"grid_kernel": "bank"}, and the variant's own.
        pattern: which blocks have it, letters repeated over the depth: "G" kernel attention, "A" timm's own
            attention with all projections; default "G".
        **options: keywords of timm's `VisionTransformer`.

    Raises:
        InputError: an unknown variant, option or letter, or options that do not fit together.

    >>> import torch
    >>> from nadaraya.models.vit import KernelVisionTransformer
    >>> model = KernelVisionTransformer(variant="gka-loo", img_size=32, depth=2, embed_dim=24, num_heads=3)
    >>> model(torch.randn(2, 3, 32, 32)).shape
    torch.Size([2, 1000])
    """

    def __init__(
        self,
        *,
        variant: str = "gka",
        variant_options: Mapping[str, Any] | None = None,
        pattern: str = "G",
        **options: Any,
    ) -> None:
        check_pattern(pattern)
        dim, heads = options.get("embed_dim", 768), options.get("num_heads", 12)
        if heads < 1 or dim % heads:
            raise must_be("embed_dim", f"a multiple of num_heads = {heads}", dim)
        sides = (to_2tuple(options.get(*side)) for side in (("img_size", 224), ("patch_size", 16)))
        height, width = (image // patch for image, patch in zip(*sides, strict=True))
        prefix = bool(options.get("class_token", True)) + int(options.get("reg_tokens", 0))
        kernel_options = layer_options(variant, variant_options, (height, width), prefix)
        check_patch_drop(variant, kernel_options, options.get("patch_drop_rate", 0.0))
        block: Any = partial(KernelBlock, kernel_options=kernel_options, pattern=pattern)
        super().__init__(**options, block_fn=block)
        self.set_grid(self.patch_embed.grid_size)

    def kernel_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and values of what shapes the kernels: log σ and the kernels of lags."""
        for prefix, module in self.named_modules():
            if isinstance(module, VisionAttention):
                for name, parameter in module.kernel_parameters():
                    yield f"{prefix}.{name}", parameter

    def no_weight_decay(self) -> set[str]:
        """timm's set of parameters without weight decay, and every kernel parameter."""
        return {*super().no_weight_decay(), *(name for name, _ in self.kernel_parameters())}

    def set_input_size(self, *args: Any, **kwargs: Any) -> None:
        """As in timm; layers with a kernel of the grid learn the new grid."""
        super().set_input_size(*args, **kwargs)
        self.set_grid(self.patch_embed.grid_size)

    def set_grid(self, grid_size: tuple[int, int]) -> None:
        """Tell every kernel layer the rows and columns of patches."""
        for module in self.modules():
            if isinstance(module, VisionAttention):
                module.grid_size = grid_size
                module.num_prefix_tokens = self.num_prefix_tokens

    def _pos_embed(self, x: Tensor) -> Tensor:
        if self.dynamic_img_size:  # the patches still have their grid here, one of this very image
            self.set_grid((x.shape[1], x.shape[2]))
        return super()._pos_embed(x)


def check_pattern(pattern: str) -> None:
    """Refuse a pattern of blocks that has no letter or one that is neither G nor A."""
    if not pattern or set(pattern) - {"G", "A"}:
        raise must_be("pattern", "made of the letters G (kernel) and A (timm's attention)", pattern)


def check_patch_drop(variant: str, kernel_options: Mapping[str, Any], rate: float) -> None:
    """Refuse to drop patches where attention knows their places."""
    if rate > 0 and (kernel_options.get("grid_kernel") is not None or variant in _ORDERED):
        raise must_be("patch_drop_rate", "0 with a kernel of the patch grid or mixtures by place", rate)


_ORDERED = ("linformer", "nystromformer")
_FAMILIES = [name for name in VISION_VARIANTS if name not in ("gka-loo", "softmax")]
_SIZES: dict[str, dict[str, int]] = {  # those of DeiT
    "tiny": {"embed_dim": 192, "depth": 12, "num_heads": 3},
    "small": {"embed_dim": 384, "depth": 12, "num_heads": 6},
    "base": {"embed_dim": 768, "depth": 12, "num_heads": 12},
}

# Sizes, mean and deviation are timm's defaults: those of ImageNet, as in DeiT.
default_cfgs = generate_default_cfgs(
    {
        f"{family.replace('-', '_')}_{size}_patch16_224.untrained": {
            "crop_pct": 0.9,
            "fixed_input_size": True,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
            "license": "apache-2.0",
        }
        for family, size in product(_FAMILIES, _SIZES)
    }
)


def _register(family: str, size: str) -> None:
    """One model in timm: "gka" (Kundu et al. (2026), table 2), "vlt" (table 5), …, in the shape of DeiT."""
    name = f"{family.replace('-', '_')}_{size}_patch16_224"

    def create(pretrained: bool = False, **options: Any) -> KernelVisionTransformer:
        noted = (options.get("pretrained_cfg"), options.get("pretrained_cfg_overlay"))
        weights = resolve_pretrained_cfg(name, *noted)
        if pretrained and not (weights.has_weights or weights.state_dict):
            raise InputError(
                f"{name} has no pretrained weights: train it, or `convert` a pretrained vit_ or deit_ model"
            )
        options = {"variant": family, "patch_size": 16, **_SIZES[size], **options}
        out_indices = options.pop("out_indices", 3)
        # timm's builder has an argument called variant too: ours are bound beforehand.
        ours = {key: options.pop(key) for key in ("variant", "variant_options", "pattern") if key in options}
        return build_model_with_cfg(
            partial(KernelVisionTransformer, **ours),
            name,
            pretrained,
            pretrained_filter_fn=checkpoint_filter_fn,
            feature_cfg={"out_indices": out_indices, "feature_cls": "getter"},
            **options,
        )

    create.__name__ = name
    register_model(create)


for each in product(_FAMILIES, _SIZES):
    _register(*each)

"""The attention layer of the vision models: the operator behind the constructor that timm's blocks call."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from timm.layers import use_fused_attn
from torch import Tensor, nn

from nadaraya.attention import variants
from nadaraya.attention.layer import KernelSelfAttention
from nadaraya.attention.positions import GridLogits, Position
from nadaraya.errors import InputError, check_name, unknown_name
from nadaraya.kernels import KernelBank
from nadaraya.kernels.base import Kernel
from nadaraya.kernels.grid import GridKernel, GridTable

# A patch grid has far shorter lags than a text: the bank's lengths start from half a patch to the whole grid.
_GRID_KERNELS: dict[str, Callable[[int], Kernel]] = {
    "bank": partial(KernelBank, num_terms=4, init="grid"),
    "decay": partial(KernelBank, num_terms=4, periodic=False, init="grid"),
}


class VisionAttention(KernelSelfAttention):
    """Kernel self-attention in a timm vision transformer: `Block.attn` with any kernel of the operator.

    Args:
        dim: width D of the tokens.
        num_heads: heads H.
        qkv_bias: whether the projections of queries, keys and values, where there are any, have biases.
        proj_bias: whether W_O has one.
        attn_drop: probability of dropping an attention weight in training.
        proj_drop: dropout of the output.
        grid_kernel: a kernel of row and column lags between patches, multiplied in (its log is added):
            "bank", "decay", a function of num_heads that makes a `Kernel`, or the rows and columns of the
            largest grid, of a table with a learned number for each; default None.
        **options: keywords of `KernelSelfAttention`.

    Attributes:
        grid_size: rows and columns of the patches; the model keeps it.
        num_prefix_tokens: tokens before the patches; the model keeps it.

    Raises:
        InputError: an unknown grid kernel, or options that do not fit together.

    >>> import torch
    >>> from nadaraya.attention.content import GaussianContent
    >>> from nadaraya.models.vit.attention import VisionAttention
    >>> layer = VisionAttention(192, num_heads=3, content=GaussianContent, projections="o")
    >>> out, weights = layer.weights(torch.randn(1, 197, 192))
    >>> weights.shape
    torch.Size([1, 3, 197, 197])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        qkv_bias: bool = False,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        grid_kernel: str | tuple[int, int] | Callable[[int], Kernel] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dim, num_heads, bias=qkv_bias, out_bias=proj_bias, dropout=attn_drop, **options)
        self.proj_drop = nn.Dropout(proj_drop)
        self.fused_attn = use_fused_attn() > 0
        if isinstance(grid_kernel, str):
            if grid_kernel not in _GRID_KERNELS:
                raise unknown_name("grid_kernel", grid_kernel, [*_GRID_KERNELS, "table"])
            grid_kernel = _GRID_KERNELS[grid_kernel]
        self.grid_kernel: GridKernel | GridTable | None = None
        if isinstance(grid_kernel, tuple):
            self.grid_kernel = GridTable(self.num_heads, *grid_kernel)
        elif grid_kernel is not None:
            self.grid_kernel = GridKernel(self.num_heads, grid_kernel)
        self.grid_size: tuple[int, int] | None = None
        self.num_prefix_tokens = 0

    @property
    def fused_attn(self) -> bool:
        """timm's switch: False computes the definition with its N × N weights, in PyTorch's own operators."""
        return self.backend != "reference"

    @fused_attn.setter
    def fused_attn(self, fused: bool) -> None:
        self.backend = "auto" if fused else "reference"

    @property
    def proj(self) -> nn.Linear:
        """W_O under the name that timm's blocks and tools know."""
        return self.projections.o_proj

    def keep_heads(self, heads: Sequence[int]) -> None:
        """As `KernelSelfAttention.keep_heads`, with the kernel of the grid."""
        there = self.projections.heads
        super().keep_heads(heads)
        grid = getattr(self, "grid_kernel", None)  # made after the heads that a new layer keeps are chosen
        if grid is not None:
            grid.keep_heads([there.index(head) for head in self.projections.heads])

    def kernel_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """As `KernelSelfAttention.kernel_parameters`, and the kernel of the grid."""
        yield from super().kernel_parameters()
        for name, parameter in self.named_parameters():
            if name.startswith("grid_kernel."):
                yield name, parameter

    def weights(self, x: Tensor, attn_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The layer's output and its weights, by the definition.

        Args:
            x: (B, N, D).
            attn_mask: as in `forward`.

        Returns:
            (B, N, D) and (B, H, N, N), float32 at least, rows summing to 1.
        """
        out, weights = self(x, attn_mask, return_weights=True)
        return out, weights

    def _position(self, x: Tensor, num_lags: int, is_causal: bool, decoding: bool) -> Position | None:
        if self.grid_kernel is None:
            return super()._position(x, num_lags, is_causal, decoding)
        if self.grid_size is None:
            raise InputError("a layer with a grid kernel must know the patch grid: set grid_size")
        height, width = self.grid_size
        if self.num_prefix_tokens + height * width != x.shape[1]:
            raise InputError(
                f"{x.shape[1]} tokens are not {self.num_prefix_tokens} and {height} x {width} patches"
            )
        return GridLogits(self.grid_kernel.lag_logits(height, width), self.num_prefix_tokens)

    def _merged(self, out: Tensor, x: Tensor) -> Tensor:
        return self.proj_drop(super()._merged(out, x))


def layer_options(
    variant: str,
    options: Mapping[str, Any] | None = None,
    grid_size: tuple[int, int] | None = None,
    num_prefix_tokens: int = 1,
) -> dict[str, Any]:
    """Keywords of `VisionAttention` for a variant as vision uses it: no rotary positions, no head norm.

    Args:
        variant: one of `VISION_VARIANTS`.
        options: `bandwidth`, `per` and `shift` of `GaussianContent`, for the Gaussian variants; `eps`,
            `exclude_self`, `own_value`, `head_norm` and `grid_kernel` of the layer, over the variant's, with
            "table" for a table of the size of the grid; and the variant's own.
        grid_size: rows and columns of patches, where something depends on them.
        num_prefix_tokens: tokens before the patches.
    """
    check_name("variant", variant, VISION_VARIANTS)
    given, own = dict(options or {}), {**VISION_VARIANTS[variant]}
    own_names = [name for name in variants.options(variant) if name not in _OF_TEXTS]
    accepted = list(dict.fromkeys([*_CONTENT_OPTIONS, *_LAYER_OPTIONS, *own_names]))
    for name in given:
        check_name("option of the attention", name, accepted)
    of_content = {name: given.pop(name) for name in _CONTENT_OPTIONS if name in given}
    if variant == "linformer":
        if grid_size is None:
            raise InputError("linformer must know the patch grid: give grid_size")
        own["num_tokens"] = num_prefix_tokens + grid_size[0] * grid_size[1]
        own["num_mixtures"] = min(own["num_mixtures"], own["num_tokens"])
    own.update((name, given.pop(name)) for name in own_names if name in given)
    made = {**variants.get(variant, **own), **given}
    if made.pop("position", None) is not None:  # lags of texts, of which patches have two
        made.setdefault("grid_kernel", "table")
    if made.get("grid_kernel") == "table":
        if grid_size is None:
            raise InputError("a table of the grid must know its size: give grid_size")
        made["grid_kernel"] = grid_size
    if of_content:
        taken = inspect.signature(made["content"]).parameters if "content" in made else {}
        for name in of_content:
            if name not in taken:
                raise InputError(f"{name} must be given to a Gaussian variant, got {variant!r}")
        made["content"] = partial(made["content"], **of_content)
    return made


# Variants of the operator with what vision changes in them: Kundu et al. (2026), section 3, and of `krause`
# its paper's start in ViT-S/16.
VISION_VARIANTS: dict[str, dict[str, Any]] = {
    "gka": {"rotary": None, "head_norm": False},
    "gka-loo": {"rotary": None, "head_norm": False},
    "vlt": {},
    "softmax": {},
    "gka-nearest": {"rotary": None, "head_norm": False},
    "gka-nystrom": {"head_norm": False},
    "gka-features": {"head_norm": False},
    "krause": {"window": None, "nearest": 16, "bandwidth": 4.5},
    "linear": {},
    "performer": {},
    "kernelized-rpe": {},
    "nystromformer": {},
    "linformer": {"num_mixtures": 64},
    "skyformer": {},
    "non-local": {},
    "local-linear": {"rotary": None},
    "parallax": {"rotary": None},
}
_CONTENT_OPTIONS = ("bandwidth", "per", "shift")
_LAYER_OPTIONS = ("eps", "grid_kernel", "head_norm", "exclude_self", "own_value")
_OF_TEXTS = ("rotary", "values", "content", "window", "num_tokens", *_CONTENT_OPTIONS, *_LAYER_OPTIONS)

"""Calls that PyTorch's fused attention does as it stands, with its fastest kernels."""

import torch
import torch.nn.functional as F
from torch import Tensor

from nadaraya.attention.arguments import AttentionArguments
from nadaraya.attention.derivatives import refuse_second_derivative


def can(args: AttentionArguments) -> bool:
    """Return whether PyTorch's fused attention is the call's softmax, with no mask larger than given."""
    if args.eps > 0.0 or args.exclude_self or args.lag_logits is not None or args.key_bias is not None:
        return False
    others = (args.kernel, args.mixture, args.grid, args.window, args.document_ids)
    if any(part is not None for part in others):
        return False
    if not args.on_gpu:
        # On the CPU masks are cheaper by blocks, dropout would write all weights out, and the Gaussian's bias
        # by key is exact and cheaper outside the features than inside them.
        masked = args.attn_mask is not None or args.key_padding_mask is not None
        return not masked and args.dropout_p == 0.0 and args.bandwidth is None and _is_lined_up(args)
    if args.bandwidth is not None and args.query.dtype == torch.float16:
        return False  # ‖k‖²/(2σ²), a feature of the rewrite, may be more than its largest number
    if args.attn_mask is not None and args.attn_mask.shape[2] > 1:
        return True
    return not args.causal or (
        args.key_padding_mask is None and args.attn_mask is None and _is_lined_up(args)
    )


def attention(args: AttentionArguments) -> Tensor:
    """The softmax of a call that `can` said yes to.

    Returns:
        (B, H, Nq, dv) in the dtype of the query; zero in rows that see nothing.
    """
    shares = not args.on_gpu and args.bandwidth is None  # on GPUs not all kernels know shared keys
    args = args if shares else args.with_repeated_heads()
    query, key, scale = args.query, args.key, args.scale
    if args.bandwidth is not None:
        (query, key), scale = _gaussian_columns(args), 1.0
    mask, alive = _mask(args)
    causal = args.causal and args.query.shape[2] > 1 and mask is None
    out = F.scaled_dot_product_attention(
        query, key, args.value, mask, dropout_p=args.dropout_p, is_causal=causal, scale=scale,
        enable_gqa=shares and query.shape[:2] != key.shape[:2],  # a bool when it is traced, too
    )  # fmt: skip
    if not torch.compiler.is_compiling() and out.grad_fn and "ScaledDotProduct" in out.grad_fn.name():
        out.grad_fn.register_hook(_refuse_second_derivatives)
    return out if alive is None else out.masked_fill(~alive, 0.0)


def _refuse_second_derivatives(gradients: tuple[Tensor | None, ...], _: object) -> None:
    for gradient in gradients:
        if gradient is not None and gradient.requires_grad:
            gradient.register_hook(refuse_second_derivative)


def _is_lined_up(args: AttentionArguments) -> bool:
    """Return whether PyTorch's causal mask, aligned at the beginning, is ours."""
    return not args.causal or args.query.shape[2] in (1, args.key.shape[2])


def _mask(args: AttentionArguments) -> tuple[Tensor | None, Tensor | None]:
    """All masks in one, and which rows see anything, (…, Nq, 1); the others see all, so that none is NaN."""
    if args.attn_mask is None and args.key_padding_mask is None:
        return None, None
    mask = args.attn_mask
    seen = mask if mask is None or mask.dtype == torch.bool else mask != -torch.inf
    if args.key_padding_mask is not None:
        present = ~args.key_padding_mask[:, None, None, :]
        seen = present if seen is None else seen & present
    assert seen is not None
    if args.causal:
        shape = (args.query.shape[2], args.key.shape[2])
        past = torch.ones(shape, dtype=torch.bool, device=seen.device).tril(args.offset)
        seen = seen & past
    alive = seen.any(-1, keepdim=True)
    shown = seen | ~alive
    if mask is None or mask.dtype == torch.bool:
        return shown, alive
    return torch.where(seen, mask, torch.where(alive, -torch.inf, 0.0)).to(args.query.dtype), alive


def _gaussian_columns(args: AttentionArguments) -> tuple[Tensor, Tensor]:
    """Features over σ with the bias by key in two extra columns, its leading digits and the remainder.

    One column in half precision would leave an error of about 0.02 in the logits; the second removes it.
    The width is padded to a multiple of 8, which fused kernels need.
    """
    query, key = (t.to(args.query.dtype) for t in standardised(args))
    bias = -0.5 * key.to(args.compute_dtype).square().sum(-1, keepdim=True)
    leading = bias.to(key.dtype)
    remainder = (bias - leading.to(bias.dtype)).to(key.dtype)
    padding = query.new_zeros(()).expand(*query.shape[:3], -(query.shape[3] + 2) % 8)
    ones = query.new_ones((*query.shape[:3], 2))
    key_padding = key.new_zeros(()).expand(*key.shape[:3], padding.shape[3])
    return torch.cat((query, ones, padding), -1), torch.cat((key, leading, remainder, key_padding), -1)


def standardised(args: AttentionArguments) -> tuple[Tensor, Tensor]:
    """Queries and keys minus the mean of the keys, over σ, in the compute dtype: no distance over σ changes.

    Where queries and keys are one tensor, so are the results.
    """
    assert args.bandwidth is not None
    inverse = args.bandwidth.reciprocal().view(-1, 1, 1)
    shift = -args.key_centre() * inverse
    key = torch.addcmul(shift, args.key.to(args.compute_dtype), inverse)
    if args.query is args.key:
        return key, key
    return torch.addcmul(shift, args.query.to(args.compute_dtype), inverse), key

"""PyTorch's fused attention for the CPU: what it takes, what it gives, and how to tell it of a bias by key.

It has one additive mask without a gradient, wants one width for queries, keys and values, and reads strided
rows wrongly. Shapes are those of `blocked`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    bias: Tensor | None,
    key_bias: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """Output, zero in rows that see nothing, and log-sum-exp, −inf there, as `blocked_attention` gives them.

    The fused kernel reads one additive mask. A bias by key alone is that mask, as a view; beside a bias by
    lag it becomes one more feature, which costs less than writing both out, unless it hides keys.
    """
    value_width = value.shape[3]
    if key_bias is not None and bias is not None:
        if key_bias.isneginf().any():
            bias, key_bias = bias + key_bias[:, :, None, :], None
        else:
            column = key_bias.to(key.dtype).expand(*key.shape[:3])
            query, scale = with_columns(query * scale, query.new_ones(query.shape[:3])), 1.0
            key, key_bias = with_columns(key, column), None
    elif key_bias is not None:
        bias, key_bias = key_bias[:, :, None, :], None
    # One width for all three, and one that fills vector registers, is what the kernel wants.
    width = max(query.shape[3], value_width)
    width += -width % 8
    # Padding by nothing would be a copy.
    query, key, value = (
        t if t.shape[3] == width else F.pad(t, (0, width - t.shape[3])) for t in (query, key, value)
    )
    if bias is not None:
        bias = bias.expand(*query.shape[:3], key.shape[2])
    query, key, value = (_with_dense_rows(t) for t in (query, key, value))
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=bias, scale=scale
    )
    out = out[..., :value_width]
    # It reports 0 (or NaN) for a row that sees nothing; a true 0 is possible but rare.
    if bias is not None and (suspect := (lse == 0) | lse.isnan()).any():
        hidden = bias == -torch.inf
        if causal:
            hidden = hidden | ~torch.ones(hidden.shape[-2:], dtype=torch.bool).tril()
        nothing = suspect & hidden.all(-1)
        out = out.masked_fill(nothing[..., None], 0.0)
        lse = lse.masked_fill(nothing, -torch.inf)
    return out.transpose(1, 2).contiguous().transpose(1, 2), lse.contiguous()  # heads of a token together


def backward(
    grad_out: Tensor,
    grad_lse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    bias: Tensor | None,
    key_bias: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients for query, key, value and key_bias by PyTorch's fused backward pass for the CPU.

    One more column in each operand tells it what it does not know. (1, b_j) in queries, which have the scale,
    and keys makes the bias by key part of the scores and collects its gradient; (1, −dLSE_i) in dO and O adds
    −dLSE_i to δ_i = dO_i·O_i.
    """
    width = max(query.shape[3], value.shape[3]) + 1
    width += -width % 8

    def widened(tensor: Tensor, column: Tensor | float) -> Tensor:
        wide = tensor.new_empty((*tensor.shape[:3], width))
        wide[..., : tensor.shape[3]] = tensor
        wide[..., tensor.shape[3] : -1] = 0.0
        wide[..., -1] = column
        return wide

    column = 0.0 if key_bias is None else key_bias.to(key.dtype)
    if bias is not None:
        bias = bias.to(query.dtype).expand(*query.shape[:3], key.shape[2])
    nothing = torch.where(lse == -torch.inf, torch.inf, lse)  # exp(score − inf) = 0: no weight, no gradient
    grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        widened(grad_out.to(query.dtype), 1.0), widened(query * scale, 1.0), widened(key, column),
        widened(value, 0.0), widened(out, -grad_lse.to(out.dtype)), nothing, 0.0, causal,
        attn_mask=bias, scale=1.0,
    )  # fmt: skip
    # The column of ones collects Σ_i dS_ij. Copies, because an operator must not return views.
    grad_key_bias = grads[1][..., -1].clone(memory_format=torch.contiguous_format)
    grad_query, grad_key, grad_value = (
        grad[..., : tensor.shape[3]].clone(memory_format=torch.contiguous_format)
        for grad, tensor in zip(grads, (query, key, value), strict=True)
    )
    return grad_query.mul_(scale), grad_key, grad_value, grad_key_bias


def with_columns(tensor: Tensor, *columns: Tensor) -> Tensor:
    return torch.cat((tensor, *(column[..., None] for column in columns)), dim=-1)


def _with_dense_rows(tensor: Tensor) -> Tensor:
    """The tensor, copied if its rows are strided or overlap: the fused kernel would misread them silently."""
    dense = tensor.stride(-1) == 1 and tensor.stride(-2) >= tensor.shape[-1]
    return tensor if dense else tensor.contiguous()

"""The operator's arguments after checking: what every backend receives.

Shapes: B batch, H query heads, G key-value heads (H a multiple of G), Nq queries, Nk keys,
d width of queries and keys, dv width of values, L lags.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from nadaraya.errors import InputError, unknown_name

Similarity = Literal["dot", "gaussian"]


@dataclass(frozen=True)
class AttentionArguments:
    """One call of the operator, checked and normalised by `check_arguments`."""

    query: Tensor  # (B, H, Nq, d)
    key: Tensor  # (B, G, Nk, d)
    value: Tensor  # (B, G, Nk, dv)
    similarity: Similarity
    scale: float  # factor of the dot product; 1.0 for the Gaussian
    bandwidth: Tensor | None  # (H,) or (1,), float32 at least
    lag_logits: Tensor | None  # (H or 1, 2L − 1), entry r + L − 1 is the logit of lag r
    causal: bool
    window: int | None
    exclude_self: bool
    key_padding_mask: Tensor | None  # (B, Nk) bool, True where the key is padding
    attn_mask: Tensor | None  # broadcastable to (B, H, Nq, Nk): bool (True takes part) or float (added)
    dropout_p: float
    eps: float

    @property
    def offset(self) -> int:
        """Position of query 0 among the keys: the sequences are aligned at their ends."""
        return self.key.shape[2] - self.query.shape[2]

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype of logits and sums: float32 at least, whatever the tensors are."""
        return torch.promote_types(self.query.dtype, torch.float32)

    def with_repeated_heads(self) -> "AttentionArguments":
        """The same call with a copy of its key-value head for every query head."""
        groups = self.query.shape[1] // self.key.shape[1]
        if groups == 1:
            return self
        key, value = (t.repeat_interleave(groups, 1) for t in (self.key, self.value))
        return replace(self, key=key, value=value)

    def key_centre(self) -> Tensor:
        """Mean of the keys that are not padding, (B, G, 1, d) in the compute dtype, without gradient.

        Points moved by it keep their distances and the digits that ‖x‖² − 2 x·y + ‖y‖² loses far from 0.
        """
        key = self.key.detach().to(self.compute_dtype)
        if self.key_padding_mask is None:
            return key.mean(2, keepdim=True)
        present = ~self.key_padding_mask[:, None, :, None]
        return torch.where(present, key, 0.0).sum(2, keepdim=True) / present.sum(2, keepdim=True).clamp(min=1)


def check_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    similarity: str,
    scale: float | None,
    bandwidth: float | Tensor | None,
    lag_logits: Tensor | None,
    causal: bool,
    window: int | None,
    exclude_self: bool,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    dropout_p: float,
    eps: float,
) -> AttentionArguments:
    """Check every argument of `kernel_attention` and bring it to the form that backends use.

    Raises:
        InputError: naming the first argument that cannot be used, its value and what is accepted.
    """
    if similarity not in get_args(Similarity):
        raise unknown_name("similarity", similarity, get_args(Similarity))
    _check_tensors(query, key, value)
    check_options(window, dropout_p, eps)
    if similarity == "gaussian":
        if scale is not None:
            raise InputError("scale belongs to similarity='dot'; the Gaussian takes bandwidth")
        checked_bandwidth = _check_bandwidth(bandwidth, query)
        checked_scale = 1.0
    else:
        if bandwidth is not None:
            raise InputError("bandwidth belongs to similarity='gaussian'; the dot product takes scale")
        checked_bandwidth = None
        checked_scale = 1.0 / math.sqrt(max(query.shape[3], 1)) if scale is None else float(scale)
        if not math.isfinite(checked_scale):
            raise InputError(f"scale must be a finite number, got {scale}")
    return AttentionArguments(
        query=query,
        key=key,
        value=value,
        similarity="gaussian" if similarity == "gaussian" else "dot",
        scale=checked_scale,
        bandwidth=checked_bandwidth,
        lag_logits=_check_lag_logits(lag_logits, query, key),
        causal=bool(causal),
        window=window,
        exclude_self=bool(exclude_self),
        key_padding_mask=_check_key_padding_mask(key_padding_mask, key),
        attn_mask=_check_attn_mask(attn_mask, query, key),
        dropout_p=float(dropout_p),
        eps=float(eps),
    )


def check_options(window: int | None, dropout_p: float, eps: float) -> None:
    """Check the numbers that the operator and the layer both take.

    Raises:
        InputError: naming the first that cannot be used and what is accepted.
    """
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise InputError(f"window must be a positive number of tokens or None, got {window!r}")
    if not isinstance(dropout_p, (int, float)) or not 0.0 <= dropout_p < 1.0:
        raise InputError(f"dropout_p must be in [0, 1), got {dropout_p!r}")
    if not isinstance(eps, (int, float)) or not 0.0 <= eps < math.inf:
        raise InputError(f"eps must be zero or positive and finite, got {eps!r}")


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise InputError(f"{name} must be a torch tensor, got {type(tensor).__name__}")
        if tensor.dim() != 4:
            raise InputError(
                f"{name} must have 4 dimensions (batch, heads, tokens, width), "
                f"got shape {tuple(tensor.shape)}"
            )
        if not tensor.is_floating_point():
            raise InputError(f"{name} must be floating point, got {tensor.dtype}")
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
    if not query.dtype == key.dtype == value.dtype:
        raise InputError(
            f"query, key and value must share a dtype, got {query.dtype}, {key.dtype}, {value.dtype}"
        )
    if not query.device == key.device == value.device:
        raise InputError(
            f"query, key and value must share a device, got {query.device}, {key.device}, {value.device}"
        )
    if key.shape[:3] != value.shape[:3]:
        raise InputError(f"key and value must agree in batch, heads and tokens: {shapes}")
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        raise InputError(f"query and key must agree in batch and width: {shapes}")
    if key.shape[1] == 0 or query.shape[1] % key.shape[1]:
        raise InputError(f"the heads of query must be a multiple of those of key: {shapes}")


def _check_bandwidth(bandwidth: float | Tensor | None, query: Tensor) -> Tensor:
    if bandwidth is None:
        raise InputError("similarity='gaussian' needs a bandwidth: a positive number, or one a head")
    dtype = torch.promote_types(query.dtype, torch.float32)
    if isinstance(bandwidth, (int, float)):
        # Filled on the device: a copy from the host would wait for it.
        values = torch.full((), bandwidth, dtype=dtype, device=query.device)
    else:
        values = torch.as_tensor(bandwidth, device=query.device).to(dtype)
    if values.dim() > 1 or values.numel() not in (1, query.shape[1]):
        raise InputError(
            f"bandwidth must be a number or have shape ({query.shape[1]},), got {tuple(values.shape)}"
        )
    values = values.reshape(-1)
    # Reading values would stall a GPU and break a compiled graph; there a bad bandwidth shows as NaN.
    if not torch.compiler.is_compiling() and values.device.type == "cpu":
        bad = ~((values > 0) & values.isfinite())
        if bad.any():
            raise InputError(f"bandwidth must be positive and finite, got {values[bad][0].item()}")
    return values


def _check_lag_logits(lag_logits: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    if lag_logits is None:
        return None
    num_heads, length = query.shape[1], max(query.shape[2], key.shape[2])
    shape = tuple(lag_logits.shape)
    if len(shape) != 2 or shape[0] not in (1, num_heads) or shape[1] not in (length, 2 * length - 1):
        raise InputError(
            f"lag_logits must have shape ({num_heads}, {length}) for lags |i - j| < {length}, "
            f"or ({num_heads}, {2 * length - 1}) signed, got {shape}"
        )
    if not lag_logits.is_floating_point():
        raise InputError(f"lag_logits must be floating point, got {lag_logits.dtype}")
    _check_device("lag_logits", lag_logits, query)
    # Tables stay in float32 at least: half precision would round long-lag logits away.
    table = lag_logits.to(torch.promote_types(query.dtype, torch.float32))
    if shape[1] == length:
        table = torch.cat((table[:, 1:].flip(1), table), dim=1)
    return table


def _check_key_padding_mask(mask: Tensor | None, key: Tensor) -> Tensor | None:
    if mask is None:
        return None
    expected = (key.shape[0], key.shape[2])
    if mask.dtype != torch.bool or tuple(mask.shape) != expected:
        raise InputError(
            f"key_padding_mask must be bool of shape {expected}, True where a key is padding; "
            f"got {mask.dtype} of shape {tuple(mask.shape)}"
        )
    _check_device("key_padding_mask", mask, key)
    return mask


def _check_device(name: str, tensor: Tensor, query: Tensor) -> None:
    if tensor.device != query.device:
        raise InputError(f"{name} must be on the device of the query, {query.device}, got {tensor.device}")


def _check_attn_mask(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    if mask is None:
        return None
    full = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise InputError(f"attn_mask must be bool (True takes part) or floating point, got {mask.dtype}")
    _check_device("attn_mask", mask, query)
    padded = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    if len(padded) != 4 or any(size not in (1, want) for size, want in zip(padded, full, strict=True)):
        raise InputError(f"attn_mask must broadcast to {full}, got shape {tuple(mask.shape)}")
    return mask.reshape(padded)

"""The operator's arguments after checking: what every backend receives.

Shapes: B batch, H query heads, G key-value heads (H a multiple of G), Nq queries, Nk keys,
d width of queries and keys, dv width of values, L lags.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from nadaraya.attention.blocked import masked_bias
from nadaraya.attention.positions import GridLogits, LagMixture
from nadaraya.errors import InputError, must_be
from nadaraya.kernels import Gaussian, GaussianWithoutHalf, Kernel

Content = Kernel | Tensor | float | None


@dataclass(frozen=True)
class AttentionArguments:
    """One call of the operator, checked and brought to one form by `kernel_attention`."""

    query: Tensor  # (B, H, Nq, d)
    key: Tensor  # (B, G, Nk, d)
    value: Tensor  # (B, G, Nk, dv)
    scale: float  # factor of the dot product; 1.0 for kernels
    bandwidth: Tensor | None  # of the Gaussian, (H,) or (1,), float32 at least; None for other contents
    kernel: Kernel | None  # of the distance between query and key, unless it is the Gaussian
    lag_logits: Tensor | None  # (H or 1, 2L − 1), entry r + L − 1 is the logit of lag r
    mixture: LagMixture | None  # logits by lag that the query mixes
    grid: GridLogits | None  # logits by the rows and columns between patches
    causal: bool
    window: int | None
    exclude_self: bool  # unless nothing else is left
    key_padding_mask: Tensor | None  # (B, Nk) bool, True where the key is padding
    attn_mask: Tensor | None  # broadcastable to (B, H, Nq, Nk): bool (True takes part) or float (added)
    key_bias: Tensor | None  # (B or 1, H or 1, Nk), float32 at least
    document_ids: Tensor | None  # (B, Nk) whole numbers, every document in one piece
    dropout_p: float
    eps: float
    prune_tol: float  # share of a row that pairs left out may have together
    spoilt: bool = False  # keys or values that some row may not see are NaN or infinite

    @property
    def offset(self) -> int:
        """Position of query 0 among the keys: the sequences are aligned at their ends."""
        return self.key.shape[2] - self.query.shape[2]

    @property
    def on_gpu(self) -> bool:
        """Return whether the tensors are on a CUDA device."""
        return self.query.device.type == "cuda"

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

    def hides_non_finite(self) -> bool:
        """Return whether hidden keys or values are NaN or infinite, where looking is free."""
        hiding = (
            self.window, self.key_padding_mask, self.attn_mask, self.document_ids, self.key_bias,
            self.lag_logits, self.mixture, self.grid,
        )  # fmt: skip
        hides = self.exclude_self or (self.causal and self.query.shape[2] > 1)
        transformed = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
        shapes_alone = self.on_gpu or self.query.is_meta
        if transformed or shapes_alone or not (hides or any(part is not None for part in hiding)):
            return False
        tensors = (self.key,) if self.key is self.value else (self.key, self.value)
        sums = (t.detach().sum(dtype=self.compute_dtype).item() for t in tensors)
        return not all(math.isfinite(total) for total in sums)

    def with_eps(self, out: Tensor, log_mass: Tensor | None) -> Tensor:
        """Σ_j κ(i,j) v_j / (Z + ε) from `out`, the sum over Z = Σ_j κ(i,j); log Z may be None without ε."""
        if self.eps == 0.0:
            return out
        assert log_mass is not None
        return out * mass_fraction(log_mass, self.eps).to(out.dtype)


def mass_fraction(log_mass: Tensor, eps: float) -> Tensor:
    """Z / (Z + ε) with another dimension at the end, from log Z; ε > 0, where Z = 0 any number."""
    nothing = log_mass == -torch.inf
    return torch.sigmoid(log_mass.masked_fill(nothing, 0.0) - math.log(eps))[..., None]


def check_options(
    window: int | None, exclude_self: bool, dropout_p: float, eps: float, prune_tol: float
) -> None:
    """Check the numbers that the operator and the layer both take.

    Raises:
        InputError: naming the first that cannot be used and what is accepted.
    """
    if window is not None and (isinstance(window, bool) or not isinstance(window, Integral) or window < 1):
        raise must_be("window", "a positive number of tokens or None", window)
    if not isinstance(dropout_p, Real) or not 0.0 <= dropout_p < 1.0:
        raise must_be("dropout_p", "a number in [0, 1)", dropout_p)
    if not isinstance(eps, Real) or not 0.0 <= eps < math.inf:
        raise must_be("eps", "a finite number of at least 0", eps)
    if not isinstance(prune_tol, Real) or not 0.0 <= prune_tol < 1.0:
        raise must_be("prune_tol", "0 or a share between 0 and 1", prune_tol)
    if not isinstance(exclude_self, bool):
        raise must_be("exclude_self", "True or False", exclude_self)


def check_tensors(query: Tensor, key: Tensor, value: Tensor, others: Mapping[str, Any]) -> None:
    """Check types, shapes, dtypes and devices of the three tensors, and that others are tensors or None."""
    tensors = {"query": query, "key": key, "value": value}
    for name, given in {**tensors, **others}.items():
        if not isinstance(given, Tensor) and (given is not None or name in tensors):
            raise must_be(name, "a torch tensor", type(given))
        if name in others and given is not None:
            _check_device(name, given, query)
    for name, tensor in tensors.items():
        if tensor.dim() != 4:
            raise must_be(name, "of shape (batch, heads, tokens, width)", tuple(tensor.shape))
        if not tensor.is_floating_point():
            raise must_be(name, "floating point", tensor.dtype)
    for attribute in ("dtype", "device"):
        given = [getattr(tensor, attribute) for tensor in tensors.values()]
        if len(set(given)) > 1:
            raise must_be("query, key and value", f"of one {attribute}", given)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if key.shape[:3] != value.shape[:3]:
        raise must_be("key and value", "equal in batch, heads and tokens", shapes)
    if query.shape[0] != key.shape[0] or query.shape[3] != key.shape[3]:
        raise must_be("query and key", "equal in batch and width", shapes)
    if key.shape[1] == 0 or query.shape[1] % key.shape[1]:
        raise must_be("number of heads of query", "a multiple of that of key", shapes)


def check_content(content: Content, query: Tensor) -> tuple[Tensor, float, Tensor | None, Kernel | None]:
    """Query, factor of the dot product, bandwidth of the Gaussian, (H,) or (1,), and any other kernel.

    A factor is positive: others, and tensors, are multiplied into the query, in its dtype. Fused attention
    hides pairs by −inf ahead of the factor, and a tensor has its gradient by any backend.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    if isinstance(content, Gaussian):
        sigma = content.bandwidth
        if isinstance(content, GaussianWithoutHalf):  # exp(−(r/ℓ)²) is the Gaussian of σ = ℓ/√2
            sigma = sigma * 2**-0.5
        return query, 1.0, _one_per_head("bandwidth of content", sigma, query), None
    if isinstance(content, Kernel):
        content.check_serves(query.shape[1], "content")
        if not content.symmetric:
            raise must_be("content", "a kernel of a distance, which has no sign", content)
        if any(tensor.device != query.device for tensor in content.tensors()):
            raise must_be("content", f"on the device of the query, {query.device}", content.device)
        return query, 1.0, None, content
    if content is None:
        return query, 1.0 / math.sqrt(max(query.shape[3], 1)), None, None
    factor: Tensor | float
    if isinstance(content, Tensor):
        if not content.is_floating_point():
            raise must_be("content", "floating point where it is a tensor of scales", content.dtype)
        factor = _one_per_head("content", content, query).view(-1, 1, 1)
    elif isinstance(content, bool) or not isinstance(content, Real):
        raise must_be("content", "None, a scale (a number or one per head) or a Kernel", content)
    elif not abs(factor := _as_float(content)) <= torch.finfo(dtype).max:
        raise must_be("content", "a finite scale", content)
    elif factor > torch.finfo(torch.float32).tiny:
        return query, factor, None, None
    return (query.to(dtype) * factor).to(query.dtype), 1.0, None, None


def _as_float(number: Real) -> float:
    try:
        return float(number)
    except OverflowError:  # whole numbers beyond those of float64
        return math.inf


def _one_per_head(name: str, values: Tensor, query: Tensor) -> Tensor:
    """Values (H,) or (1,), float32 at least, on the device of the query."""
    heads, dtype = query.shape[1], torch.promote_types(query.dtype, torch.float32)
    if values.dim() > 1 or values.numel() not in (1, heads):
        raise must_be(name, f"a number or of shape ({heads},)", tuple(values.shape))
    if values.device != query.device and values.device.type == "cpu" and values.numel() == 1:
        # Filled on the device: a copy from the host would wait for it.
        if not values.requires_grad:
            return torch.full((1,), values.item(), dtype=dtype, device=query.device)
        values = values.to(query.device)
    _check_device(name, values, query)
    return values.to(dtype).reshape(-1)


def check_lag_logits(position: Kernel | Tensor, causal: bool, query: Tensor, key: Tensor) -> Tensor:
    """The logits by lag in their signed form, (H or 1, 2L − 1), float32 at least."""
    num_heads, length = query.shape[1], max(query.shape[2], key.shape[2])
    dtype = torch.promote_types(query.dtype, torch.float32)
    if isinstance(position, Kernel):
        position.check_serves(num_heads, "position")
        table = torch.atleast_2d(position.lag_logits(max(length, 1), causal=causal))[:, : 2 * length]
        signed = not (position.symmetric or causal)
    else:
        table, shape = position, tuple(position.shape)
        if len(shape) != 2 or shape[0] not in (1, num_heads) or shape[1] not in (length, 2 * length - 1):
            by_distance, by_lag = f"({num_heads}, {length}) by |i - j|", f"({num_heads}, {2 * length - 1})"
            raise must_be("position", f"of shape {by_distance}, or {by_lag} by i - j", shape)
        if not table.is_floating_point():
            raise must_be("position", "floating point where it is a table of logits", table.dtype)
        signed = shape[1] != length
    _check_device("position", table, query)
    # Tables stay in float32 at least: half precision would round long-lag logits away.
    table = table.to(dtype)
    return table if signed else torch.cat((table[:, 1:].flip(1), table), dim=1)


def check_key_mask(mask: Tensor, key: Tensor) -> Tensor:
    """Padding keys: the opposite of the mask."""
    expected = (key.shape[0], key.shape[2])
    if mask.dtype != torch.bool or tuple(mask.shape) != expected:
        accepted = f"of dtype torch.bool (True where a key takes part) and shape {expected}"
        raise must_be("key_mask", accepted, (mask.dtype, tuple(mask.shape)))
    return ~mask


def check_attn_mask(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The mask with four dimensions."""
    full = (*query.shape[:3], key.shape[2])
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise must_be("attn_mask", "of dtype torch.bool (True takes part) or floating point", mask.dtype)
    padded = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    if len(padded) != 4 or any(size not in (1, want) for size, want in zip(padded, full, strict=True)):
        raise must_be("attn_mask", f"broadcastable to {full}", tuple(mask.shape))
    return mask.reshape(padded)


def check_pairs(logits: Tensor, attn_mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    """The mask with the logits of all pairs in it."""
    expected = (*query.shape[1:3], key.shape[2])
    if tuple(logits.shape) not in (expected, (1, *expected[1:])) or not logits.is_floating_point():
        accepted = f"floating point of shape {expected} where it has three dimensions"
        raise must_be("position", accepted, (logits.dtype, tuple(logits.shape)))
    _check_device("position", logits, query)
    logits = logits[None].to(torch.promote_types(query.dtype, torch.float32))
    return logits if attn_mask is None else masked_bias(logits, attn_mask, logits.dtype)


def check_key_bias(key_bias: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The logits in float32 at least."""
    full, shape = (*query.shape[:2], key.shape[2]), tuple(key_bias.shape)
    fits = len(shape) == 3 and all(s in (1, f) for s, f in zip(shape, full, strict=True))
    if not fits or shape[2] != full[2]:
        raise must_be("key_bias", f"of shape {full}, a first or second dimension of 1 serving all", shape)
    if not key_bias.is_floating_point():
        raise must_be("key_bias", "floating point", key_bias.dtype)
    return key_bias.to(torch.promote_types(query.dtype, torch.float32))


def check_document_ids(document_ids: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The numbers as they are; where looking at them is free, every document is in one piece."""
    expected = (key.shape[0], key.shape[2])
    if document_ids.is_floating_point() or document_ids.is_complex() or tuple(document_ids.shape) != expected:
        accepted = f"whole numbers of shape {expected}, one for each key"
        raise must_be("document_ids", accepted, (document_ids.dtype, tuple(document_ids.shape)))
    if query.shape[2] > key.shape[2]:
        raise must_be(
            "number of queries with document_ids", f"at most that of keys, {key.shape[2]}", query.shape[2]
        )
    if not torch.compiler.is_compiling() and document_ids.device.type == "cpu":
        for item, ids in enumerate(document_ids):
            runs = torch.unique_consecutive(ids)
            if len(runs) > len(torch.unique(runs)):
                again = int(next(number for number in runs if (runs == number).sum() > 1))
                where = f"in several pieces of item {item}"
                raise InputError(f"every document of document_ids must be in one piece, got {again} {where}")
    return document_ids


def _check_device(name: str, tensor: Tensor, query: Tensor) -> None:
    if tensor.device != query.device:
        raise must_be(name, f"on the device of the query, {query.device}", tensor.device)

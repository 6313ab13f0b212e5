"""Checks of the operator's arguments: each brings one to the form of `AttentionArguments`, or refuses it.

Shapes have the letters of `arguments`.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nadaraya.attention.arguments import AttentionArguments, Content, in_dtype
from nadaraya.attention.blocked import masked_bias
from nadaraya.attention.factored import Factored
from nadaraya.attention.positions import SignedLogits
from nadaraya.errors import InputError, must_be
from nadaraya.kernels import Gaussian, GaussianWithoutHalf, Kernel

RIDGE = 1e-3  # of local lines, a share of the keys' variance


def check_options(
    window: int | None, exclude_self: bool, dropout_p: float, eps: float, prune_tol: float
) -> None:
    """Check the numbers that the operator and the layer both take.

    Raises:
        InputError: naming the first that cannot be used and what is accepted.
    """
    if window is not None and (isinstance(window, bool) or not isinstance(window, Integral) or window < 1):
        raise must_be("window", "a positive number of tokens or None", window)
    if not isinstance(dropout_p, (float, Real)) or not 0.0 <= dropout_p < 1.0:
        raise must_be("dropout_p", "a number in [0, 1)", dropout_p)
    if not isinstance(eps, (float, Real)) or not 0.0 <= eps < math.inf:
        raise must_be("eps", "a finite number of at least 0", eps)
    if not isinstance(prune_tol, (float, Real)) or not 0.0 <= prune_tol < 1.0:
        raise must_be("prune_tol", "0 or a share between 0 and 1", prune_tol)
    if not isinstance(exclude_self, bool):
        raise must_be("exclude_self", "True or False", exclude_self)


def check_ways(
    args: AttentionArguments, degree: int, ridge: float, probe: Tensor | None, nearest: int | None
) -> AttentionArguments:
    """The call with a local line, a probe or nearest neighbours, which must fit each other and the content.

    Raises:
        InputError: naming the first that cannot be used and what is accepted.
    """
    if isinstance(degree, bool) or degree not in (0, 1):
        raise must_be("degree", "0 (a weighted mean) or 1 (the local line)", degree)
    if not isinstance(ridge, (float, Real)) or not 0.0 <= ridge < math.inf:
        raise must_be("ridge", "a finite number of at least 0", ridge)
    if nearest is not None and (
        isinstance(nearest, bool) or not isinstance(nearest, Integral) or nearest < 1
    ):
        raise must_be("nearest", "a positive number of keys or None", nearest)
    lines = [name for name, given in (("degree=1", degree == 1), ("probe", probe is not None)) if given]
    if len(lines) > 1:
        raise InputError("probe must not be given with degree=1, which solves for the slope")
    if probe is not None:
        if probe.shape != args.query.shape or not probe.is_floating_point():
            raise must_be("probe", f"floating point of shape {tuple(args.query.shape)}", tuple(probe.shape))
        probe = probe.to(args.compute_dtype)
    if lines and args.eps > 0.0:
        raise InputError(f"eps must be 0 with {lines[0]}: a line has weights of sum 1, got {args.eps}")
    if args.factored is not None:
        if nearest is not None:
            raise InputError("nearest must not be given with Factored content, which may be negative")
        if lines and not args.factored.normalise:
            raise InputError(f"{lines[0]} must have weights of sum 1, not Factored(normalise=False)")
    if not lines and nearest is None:
        return args
    nearest = None if nearest is None else int(nearest)
    return replace(args, degree=int(degree), ridge=float(ridge), probe=probe, nearest=nearest)


def check_tensors(query: Tensor, key: Tensor, value: Tensor, others: Mapping[str, Any]) -> None:
    """Check types, shapes, dtypes and devices of the three tensors, and that others are tensors or None."""
    for name, given in (("query", query), ("key", key), ("value", value)):
        if not isinstance(given, Tensor):
            raise must_be(name, "a torch tensor", type(given))
    for name, given in others.items():
        if given is not None:
            if not isinstance(given, Tensor):
                raise must_be(name, "a torch tensor", type(given))
            _check_device(name, given, query)
    # Most calls have the forms of one before them.
    known = type(query) is Tensor and not torch.compiler.is_compiling()
    check = _check_forms if known else _check_forms.__wrapped__
    shapes, dtypes = (query.shape, key.shape, value.shape), (query.dtype, key.dtype, value.dtype)
    check(shapes, dtypes, (query.device, key.device, value.device))


@lru_cache(maxsize=256)
def _check_forms(
    shapes: tuple[torch.Size, ...], dtypes: tuple[torch.dtype, ...], devices: tuple[torch.device, ...]
) -> None:
    """Check shapes, dtypes and devices of query, key and value."""
    names = ("query", "key", "value")
    for name, shape, dtype in zip(names, shapes, dtypes, strict=True):
        if len(shape) != 4:
            raise must_be(name, "of shape (batch, heads, tokens, width)", tuple(shape))
        if not dtype.is_floating_point:
            raise must_be(name, "floating point", dtype)
    for attribute, given in (("dtype", dtypes), ("device", devices)):
        if len(set(given)) > 1:
            raise must_be("query, key and value", f"of one {attribute}", list(given))
    said, (query, key, value) = dict(zip(names, map(tuple, shapes), strict=True)), shapes
    if key[:3] != value[:3]:
        raise must_be("key and value", "equal in batch, heads and tokens", said)
    if query[0] != key[0] or query[3] != key[3]:
        raise must_be("query and key", "equal in batch and width", said)
    if key[1] == 0 or query[1] % key[1]:
        raise must_be("number of heads of query", "a multiple of that of key", said)


class CheckedContent(NamedTuple):
    """Content in the form of `AttentionArguments`."""

    query: Tensor
    scale: float = 1.0
    bandwidth: Tensor | None = None
    kernel: Kernel | None = None
    factored: Factored | None = None


def check_content(content: Content, query: Tensor, key: Tensor) -> CheckedContent:
    """Query, factor of the dot product, bandwidth of the Gaussian, (H,) or (1,), and any other content.

    A factor is positive: others, and tensors, are multiplied into the query, in its dtype. Fused attention
    hides pairs by −inf ahead of the factor, and a tensor has its gradient by any backend.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    if isinstance(content, Factored):
        content.check(query, key)
        return CheckedContent(query, factored=content)
    if isinstance(content, Gaussian):
        sigma = content.bandwidth
        if isinstance(content, GaussianWithoutHalf):  # exp(−(r/ℓ)²) is the Gaussian of σ = ℓ/√2
            sigma = sigma * 2**-0.5
        return CheckedContent(query, bandwidth=_one_per_head("bandwidth of content", sigma, query))
    if isinstance(content, Kernel):
        content.check_serves(query.shape[1], "content")
        if not content.symmetric:
            raise must_be("content", "a kernel of a distance, which has no sign", content)
        if any(tensor.device != query.device for tensor in content.tensors()):
            raise must_be("content", f"on the device of the query, {query.device}", content.device)
        return CheckedContent(query, kernel=content)
    if content is None:
        return CheckedContent(query, 1.0 / math.sqrt(max(query.shape[3], 1)))
    factor: Tensor | float
    if isinstance(content, Tensor):
        if not content.is_floating_point():
            raise must_be("content", "floating point where it is a tensor of scales", content.dtype)
        factor = _one_per_head("content", content, query).view(-1, 1, 1)
    elif isinstance(content, bool) or not isinstance(content, Real):
        accepted = "None, a scale (a number or one per head), a Kernel or Factored()"
        raise must_be("content", accepted, content)
    elif not abs(factor := _as_float(content)) <= torch.finfo(dtype).max:
        raise must_be("content", "a finite scale", content)
    elif factor > torch.finfo(torch.float32).tiny:
        return CheckedContent(query, factor)
    return CheckedContent((query.to(dtype) * factor).to(query.dtype))


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


def check_lag_logits(
    position: Kernel | Tensor | SignedLogits, causal: bool, query: Tensor, key: Tensor, values: bool = False
) -> SignedLogits:
    """The logits by signed lag, float32 at least; or κ itself, the values."""
    num_heads, length = query.shape[1], max(query.shape[2], key.shape[2])
    dtype = torch.promote_types(query.dtype, torch.float32)
    if isinstance(position, SignedLogits):
        _check_device("position", position.logits, query)
        logits = in_dtype(position.logits, dtype)
        return SignedLogits(logits.exp(), position.mirrored) if values else position._replace(logits=logits)
    if isinstance(position, Kernel):
        position.check_serves(num_heads, "position")
        signed = not (position.symmetric or causal)
        if values:
            lags = torch.arange(1 - length if signed else 0, max(length, 1), device=position.device)
            table = torch.atleast_2d(position(lags.to(dtype)))
        else:
            table = torch.atleast_2d(position.lag_logits(max(length, 1), causal=causal))
    else:
        table, shape = position, tuple(position.shape)
        if len(shape) != 2 or shape[0] not in (1, num_heads) or shape[1] not in (length, 2 * length - 1):
            by_distance, by_lag = f"({num_heads}, {length}) by |i - j|", f"({num_heads}, {2 * length - 1})"
            raise must_be("position", f"of shape {by_distance}, or {by_lag} by i - j", shape)
        if not table.is_floating_point():
            raise must_be("position", "floating point where it is a table of logits", table.dtype)
        signed, table = shape[1] != length, table.exp() if values else table
    _check_device("position", table, query)
    table = table[:, : 2 * length]  # no entry where there are no tokens
    # Tables stay in float32 at least: half precision would round long-lag logits away.
    table = table.to(dtype)
    return SignedLogits(table if signed else torch.cat((table[:, 1:].flip(1), table), dim=1), not signed)


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

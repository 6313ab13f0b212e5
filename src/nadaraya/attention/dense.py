"""Attention of short sequences on the CPU with all pairs written out, as PyTorch differentiates it.

The weights are kept for the backward pass, which row blocks compute again, and a handful of operators does
it all: where sequences are short, calls cost more than memory. Without gradients scores and weights are
written over those of the call before; of few scores or long rows PyTorch's fused attention makes one call.

A processor that multiplies bfloat16 does so here, but for two products that fused kernels do not round
either: with keys, and of gradients with values. Only one row without gradients has its logits rounded, as a
formula in half precision has.
"""

import math
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nadaraya.attention import stock
from nadaraya.attention.arguments import AttentionArguments, in_dtype

LONGEST = 1024  # queries and keys
_PAYS = 256  # queries and keys up to which it is faster, not measured here; twice as many of few scores
_PAYS_MIXED = 128  # where queries mix positions
_PAYS_SCORES = 2**20
_NUMBERS = 2**19  # scores, or keys made precise, at once for each thread, where one item or head has fewer
# Scores; keys up to which many rows are no call of fused attention, where products have wide registers.
_FEW, _SHORT = 2**16, 128 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 0
_LITTLE, _LITTLE_OF_ONE_ROW = 2**21, 2**16  # products of numbers, in half precision that is multiplied
_KEPT = 2**22  # numbers of a thread
_MOST = 2**26  # numbers in the weights of a call: 256 MiB of float32
_MULTIPLIED = (torch.bfloat16,) if torch.cpu._is_avx512_bf16_supported() else ()  # not emulated

_of_thread = threading.local()


def why_not(args: AttentionArguments) -> str | None:
    """Why a call is not done with all pairs written out, or None."""
    query, key = args.query, args.key
    if query.device.type != "cpu":
        return "it is for CPUs"
    if args.has_own_form:
        return "it has no kernels of distances"
    if args.spoilt:
        return "hidden keys are not finite"
    if max(query.shape[2], key.shape[2]) > LONGEST:
        return f"above {LONGEST} tokens memory is O(N)"
    known = not torch.compiler.is_compiling()  # a batch of any size stays one in what is exported
    if known and math.prod(query.shape[:3]) * key.shape[2] > _MOST:
        return f"the weights would be more than {_MOST:,} numbers"
    return None


def why_slow(args: AttentionArguments) -> str | None:
    """Why another backend is faster where nobody has measured, or None."""
    gains = args.value.dtype in _MULTIPLIED and torch.is_grad_enabled()
    if stock.can(args) and not (gains and _products(args.query, args.key) > _LITTLE):
        return "PyTorch's fused attention does this call as it stands"
    pays = _PAYS if args.mixture is None else _PAYS_MIXED
    known = not torch.compiler.is_compiling()
    if known and math.prod(args.query.shape[:3]) * args.key.shape[2] <= _PAYS_SCORES:
        pays *= 2
    if args.dropout_p > 0.0:  # row blocks of the definition know which weights were dropped
        pays = LONGEST
    if max(args.query.shape[2], args.key.shape[2]) > pays:
        return f"above {pays} tokens row blocks are faster"
    return None


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    biases: Sequence[Tensor],
    hides: bool,
    with_lse: bool,
    dropout_p: float = 0.0,
) -> tuple[Tensor, Tensor | None]:
    """Softmax attention with scores q·k·scale + Σ biases.

    Args:
        query, key, value: (B, H, Nq, d), (B, G, Nk, d), (B, G, Nk, e).
        scale: factor of the dot product.
        biases: each broadcastable to (B, H, Nq, Nk), −∞ where a pair takes no part.
        hides: whether some row may see nothing.
        with_lse: whether the log-sum-exp is wanted.
        dropout_p: probability of dropping a weight; default 0.

    Returns:
        The output (B, H, Nq, e), zero in rows that see nothing, and log Σ exp of the scores, −∞ there. Where
        that sum is not wanted, it is 0 in all other rows, or None unless `hides`.
    """
    if not (with_lse or dropout_p or torch.is_grad_enabled()) and _is_one_call(query, value):
        bias = sum(biases[1:], biases[0]) if biases else None
        out = F.scaled_dot_product_attention(
            query, key, in_dtype(value, query.dtype), bias, scale=scale,
            enable_gqa=query.shape[:2] != key.shape[:2],  # a bool when it is traced, too
        )  # fmt: skip
        lse = out.new_zeros(out.shape[:3]) if hides else None
        if lse is not None and bias is not None and (nothing := _rows_of_nothing(bias)) is not None:
            out, lse = out.masked_fill(nothing, 0.0), lse.masked_fill(nothing[..., 0], -torch.inf)
        return out, lse
    if with_lse or query.dtype not in _MULTIPLIED or torch.compiler.is_compiling():
        query = in_dtype(query, torch.promote_types(query.dtype, torch.float32))
    numbers = math.prod(query.shape[:3]) * key.shape[2]
    if key.dtype != query.dtype:
        numbers = max(numbers, key.numel())
    if torch.compiler.is_compiling() or numbers <= (most := _NUMBERS * torch.get_num_threads()):
        return _of_some(query, key, value, scale, biases, hides, with_lse, dropout_p)
    axis = 0 if len(query) > 1 else 1
    items = key.shape[axis]
    step = max(1, most * items // numbers)
    # Splitting is differentiated at once; a slice would cost an array of zeros of the whole.
    parts = [
        each.split(step * (each.shape[axis] // items), axis) if each.shape[axis] >= items else repeat(each)
        for each in (query, key, value, *biases)
    ]
    found = [
        _of_some(query, key, value, scale, biases, hides, with_lse, dropout_p)
        for query, key, value, *biases in zip(*parts, strict=False)
    ]
    known = [lse for _, lse in found if lse is not None]
    return torch.cat([out for out, _ in found], axis), torch.cat(known, axis) if known else None


def _is_one_call(query: Tensor, value: Tensor) -> bool:
    """Return whether PyTorch's fused attention is fastest without gradients: not for many short rows."""
    # What is exported keeps a batch of any size; of one row the compiler makes one loop with what is around.
    if torch.compiler.is_compiling() and (torch.compiler.is_exporting() or query.shape[2] == 1):
        return False
    if query.shape[2] == 1 and value.dtype in _MULTIPLIED:
        return _products(query, value) <= _LITTLE_OF_ONE_ROW
    long = query.shape[2] > 1 and value.shape[2] > _SHORT and value.dtype not in _MULTIPLIED
    return long or math.prod(query.shape[:3]) * value.shape[2] <= _FEW


def _products(query: Tensor, key: Tensor) -> int:
    """Products of numbers in the scores of all pairs; none where their number is not known yet."""
    return 0 if torch.compiler.is_compiling() else query.numel() * key.shape[2]


def _of_some(
    query: Tensor, key: Tensor, value: Tensor, scale: float, biases: Sequence[Tensor], hides: bool,
    with_lse: bool, dropout_p: float,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The same of some items of the batch or heads, which stay near the cores."""
    key, once = key.to(query.dtype), _is_for_once(query)
    if query.dtype not in _MULTIPLIED and once:
        scores = _by_shared(query, key.mT, partial(_written_over, scale=scale))
    elif query.dtype not in _MULTIPLIED:
        scores = _by_shared(query * scale, key.mT)
    elif query.shape[2] == 1 and not torch.is_grad_enabled():
        scores = _by_shared(query, key.mT).float() * scale
    else:
        scores = _by_shared(query, key.mT, lambda rows, shared: _Exact.apply(rows, shared, scale))
    for bias in biases:
        # What is compiled may be differentiated by torch.func, which has no operations in place here.
        scores = scores + bias if torch.compiler.is_compiling() else scores.add_(bias)
    nothing = _rows_of_nothing(scores) if hides else None
    if nothing is not None:
        scores = scores.masked_fill(nothing, 0.0)
    lse = scores.logsumexp(-1) if with_lse else scores.new_zeros(scores.shape[:3]) if hides else None
    weights = torch.softmax(scores, -1, out=scores) if once else scores.softmax(-1)
    if nothing is not None and lse is not None:
        weights, lse = weights.masked_fill(nothing, 0.0), lse.masked_fill(nothing[..., 0], -torch.inf)
    if dropout_p > 0.0:
        weights = F.dropout(weights, dropout_p)
    if value.dtype in _MULTIPLIED and not torch.compiler.is_compiling():
        return _by_shared(weights, value, _Rounded.apply), lse
    return _by_shared(weights, value.to(weights.dtype)), lse


def _rows_of_nothing(scores: Tensor) -> Tensor | None:
    """Rows of −∞ alone, (…, 1), whose softmax is NaN; None where there are none."""
    nothing = scores.detach().amax(-1, keepdim=True) == -torch.inf
    return nothing if torch.compiler.is_compiling() or nothing.any() else None


def _is_for_once(query: Tensor) -> bool:
    """Return whether nothing will ask for the scores again, neither gradients nor what is traced."""
    asked = torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing()
    return type(query) is Tensor and not asked


def _written_over(rows: Tensor, shared: Tensor, scale: float) -> Tensor:
    """Their products times a scale, until the next call in the thread."""
    shape = *rows.shape[:3], shared.shape[3]
    numbers = math.prod(shape)
    kept: Tensor | None = getattr(_of_thread, "kept", None)
    if kept is None or kept.dtype != rows.dtype or kept.numel() < numbers:
        with torch.inference_mode(False):  # it may serve calls outside
            kept = torch.empty(numbers, dtype=rows.dtype)
        if numbers <= _KEPT:
            _of_thread.kept = kept
    out = kept[:numbers].view(-1, *shape[2:])
    return out.baddbmm_(rows.flatten(0, 1), shared.flatten(0, 1), beta=0.0, alpha=scale).view(shape)


class _Exact(torch.autograd.Function):
    """Products of half precision in float32, times a scale; those of gradients stay in half precision."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, shared: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(rows, shared)
        ctx.scale = scale
        return (rows.float() * scale) @ shared.float()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        rows, shared = ctx.saved_tensors
        grad = grad.to(rows.dtype)
        for_rows, for_shared, _ = ctx.needs_input_grad
        of_rows = grad @ shared.mT * ctx.scale if for_rows else None
        of_shared = rows.mT @ grad * ctx.scale if for_shared else None
        return of_rows, of_shared, None


class _Rounded(torch.autograd.Function):
    """Weights rounded to the half precision of values, times these; the weights' gradient is in float32."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, values: Tensor) -> Tensor:
        ctx.save_for_backward(weights, values)  # as the softmax keeps them, too
        return weights.to(values.dtype) @ values

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        weights, values = ctx.saved_tensors
        for_weights, for_values = ctx.needs_input_grad
        of_weights = grad.float() @ values.float().mT if for_weights else None
        of_values = weights.to(values.dtype).mT @ grad if for_values else None
        return of_weights, of_values


def _by_shared(
    rows: Tensor, shared: Tensor, product: Callable[[Tensor, Tensor], Tensor] = torch.matmul
) -> Tensor:
    """Products (B, H, n, m) of (B, H, n, d) and (B, G, d, m), whose matrices serve H / G heads each."""
    if rows.shape[1] == shared.shape[1]:
        return product(rows, shared)
    groups = rows.shape[1] // shared.shape[1]
    folded = rows.reshape(len(rows), shared.shape[1], groups * rows.shape[2], rows.shape[3])
    return product(folded, shared).view(*rows.shape[:3], shared.shape[3])

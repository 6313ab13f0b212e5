"""The kernel of the lag that trained attention implies: its logits, on average, at each lag.

Any attention has logits: of content with rotary positions, of a bank, of a gate. The worth of a lag in them
is a regression of the logits s on the lag. Softmax does not see a constant of a query, so each query i has a
level a_i of its own:

    s_ij = a_i + b(i − j) + e_ij

A causal query sees lags 0 … i only. Means by lag, even of logits less the mean of their query, would mix what
a lag is worth with which queries see it; least squares with a level for each query does not. The levels drop
out of the normal equations, A b = c, whose sums over windows are all that is kept:

    A = Σ_i (diag m_i − m_i m_iᵀ / n_i)        c_r = Σ_i m_ir (s_i,i−r − s̄_i)

with m_ir = 1 where query i sees lag r, and n_i the number of lags that it sees.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nadaraya.attention import reference
from nadaraya.attention.arguments import AttentionArguments
from nadaraya.attention.functional import watching_calls
from nadaraya.attention.layer import KernelSelfAttention
from nadaraya.errors import InputError, must_be
from nadaraya.interpret.bank_fits import BankFit, fit_banks
from nadaraya.interpret.labels import LabelledHeads, head_numbers
from nadaraya.interpret.windows import validation_tokens, windows_of
from nadaraya.modes import evaluating

_LONGEST = 8192  # lags: A has as many rows and columns
_BLOCK = 2**22  # logits of all heads that are formed at a time


@dataclass(frozen=True)
class ImpliedKernel(LabelledHeads):
    """The logits of one layer by lag.

    Attributes:
        layer: its index in the order in which the layers are called (0-based).
        curve: (H, L) logits b(r) in nats for lags r = 0 … L − 1, their mean over all pairs 0; NaN at lags
            that no query compares with another.
        pairs: (L,) number of pairs of a query and a key at each lag.
        r2: (H,) share of the variance of the logits within queries that the lag alone explains, the R² of
            the regression; NaN where the logits of every query are all equal.
        deviation: (H,) standard deviation of the logits about the mean of their query, in nats.
        heads: the numbers of the heads, as before any was removed; default all from 0.

    >>> import torch
    >>> from nadaraya.interpret import implied_kernels
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo"))
    >>> implied_kernels(model, torch.arange(16)[None])[0].curve.shape
    (4, 16)
    """

    layer: int
    curve: np.ndarray
    pairs: np.ndarray
    r2: np.ndarray
    deviation: np.ndarray
    heads: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "heads", self.heads or tuple(range(len(self.curve))))


@torch.no_grad()
def implied_kernels(
    run_or_model: Any, tokens: Tensor | None = None, *, windows: int = 16, position_ids: Tensor | None = None
) -> tuple[ImpliedKernel, ...]:
    """The kernel of the lag that each layer of a causal language model implies.

    Logits are those that enter the softmax, content and position together. They are formed for some queries
    at a time, and of all of them only sums are kept: O(H L + L²) numbers per layer.

    Args:
        run_or_model: a `Run` on text; or a model whose attention is `KernelSelfAttention`, or one of
            transformers that takes `attn_implementation="nadaraya"`, such as Llama or GPT-2. It runs in
            evaluation mode, and is left as it was.
        tokens: (B, N) token numbers of the windows; default: evenly spaced windows of a run's validation
            text.
        windows: how many of these. Default 16.
        position_ids: (B, N), tell a `KernelGPT` model of packed documents. Default: those of the run.

    Returns:
        One ImpliedKernel for each attention layer, for the lags 0 … N − 1.

    Raises:
        InputError: a model without such attention, or that looks ahead; no tokens; logits that are not
            finite; or queries that see lags in several pieces.

    >>> import torch
    >>> from nadaraya.interpret import implied_kernels
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo", variant="alibi"))
    >>> [first, *_] = implied_kernels(model, torch.arange(32)[None])
    >>> first.r2.round(2).tolist()[0]  # steep, and untrained: the logits know the lag alone
    1.0
    """
    return tuple(sums.solved() for sums in _sums_of(run_or_model, tokens, windows, position_ids, parts=1)[0])


@torch.no_grad()
def fitted_kernels(
    run_or_model: Any,
    tokens: Tensor | None = None,
    num_terms: int = 4,
    *,
    added: bool = False,
    windows: int = 16,
    position_ids: Tensor | None = None,
) -> tuple[tuple[ImpliedKernel, ...], list[tuple[BankFit, BankFit]]]:
    """Implied kernels, with banks that are fitted to one half of the windows and scored on the other.

    Args:
        run_or_model, tokens, windows, position_ids: as of `implied_kernels`, two windows or more.
        num_terms, added: as of `fit_implied`.

    Returns:
        The kernels of all windows; and the fits to every second window, whose offset and R² are those of the
        curves of the others.

    Raises:
        InputError: as of `implied_kernels` and `fit_implied`, or a single window.
    """
    halves = _sums_of(run_or_model, tokens, windows, position_ids, parts=2)
    first, second = (tuple(sums.solved() for sums in half) for half in halves)
    fits = [
        (bank.on(other.curve, other.pairs), decay.on(other.curve, other.pairs))
        for (bank, decay), other in zip(fit_implied(first, num_terms, added), second, strict=True)
    ]
    return tuple(a.include(b).solved() for a, b in zip(*halves, strict=True)), fits


def _sums_of(
    run_or_model: Any, tokens: Tensor | None, windows: int, position_ids: Tensor | None, parts: int
) -> "list[list[_Sums]]":
    """The sums of every layer over the windows, which are dealt out to so many parts."""
    model = run_or_model
    if hasattr(run_or_model, "load_model"):
        from nadaraya.data.windows import document_positions

        model = run_or_model.load_model()
        if tokens is None:
            text, document_token = validation_tokens(run_or_model)
            tokens = windows_of(text, run_or_model.text_recipe().data.context, windows)
            if document_token is not None:
                position_ids = document_positions(tokens, document_token)
    model = getattr(model, "_orig_mod", model)  # compiled code does not ask who is watching
    if tokens is None or tokens.dim() != 2 or not 2 <= tokens.shape[1] <= _LONGEST or not len(tokens):
        given = None if tokens is None else tuple(tokens.shape)
        raise must_be("tokens", f"of shape (windows, tokens) with 2 to {_LONGEST:,} tokens", given)
    if len(tokens) < parts:
        raise must_be("windows", f"{parts} or more where banks are fitted", len(tokens))
    found: list[list[_Sums]] = [[] for _ in range(parts)]
    calls = number = 0

    def add(args: AttentionArguments) -> None:
        nonlocal calls
        layers = found[number % parts]
        if calls == len(layers):
            layers.append(_Sums(calls, head_numbers(model, calls, args.query.shape[1]), tokens.shape[1]))
        layers[calls].add(args)
        calls += 1

    attached: Any = nullcontext()
    config = getattr(model, "config", None)
    of_library = any(isinstance(module, KernelSelfAttention) for module in model.modules())
    of_others = not of_library or getattr(config, "replaced_attention", None)
    if of_others and getattr(config, "_attn_implementation", None) != "nadaraya":
        from nadaraya.models import attach_attention

        attached = attach_attention(model)
    device = next(model.parameters()).device
    with evaluating(model), attached, watching_calls(add):
        for number, window in enumerate(tokens.to(device)):
            packed = {} if position_ids is None else {"position_ids": position_ids[number, None].to(device)}
            calls = 0
            model(input_ids=window[None], use_cache=False, **packed)
    if not found[0]:
        raise InputError(f"{type(model).__name__} calls no attention that shows its logits")
    return found


def implied_summary(
    kernels: Sequence[ImpliedKernel], fits: Sequence[tuple[BankFit, BankFit]] = ()
) -> dict[str, Any]:
    """Implied kernels and the banks fitted to them as plain data, for JSON.

    Args:
        kernels: of the layers.
        fits: for each layer the bank and the decay-only one, as `fit_implied` gives them. Default none.

    Returns:
        {"layers": […]}; a layer has its number, the number of pairs by lag, and its heads, each with its
        deviation, R², curve, and the fits "periodic" and "decay". What is not a number is None.
    """

    def head_of(kernel: ImpliedKernel, row: int, fitted: Sequence[BankFit]) -> dict[str, Any]:
        curve, r2 = kernel.curve[row].tolist(), float(kernel.r2[row])
        found = {
            "head": kernel.heads[row],
            "deviation": float(kernel.deviation[row]),
            "r2": r2 if math.isfinite(r2) else None,
            "curve": [value if math.isfinite(value) else None for value in curve],
        }
        named = zip(("periodic", "decay"), fitted, strict=True)
        return {**found, "fits": {name: fit.plain(row) for name, fit in named}} if fitted else found

    layers = []
    for number, kernel in enumerate(kernels):
        fitted = fits[number] if fits else ()
        heads = [head_of(kernel, row, fitted) for row in range(len(kernel.heads))]
        layers.append({"layer": kernel.layer, "pairs": kernel.pairs.tolist(), "heads": heads})
    return {"layers": layers}


def fit_implied(
    kernels: Sequence[ImpliedKernel], num_terms: int = 4, added: bool = False
) -> list[tuple[BankFit, BankFit]]:
    """For each layer a bank fitted to its curves, and a decay-only one of as many numbers: 2 M terms.

    What the first explains and the second does not is what an oscillating term is needed for.

    Args:
        kernels: of the layers.
        num_terms: M, terms of the bank for each head. Default 4.
        added: whether the bank is added to the logits; default: multiplied in, its log is.

    Returns:
        Pairs of fits.

    Raises:
        InputError: num_terms is not a positive whole number.

    >>> import torch
    >>> from nadaraya.interpret import fit_implied, implied_kernels
    >>> from nadaraya.models import KernelGPTConfig, KernelGPTForCausalLM
    >>> model = KernelGPTForCausalLM(KernelGPTConfig.preset("demo", num_hidden_layers=1, variant="decay"))
    >>> [(bank, decay)] = fit_implied(implied_kernels(model, torch.arange(32)[None]), num_terms=2)
    >>> bank.num_parameters == decay.num_parameters, bool(decay.r2.min() > 0.99)
    (True, True)
    """
    fit = partial(fit_banks, added=added)
    return [
        (fit(each.curve, each.pairs, num_terms), fit(each.curve, each.pairs, 2 * num_terms, periodic=False))
        for each in kernels
    ]


class _Sums:
    """The sums of one layer over queries of all windows, in float64."""

    def __init__(self, layer: int, heads: tuple[int, ...], num_lags: int) -> None:
        self.layer, self.heads = layer, heads
        self.by_lag = torch.zeros(len(heads), num_lags, dtype=torch.float64)  # c
        self.squares = torch.zeros(len(heads), dtype=torch.float64)
        self.queries = torch.zeros(2, num_lags, dtype=torch.float64)  # that see lags 0 or 1 … r
        self._sums = (self.by_lag, self.squares, self.queries)

    def add(self, args: AttentionArguments) -> None:
        """The logits of one call with a batch of one window."""
        args = args.with_repeated_heads()
        num_heads, num_queries, num_keys = (*args.query.shape[1:3], args.key.shape[2])
        if args.factored is not None:
            raise InputError(f"layer {self.layer} must have logits: content that factorises has none")
        if num_queries != num_keys or num_keys != self.by_lag.shape[1] or num_heads != len(self.by_lag):
            raise InputError(f"layer {self.layer} must be self-attention of the tokens, in one pass")
        rows = max(1, _BLOCK // (num_heads * num_keys))
        for start in range(0, num_queries, rows):
            block = args.block(slice(start, min(start + rows, num_queries)), slice(0, num_keys))
            logits = reference.logits(block)
            self._add_rows(logits[0].double().cpu(), start)

    def _add_rows(self, logits: Tensor, start: int) -> None:
        """(H, rows, N) logits of the queries from `start` on, −inf where a query does not see a key."""
        _, rows, num_keys = logits.shape
        visible = logits[0] != -torch.inf
        if not torch.equal((logits != -torch.inf), visible.expand_as(logits)):
            raise InputError(f"all heads of layer {self.layer} must see the same keys")
        lags = torch.arange(start, start + rows)[:, None] - torch.arange(num_keys)
        count = visible.sum(1)
        first = lags.masked_fill(~visible, num_keys).amin(1)
        last = lags.masked_fill(~visible, -num_keys).amax(1)
        seeing = count > 0
        if (first < 0).any():
            raise InputError(f"layer {self.layer} must be causal, but its queries see later tokens")
        if ((first > 1) | (last - first + 1 != count))[seeing].any():
            raise InputError(f"queries of layer {self.layer} must see an unbroken range of lags from 0 or 1")
        mean = logits.masked_fill(~visible, 0.0).sum(-1, keepdim=True) / count.clamp(min=1)[:, None]
        centred = (logits - mean).masked_fill(~visible, 0.0)
        if not centred.isfinite().all():
            raise InputError(f"the logits of layer {self.layer} must be finite, and some are not")
        self.squares += centred.square().sum((1, 2))
        self.by_lag.index_add_(1, lags.clamp(min=0).flatten(), centred.flatten(1))
        one = torch.ones((), dtype=torch.float64)
        self.queries.index_put_((first[seeing], last[seeing]), one, accumulate=True)

    def include(self, other: "_Sums") -> "_Sums":
        """Add the sums over other windows."""
        for mine, theirs in zip(self._sums, other._sums, strict=True):
            mine += theirs
        return self

    def solved(self) -> ImpliedKernel:
        """The least-squares solution."""
        lags, begins = torch.arange(self.by_lag.shape[1]), torch.tensor([[0], [1]])
        sizes = (lags - begins + 1).clamp(min=1)
        # Queries, and the sum of their 1/n, whose range ends at a lag or beyond it.
        beyond, shares = (x.flip(1).cumsum(1).flip(1) for x in (self.queries, self.queries / sizes))
        pairs = (beyond * (lags >= begins)).sum(0)
        nearer, farther = torch.minimum(lags[:, None], lags), torch.maximum(lags[:, None], lags)
        gram = pairs.diag() - shares[0][farther] - shares[1][farther] * (nearer >= 1)  # A
        known = gram.diagonal() > 1e-9 * pairs  # a lag that is all that its queries see says nothing
        weights = pairs[known]
        # A takes no notice of a constant: this adds one equation, that the mean over all pairs is 0.
        level = weights[:, None] * weights / weights.sum()
        found = torch.linalg.solve(gram[known][:, known] + level, self.by_lag[:, known].T).T
        curve = torch.full_like(self.by_lag, torch.nan)
        curve[:, known] = found
        explained = (found * self.by_lag[:, known]).sum(1)
        return ImpliedKernel(
            self.layer,
            curve.numpy(),
            pairs.round().long().numpy(),
            torch.where(self.squares > 0, explained / self.squares, torch.nan).numpy(),
            (self.squares / pairs.sum()).sqrt().numpy(),
            self.heads,
        )

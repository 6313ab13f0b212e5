"""The operator's arguments after checking: what every backend receives.

Shapes: B batch, H query heads, G key-value heads (H a multiple of G), Nq queries, Nk keys,
d width of queries and keys, dv width of values, L lags.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from nadaraya.attention.blocked import masked_bias
from nadaraya.attention.factored import Factored
from nadaraya.attention.positions import GridLogits, LagMixture
from nadaraya.kernels import Kernel
from nadaraya.kernels.modal import Modes
from nadaraya.kernels.parameters import is_transformed

Content = Kernel | Factored | Tensor | float | None


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
    factored: Factored | None = None  # κ is q·k times the position, in place of an exponential
    mirrored: bool = False  # lag_logits of −r are those of r
    lowest_by_lag: float | None = None  # at most the least of lag_logits; None, not known
    lag_values: Tensor | None = None  # of factored content: G by lag, as lag_logits; these are None then
    modes: Modes | None = None  # that G is the sum of, for lags of the past and, if symmetric, the future
    degree: int = 0  # 1: the local line at the query
    ridge: float = 0.0  # of the line, a share of the keys' variance
    line_at: Tensor | None = None  # where the line is read, (B, H, Nq, d): the query is multiplied by a scale
    probe: Tensor | None = None  # r of a line of slope −r·Cov(k, v), (B, H, Nq, d)
    nearest: int | None = None  # pairs that each query keeps, those of the largest weights
    later_keys: int = 0  # keys after the position of the last query
    query_ids: Tensor | None = None  # of a block: documents of its queries, (B, Nq)
    spoilt: bool = False  # keys or values that some row may not see are NaN or infinite

    @property
    def offset(self) -> int:
        """Position of query 0 among the keys: the sequences are aligned at their ends."""
        return self.key.shape[2] - self.query.shape[2] - self.later_keys

    @property
    def has_own_form(self) -> bool:
        """Return whether the call is more than softmax attention with a dot product or a Gaussian."""
        usual = self.factored is None and self.kernel is None and self.probe is None and self.nearest is None
        return self.degree > 0 or not usual

    @property
    def ids_of_queries(self) -> Tensor:
        """Documents of the queries, (B, Nq), where there are documents."""
        assert self.document_ids is not None
        return self.document_ids[:, self.offset :] if self.query_ids is None else self.query_ids

    def block(self, rows: slice, keys: slice) -> "AttentionArguments":
        """The call of some queries and some keys, whose positions stay what they are.

        Args:
            rows, keys: with a start and a stop.
        """

        def part(tensor: Tensor | None, *dims: tuple[int, slice]) -> Any:
            for dim, places in dims:
                if tensor is not None and tensor.shape[dim] > 1:
                    tensor = tensor.narrow(dim, places.start, places.stop - places.start)
            return tensor

        ids, mask, mixture = self.document_ids, self.attn_mask, self.mixture
        if self.grid is not None:
            pairs = self.grid.dense()[None]
            mask = pairs if mask is None else masked_bias(pairs, mask, self.compute_dtype)
        if mixture is not None:
            mixture = replace(mixture, weights=mixture.weights[:, :, rows])
        return replace(
            self, query=self.query[:, :, rows], key=self.key[:, :, keys], value=self.value[:, :, keys],
            key_padding_mask=part(self.key_padding_mask, (1, keys)), key_bias=part(self.key_bias, (2, keys)),
            attn_mask=part(mask, (2, rows), (3, keys)), mixture=mixture, grid=None,
            probe=part(self.probe, (2, rows)), line_at=part(self.line_at, (2, rows)),
            document_ids=None if ids is None else ids[:, keys],
            query_ids=None if ids is None else self.ids_of_queries[:, rows],
            later_keys=keys.stop - self.offset - rows.stop,
        )  # fmt: skip

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
            self.window, self.key_padding_mask, self.attn_mask, self.document_ids, self.mixture, self.grid,
        )  # fmt: skip
        hides = self.exclude_self or (self.causal and self.query.shape[2] > 1)
        hides = hides or any(part is not None for part in hiding)
        by_number = self.key_bias is not None or self.lag_logits is not None
        if is_transformed() or self.on_gpu or self.query.is_meta or not (hides or by_number):
            return False
        if not hides and self.all_logits_above(-math.inf):
            return False
        tensors = (self.key,) if self.key is self.value else (self.key, self.value)
        # A sum is finite where its terms are, which one pass without an array tells.
        sums = (tensor.detach().sum(dtype=self.compute_dtype).item() for tensor in tensors)
        return not all(map(math.isfinite, sums))

    def all_logits_above(self, least: float) -> bool:
        """Return whether each logit by key, lag or place on a grid is above `least`; NaN is not."""
        return all(lowest > least for lowest in self._lowest_logits)

    @cached_property
    def _lowest_logits(self) -> list[float]:
        profiles = None if self.mixture is None else self.mixture.profiles
        grid = None if self.grid is None else self.grid.logits
        by_lag, known = self.lag_logits, self.lowest_by_lag
        logits = (self.key_bias, by_lag if known is None else None, profiles, grid)
        found = [float(each.detach().amin()) for each in logits if each is not None and each.numel()]
        return found if known is None else [*found, known]

    def with_eps(self, out: Tensor, log_mass: Tensor | None) -> Tensor:
        """Σ_j κ(i,j) v_j / (Z + ε) from `out`, the sum over Z = Σ_j κ(i,j); log Z may be None without ε."""
        if self.eps == 0.0:
            return out
        assert log_mass is not None
        return out * mass_fraction(log_mass, self.eps).to(out.dtype)


def in_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in a dtype: to ask for the one that it has costs as much as a small product."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def mass_fraction(log_mass: Tensor, eps: float) -> Tensor:
    """Z / (Z + ε) with another dimension at the end, from log Z; ε > 0, where Z = 0 any number."""
    nothing = log_mass == -torch.inf
    return torch.sigmoid(log_mass.masked_fill(nothing, 0.0) - math.log(eps))[..., None]

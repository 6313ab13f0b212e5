"""Positions beside kernels and tables by lag: mixed by the query, and on a grid of patches."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nadaraya.errors import must_be
from nadaraya.kernels import Kernel
from nadaraya.kernels.parameters import is_transformed


@dataclass(frozen=True)
class MixedLogits:
    """b(i, r) = Σ_m w_im p_m(r): every query mixes M logits by lag, κ = Π_m κ_m(r)^w_im.

    Inkling's relative positions have this form, with profiles of free numbers that all heads share.

    Args:
        weights: w, (B, H, Nq, M), any sign. Differentiable.
        profiles: p, (M, E), or (H or 1, M, E) with profiles for each head, for the lags |r| = 0 … E − 1; at
            larger lags b = 0. Or M kernels, a `Kernel` with batch_shape (M,) whose log is p, for all lags.
            Differentiable.
        signed: the profiles are (…, 2E − 1), entry r + E − 1 for lag r = i − j. Default False.
    """

    weights: Tensor
    profiles: Tensor | Kernel
    signed: bool = False


@dataclass(frozen=True)
class MixedKernels:
    """b(i, r) = log Σ_m w_im κ_m(r): every query mixes M kernels by lag.

    With a bank's terms, the query weighs them: all weights 1 are Bunks et al. (2025), eq. 6.

    Args:
        weights: w > 0, (B, H, Nq, M). Differentiable.
        log_kernels: log κ, (M, E), or (H or 1, M, E) with kernels for each head, for the lags
            |r| = 0 … E − 1; at larger lags κ = 0, and pairs take no part. Or a `Kernel` with
            batch_shape (M,), for all lags. Differentiable.
        signed: the kernels are (…, 2E − 1), entry r + E − 1 for lag r = i − j. Default False.
    """

    weights: Tensor
    log_kernels: Tensor | Kernel
    signed: bool = False


@dataclass(frozen=True)
class GridLogits:
    """b(Δy, Δx): logits by the rows and columns between two patches of a grid, in row-major order.

    `GridKernel.lag_logits` makes them.

    Args:
        logits: (H or 1, 2h − 1, 2w − 1) for h × w patches, entry (Δy + h − 1, Δx + w − 1) for a query Δy rows
            below and Δx columns right of its key. Differentiable.
        num_prefix: tokens before the patches (class, registers); pairs with them have b = 0. Default 0.
    """

    logits: Tensor
    num_prefix: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that the grid is for, N = num_prefix + h w."""
        height, width = ((size + 1) // 2 for size in self.logits.shape[1:])
        return self.num_prefix + height * width

    def dense(self) -> Tensor:
        """The logits of all pairs, (H or 1, N, N), query by key."""
        height, width = ((size + 1) // 2 for size in self.logits.shape[1:])
        if torch.compiler.is_exporting():  # other runtimes have no strided windows
            patches = torch.arange(height * width, device=self.logits.device)
            # A patch's place on a line whose rows are as long as there are column lags: differences are lags.
            indices = patches + (width - 1) * (patches // width)
            pairs = self.logits.flatten(1)[:, indices[:, None] - indices + indices[-1]]
        else:
            # The keys of a query are an h × w window of the table read backwards, the last query's the first.
            windows = self.logits.flip(1, 2).unfold(1, height, 1).unfold(2, width, 1).flip(1, 2)
            pairs = windows.reshape(-1, height * width, height * width)
        return torch.nn.functional.pad(pairs, (self.num_prefix, 0, self.num_prefix, 0))

    def at_own(self) -> Tensor:
        """The logits of each token with itself, (H or 1, N)."""
        height, width = ((size + 1) // 2 for size in self.logits.shape[1:])
        own = self.logits[:, height - 1, width - 1, None].expand(-1, height * width)
        return torch.nn.functional.pad(own, (self.num_prefix, 0))


@dataclass(frozen=True)
class LagMixture:
    """`MixedLogits` or `MixedKernels` after checking, in one form.

    Attributes:
        weights: (B, H, Nq, M), float32 at least.
        profiles: (H or 1, M, 2E − 1), entry r + E − 1 for lag r, float32 at least; E ≤ max(Nq, Nk).
        of_kernels: the profiles are logs of kernels; otherwise they are logits.
    """

    weights: Tensor
    profiles: Tensor
    of_kernels: bool

    @property
    def extent(self) -> int:
        """Number of lags |r| that have an entry, E."""
        return (self.profiles.shape[2] + 1) // 2

    def pairs(self, lags: Tensor) -> Tensor:
        """b of every query and key, (B, H, Nq, Nk), from i − j of all of them, (Nq, Nk)."""
        mixed, extent = self.by_lag(), self.extent
        entries = (lags.clamp(-extent, extent) + extent).expand(*mixed.shape[:2], -1, -1)
        return mixed.gather(3, entries)

    def by_lag(self) -> Tensor:
        """b of every query at the lags −E … E, (B, H, Nq, 2E + 1): the ends stand for all beyond."""
        table, shift = self.factors()
        mixed = self.weights @ table
        if shift is None:
            return torch.nn.functional.pad(mixed, (1, 1))
        return torch.nn.functional.pad(mixed.log() + shift, (1, 1), value=-torch.inf)

    def factors(self) -> tuple[Tensor, Tensor | None]:
        """Of logits the profiles; of kernels what is left of them when the largest logarithm is taken out.

        It is taken out lag by lag, so that no kernel underflows beside it.

        Returns:
            The table that the weights multiply, (H or 1, M, 2E − 1), and the logarithms, (H or 1, 1, 2E − 1),
            to be added to the logarithm of the products; None for logits, which are the products.
        """
        if not self.of_kernels:
            return self.profiles, None
        peak = self.profiles.detach().amax(dim=1, keepdim=True)
        nothing = peak == -torch.inf
        # Where no kernel reaches, the shift says so; the logarithm and its gradient stay finite.
        table = torch.exp(self.profiles - peak.masked_fill(nothing, 0.0)).masked_fill(nothing, 1.0)
        return table, peak

    def at_own(self) -> Tensor:
        """b of each query at lag 0, (B, H, Nq)."""
        middle = self.extent - 1
        own = LagMixture(self.weights, self.profiles[:, :, middle : middle + 1], self.of_kernels)
        return own.by_lag()[..., 1]


class SignedLogits(NamedTuple):
    """Logits by signed lag, and what is known of them."""

    logits: Tensor  # (H or 1, 2L − 1), entry r + L − 1 of lag r
    mirrored: bool = False  # those of −r are those of r
    lowest: float | None = None  # at most the least of them; None, not known


Position = Kernel | Tensor | MixedLogits | MixedKernels | GridLogits | SignedLogits


def check_mixture(position: MixedLogits | MixedKernels, query: Tensor, key: Tensor) -> LagMixture:
    """The mixture in its one form."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    weights, of_kernels = position.weights, isinstance(position, MixedKernels)
    given = position.log_kernels if isinstance(position, MixedKernels) else position.profiles
    if not isinstance(weights, Tensor) or weights.dim() != 4 or weights.shape[:3] != query.shape[:3]:
        shape = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights)
        raise must_be("weights of a mixed position", f"of shape {(*query.shape[:3], 'M')}", shape)
    num_terms, num_heads, length = weights.shape[3], query.shape[1], max(query.shape[2], key.shape[2])
    if isinstance(given, Kernel):
        if tuple(given.batch_shape) != (num_terms,):
            raise must_be("kernel of a mixed position", f"one with batch_shape ({num_terms},)", given)
        profiles = given.lag_logits(length)
        signed = not given.symmetric
    else:
        profiles, signed = given, position.signed
    name = "log_kernels" if of_kernels else "profiles"
    if not isinstance(profiles, Tensor):
        raise must_be(f"{name} of a mixed position", "a torch tensor or a kernel", type(profiles))
    shape = tuple(profiles.shape)
    profiles = profiles[None] if profiles.dim() == 2 else profiles
    fits = profiles.dim() == 3 and profiles.shape[0] in (1, num_heads) and profiles.shape[1] == num_terms
    if not fits or profiles.shape[2] < 1 or (signed and profiles.shape[2] % 2 == 0):
        lags = "2E - 1" if signed else "E"
        accepted = f"of shape ({num_terms}, {lags}) or ({num_heads} or 1, {num_terms}, {lags})"
        raise must_be(f"{name} of a mixed position", accepted, shape)
    for what, tensor in (("weights", weights), (name, profiles)):
        if not tensor.is_floating_point():
            raise must_be(f"{what} of a mixed position", "floating point", tensor.dtype)
        if tensor.device != query.device:
            raise must_be(f"{what} of a mixed position", f"on {query.device}, as the query", tensor.device)
    weights, profiles = weights.to(dtype), profiles.to(dtype)
    if of_kernels and not is_transformed() and weights.device.type == "cpu":
        bad = ~(weights > 0)
        if bad.any():
            raise must_be("weights of mixed kernels", "positive", weights[bad][0].item())
    if not signed:
        profiles = torch.cat((profiles[..., 1:].flip(-1), profiles), dim=-1)
    beyond = (profiles.shape[2] + 1) // 2 - length
    if beyond > 0:
        profiles = profiles[..., beyond:-beyond]
    return LagMixture(weights, profiles, of_kernels)


def check_grid(position: GridLogits, query: Tensor, key: Tensor) -> GridLogits:
    """The grid with its logits in float32 at least."""
    logits, num_heads = position.logits, query.shape[1]
    if not isinstance(logits, Tensor):
        raise must_be("logits of a grid", "a torch tensor", type(logits))
    odd = logits.dim() == 3 and logits.shape[1] % 2 == 1 and logits.shape[2] % 2 == 1
    if not odd or logits.shape[0] not in (1, num_heads) or not logits.is_floating_point():
        accepted = f"floating point of shape ({num_heads} or 1, 2h - 1, 2w - 1)"
        raise must_be("logits of a grid", accepted, (logits.dtype, tuple(logits.shape)))
    if logits.device != query.device:
        raise must_be("logits of a grid", f"on {query.device}, as the query", logits.device)
    if query.shape[2] != key.shape[2] or position.num_tokens != key.shape[2]:
        height, width = ((size + 1) // 2 for size in logits.shape[1:])
        accepted = f"those of {position.num_prefix} tokens and {height} x {width} patches"
        raise must_be("queries and keys of a grid", accepted, (query.shape[2], key.shape[2]))
    return GridLogits(logits.to(torch.promote_types(query.dtype, torch.float32)), position.num_prefix)

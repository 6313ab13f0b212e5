"""Positions that a layer's tokens mix for themselves: content that steers what a lag counts."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from nadaraya.attention.positions import MixedKernels, MixedLogits
from nadaraya.attention.projections import LayerShape, by_head
from nadaraya.errors import must_be
from nadaraya.kernels import ComposedKernel, KernelBank
from nadaraya.kernels.heads import PartByHead, keep_rows
from nadaraya.kernels.parameters import count

Terms = KernelBank | ComposedKernel


class MixedProfiles(PartByHead):
    """b_h(i, r) = Σ_m w_ihm p_m(r): each query mixes M learned profiles by lag, in place of rotary positions.

    The relative positions of Inkling (Thinking Machines Lab 2026): weights are linear in the token, profiles
    are free numbers that all heads share, and lags beyond them have b = 0. They start near 0, at random.

    Args:
        shape: sizes of the layer.
        num_profiles: M. Default 16.
        extent: lags 0 … E − 1 (tokens) that have an entry of their own. Default 1024.

    Raises:
        InputError: a count that is not a positive whole number.
    """

    per_head = ("weights",)

    def __init__(self, shape: LayerShape, num_profiles: int = 16, extent: int = 1024) -> None:
        super().__init__(shape.num_heads)
        self.weights = nn.Linear(shape.dim, shape.num_heads * count("num_profiles", num_profiles), bias=False)
        self.profiles = nn.Parameter(0.02 * torch.randn(num_profiles, count("extent", extent)))

    def forward(self, x: Tensor, num_lags: int) -> MixedLogits:
        """The operator's `position` for queries of the tokens x (B, N, D) and lags up to num_lags − 1."""
        return MixedLogits(_weights(self.weights, x, self.num_heads), self.profiles[:, :num_lags])


class MixedBank(PartByHead):
    """b_h(i, r) = log Σ_m w_ihm κ_hm(r), w > 0: each query weighs the terms of its head's bank.

    Weights are exponentials of a linear map that starts at 0: then the layer is `gpa-mul`, Bunks et al.
    (2025), eq. 6.

    Args:
        shape: sizes of the layer.
        bank: a function of the number of heads that makes a `KernelBank` or a `ComposedKernel`; default a
            bank of 8 terms.

    Raises:
        InputError: something else than a bank.
    """

    per_head = ("weights", "bank")

    def __init__(self, shape: LayerShape, bank: Callable[[int], Terms] | None = None) -> None:
        super().__init__(shape.num_heads)
        self.bank = KernelBank(shape.num_heads, num_terms=8) if bank is None else bank(shape.num_heads)
        if not isinstance(self.bank, Terms):
            raise must_be("bank", "a function that makes a KernelBank or a ComposedKernel", self.bank)
        self.weights = nn.Linear(shape.dim, shape.num_heads * self.bank.num_terms, bias=False)
        nn.init.zeros_(self.weights.weight)
        self.weights.keeps_start = True  # type: ignore[assignment]

    def forward(self, x: Tensor, num_lags: int) -> MixedKernels:
        """The operator's `position` for queries of the tokens x (B, N, D) and lags up to num_lags − 1."""
        weights = _weights(self.weights, x, self.num_heads).float().exp()
        lags = torch.arange(num_lags, device=x.device)
        return MixedKernels(weights, self.bank.log_terms(lags))


def _weights(linear: nn.Linear, x: Tensor, num_heads: int) -> Tensor:
    return by_head(linear(x.to(linear.weight.dtype)), num_heads)  # float32, also in a model of half precision


class FIRE(nn.Module):
    """b_h(i, r) = f_h(ψ(r) / ψ(max(i, L))), ψ(r) = log(c r + 1): lags as fractions of what can be seen.

    Functional interpolation for relative positions (Li et al. 2024): f is a network of one hidden layer; c
    and L are learned. What it adds depends on the query's place too: an N × N array is made of it.

    Args:
        shape: sizes of the layer.
        hidden: width of the network. Default 32.
        threshold: initial L, in tokens. Default 512.

    Raises:
        InputError: a count that is not a positive whole number.
    """

    def __init__(self, shape: LayerShape, hidden: int = 32, threshold: int = 512) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(1, count("hidden", hidden)), nn.ReLU(), nn.Linear(hidden, shape.num_heads)
        )
        self.log_rate = nn.Parameter(torch.tensor(math.log(0.1)))
        self.log_threshold = nn.Parameter(torch.tensor(math.log(count("threshold", threshold))))

    def forward(self, x: Tensor, num_lags: int) -> Tensor:
        """The operator's `position` for queries of the tokens x (B, Nq, D), the last of Nk: (H, Nq, Nk)."""
        num_queries, num_keys = x.shape[1], num_lags
        place = torch.arange(num_keys, device=self.log_rate.device, dtype=self.log_rate.dtype)
        query = place[num_keys - num_queries :, None]
        rate = self.log_rate.exp()
        far = torch.log1p(rate * torch.maximum(query, self.log_threshold.exp()))
        fraction = torch.log1p(rate * (query - place).abs()) / far
        logits: Tensor = self.network(fraction[..., None])
        return logits.permute(2, 0, 1)

    def keep_heads(self, heads: Sequence[int]) -> None:
        """Keep the outputs of the network that are some heads', in place."""
        last = self.network[-1]
        assert isinstance(last, nn.Linear)
        keep_rows(last, heads, last.out_features)

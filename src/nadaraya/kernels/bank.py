"""A bank of decaying-periodic kernels for every head, evaluated together."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nadaraya.errors import must_be, unknown_name
from nadaraya.kernels.base import Kernel
from nadaraya.kernels.parameters import Positive, count

_MOST_TERMS = 2**20  # per head; beyond it a size is a mistake, refused before anything is allocated
# Numbers per head, of all terms at all lags, that are kept for the backward pass and not computed again.
_KEPT = 2**20


class KernelBank(Kernel):
    """G_h(r) = Σ_m σ² exp(−|r| / l) exp(−2 α² sin²(r / τ)), m = 1 … M.

    The sum of products of Bunks et al. (2025), eq. 3–5, and Gaussian Process Attention (anonymous).

    Each head h has its own M terms, so a bank adds 4 M numbers per head, or 2 M without the periodic factor.
    All heads start equal. On the line G is positive definite.

    Args:
        num_heads: H.
        num_terms: M, terms per head, at most 2^20.
        periodic: whether terms have the periodic factor; without it G_h(r) = Σ_m σ² exp(−|r| / l), and the
            bank has no alpha and no tau. Default True.
        init: where the terms start. "geometric" (default): l from 1.5 to 200 tokens and τ from 2 to 64 tokens
            in equal ratios, log σ from 2 down to −2 in equal steps, α = 0.7; short lengths are the strongest.
            "grid": for lags between patches of an image, l from 1 to 32 and τ from 2 to 16 patches in equal
            ratios, log σ from 1 down to −1 in equal steps, α = 0.7.
            "paper": τ evenly spaced from 4 to 192 tokens, α = 1, σ = 1, l = 150 tokens (Gaussian Process
            Attention (anonymous)); without the periodic factor its terms are all the same and stay so. A
            single term takes the middle of each range.

    Attributes:
        alpha, tau, sigma, length: (H, M), α, τ (tokens), σ, l (tokens) in natural units; stored as logs.

    Raises:
        InputError: num_heads or num_terms is not a positive whole number, or init is unknown.

    >>> from nadaraya.kernels import KernelBank
    >>> bank = KernelBank(num_heads=4, num_terms=8)
    >>> bank.length.shape, bank.lag_logits(num_lags=10).shape
    (torch.Size([4, 8]), torch.Size([4, 10]))
    """

    settings = ("num_heads", "num_terms", "periodic")

    alpha = Positive()
    tau = Positive()
    sigma = Positive()
    length = Positive()

    def __init__(
        self, num_heads: int, num_terms: int, periodic: bool = True, init: str = "geometric"
    ) -> None:
        super().__init__()
        if init not in _INITS:
            raise unknown_name("init", init, _INITS)
        self.num_heads = count("num_heads", num_heads)
        self.num_terms = count("num_terms", num_terms)
        if num_terms > _MOST_TERMS:
            raise must_be("num_terms", f"at most {_MOST_TERMS:,}", num_terms)
        self.periodic = periodic
        self.init = init
        self.batch_shape = torch.Size((num_heads,))
        for name in ("alpha", "tau", "sigma", "length") if periodic else ("sigma", "length"):
            self.register_parameter(f"log_{name}", nn.Parameter(torch.empty(num_heads, num_terms)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Puts every term back to where `init` starts it."""
        initial = _INITS[self.init](self.num_terms)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(initial[name].expand_as(parameter))

    def log(self, r: Tensor | float) -> Tensor:
        r = self.lags(r)
        return self._of_terms(r, torch.logsumexp)

    def forward(self, r: Tensor | float) -> Tensor:
        r = self.lags(r)
        return self._of_terms(r, lambda logs, dim: logs.exp().sum(dim))

    def _of_terms(self, r: Tensor, total: Callable[[Tensor, int], Tensor]) -> Tensor:
        """A sum over the terms at lags r; where r is long, no (H, M, L) is kept for the backward pass."""
        r_L = r.flatten()
        transformed = torch._C._are_functorch_transforms_active() or torch.compiler.is_compiling()
        if len(r_L) * self.num_terms < _KEPT or not torch.is_grad_enabled() or transformed:
            summed = total(self._log_terms(r_L), 1)
        else:
            summed = checkpoint(lambda lags: total(self._log_terms(lags), 1), r_L, use_reentrant=False)
        return summed.reshape(self.num_heads, *r.shape)

    def terms(self, r: Tensor | float) -> Tensor:
        """The separate terms of G.

        Args:
            r: lags (tokens), any shape.

        Returns:
            (H, M, *r.shape), float32 at least; their sum over M is G.
        """
        return self.log_terms(r).exp()

    def log_terms(self, r: Tensor | float) -> Tensor:
        """The logarithms of `terms`, of the same shape: none underflows where a term would."""
        r = self.lags(r)
        return self._log_terms(r).reshape(self.num_heads, self.num_terms, *r.shape)

    def _log_terms(self, r: Tensor) -> Tensor:
        """Log of every term at flattened lags: (H, M, L)."""
        r_L = r.flatten()
        logs = {name: parameter.to(r.dtype)[..., None] for name, parameter in self.named_parameters()}
        rate = torch.exp(-logs["log_length"])  # (H, M, 1)
        if not self.periodic:
            return torch.addcmul(2 * logs["log_sigma"], rate, r_L, value=-1)
        # −2 α² sin² x = α² (cos 2x − 1): the constant joins log σ², and no square is taken over (H, M, L).
        alpha_squared = torch.exp(2 * logs["log_alpha"])
        frequency = 2 * torch.exp(-logs["log_tau"])
        decay = torch.addcmul(2 * logs["log_sigma"] - alpha_squared, rate, r_L, value=-1)
        return torch.addcmul(decay, alpha_squared, torch.cos(frequency * r_L))


def _geometric(
    num_terms: int, tau: tuple[float, float], log_sigma: float, length: tuple[float, float]
) -> dict[str, Tensor]:
    """τ and l in equal ratios between their ends, log σ from log_sigma down to −log_sigma, α = 0.7."""
    return {
        "log_alpha": torch.full((num_terms,), math.log(0.7)),
        "log_tau": _evenly(math.log(tau[0]), math.log(tau[1]), num_terms),
        "log_sigma": _evenly(log_sigma, -log_sigma, num_terms),
        "log_length": _evenly(math.log(length[0]), math.log(length[1]), num_terms),
    }


def _paper(num_terms: int) -> dict[str, Tensor]:
    return {
        "log_alpha": torch.zeros(num_terms),
        "log_tau": _evenly(4, 192, num_terms).log(),
        "log_sigma": torch.zeros(num_terms),
        "log_length": torch.full((num_terms,), math.log(150)),
    }


def _evenly(first: float, last: float, num: int) -> Tensor:
    return torch.linspace(first, last, num) if num > 1 else torch.tensor([(first + last) / 2])


_INITS: dict[str, Callable[[int], dict[str, Tensor]]] = {
    "geometric": partial(_geometric, tau=(2, 64), log_sigma=2, length=(1.5, 200)),
    "grid": partial(_geometric, tau=(2, 16), log_sigma=1, length=(1, 32)),
    "paper": _paper,
}

"""A bank of decaying-periodic kernels for every head, evaluated together."""

import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from nadaraya.errors import InputError, check_name, must_be
from nadaraya.kernels.base import Kernel
from nadaraya.kernels.initializers import Initializer, initializer_of
from nadaraya.kernels.modal import Modes, harmonics
from nadaraya.kernels.parameters import Positive, at_least_float32, count, describe, is_transformed, positive

SHARES = ("none", "heads", "layers", "all")
PARAMETERISATIONS = ("log", "softplus")

_MOST_TERMS = 2**20  # per head; beyond it a size is a mistake, refused before anything is allocated
# Numbers per head, of all terms at all lags, that are kept for the backward pass and not computed again.
_KEPT = 2**20


class _Stored(Positive):
    """A positive number of a bank in natural units, however the bank stores it."""

    def __get__(self, bank: Any, owner: type | None = None) -> Any:
        return self if bank is None else bank._natural(self.name, at_least_float32(bank.stored(self.name)))

    def __set__(self, kernel: nn.Module, value: float | Tensor) -> None:
        if f"log_{self.name}" in kernel._parameters:
            super().__set__(kernel, value)
            return
        raw: Tensor = getattr(kernel, f"raw_{self.name}")
        with torch.no_grad():
            raw.copy_(_inverse_softplus(positive(self.name, torch.as_tensor(value, device=raw.device))))


class KernelBank(Kernel):
    """G_h(r) = Σ_m σ² exp(−|r| / l) exp(−2 α² sin²(r / τ)), m = 1 … M.

    The sum of products of Bunks et al. (2025), eq. 3–5, and Gaussian Process Attention (anonymous).

    Each head h has its own M terms, so a bank adds 4 M numbers per head, or 2 M without the periodic factor.
    On the line G is positive definite, unless its terms are signed.

    Args:
        num_heads: H.
        num_terms: M, terms per head, at most 2^20.
        periodic: whether terms have the periodic factor; without it G_h(r) = Σ_m σ² exp(−|r| / l), and the
            bank has no alpha and no tau. "cosine": cos(2 r / τ) in its place, of the same period π τ, and no
            alpha: the spectral mixture kernel (Wilson and Adams 2013) with exponential envelopes. Such a bank
            can be negative: it has no log and is added, `Exp(bank)`. Default True.
        init: where the terms start, all heads alike but for "random" and "spread". "geometric" (default): l
            from 1.5 to 200 tokens and τ from 2 to 64 tokens in equal ratios, log σ from 2 down to −2 in equal
            steps, α = 0.7; short lengths are the strongest.
            "grid": for lags between patches of an image, l from 1 to 32 and τ from 2 to 16 patches in equal
            ratios, log σ from 1 down to −1 in equal steps, α = 0.7.
            "paper": τ evenly spaced from 4 to 192 tokens, α = 1, σ = 1, l = 150 tokens (Gaussian Process
            Attention (anonymous)); without the periodic factor its terms are all the same and stay so. A
            single term takes the middle of each range.
            "random": l, τ and σ log-uniform in the ranges of "geometric", by PyTorch's global generator,
            α = 0.7. "spread": the l and τ of all H M terms in equal ratios over the ranges of "geometric", of
            which each head has M neighbours, as heads have slopes of their own in ALiBi (Press et al. 2022);
            α = 0.7, σ = 1. "unit": l, τ and α of "geometric", σ² = 1 / M: G(0) = 1 for any number of terms,
            for banks that are added.
            Or the numbers themselves by name, {"sigma": …, "length": …, "period": …, "alpha": …}, each M of
            them, or H × M, with "tau" for τ in place of the period; `fit_bank` finds them for a curve.
        share: "none" (default), a bank for each head; "heads", one for all heads, with M terms in all;
            "layers", banks that a KernelGPT model has once for all layers of the same variant; "all", one
            bank for all heads of all of them.
        parameterisation: how positive numbers are stored, as their "log" (default): a step of training
            changes them by a ratio; or as the inverse of "softplus", log(1 + exp(·)), by which GPyTorch
            (Gardner et al. 2018) keeps parameters positive: steps change large numbers by a difference.
        signed: terms have amplitudes of either sign, stored as they are, in place of σ²; they start at σ².
            Such a bank can be negative too. Default False.

    Attributes:
        alpha, tau, sigma, length: (H, M), or (1, M) where heads share; α, τ (tokens), σ, l (tokens) in
            natural units.
        period: π τ (tokens), of the same shape.

    Raises:
        InputError: num_heads or num_terms is not a positive whole number, or another argument is unknown.

    >>> from nadaraya.kernels import KernelBank
    >>> bank = KernelBank(num_heads=4, num_terms=8)
    >>> bank.length.shape, bank.lag_logits(num_lags=10).shape
    (torch.Size([4, 8]), torch.Size([4, 10]))
    >>> shared = KernelBank(num_heads=4, num_terms=8, share="heads")
    >>> shared.length.shape, shared.lag_logits(num_lags=10).shape
    (torch.Size([1, 8]), torch.Size([4, 10]))
    """

    settings: tuple[str, ...] = ("num_heads", "num_terms", "periodic")

    alpha = _Stored()
    tau = _Stored()
    sigma = _Stored()
    length = _Stored()

    def __init__(
        self,
        num_heads: int,
        num_terms: int,
        periodic: bool | str = True,
        init: Initializer = "geometric",
        *,
        share: str = "none",
        parameterisation: str = "log",
        signed: bool = False,
    ) -> None:
        super().__init__()
        self.num_heads = count("num_heads", num_heads)
        self.num_terms = count("num_terms", num_terms)
        if num_terms > _MOST_TERMS:
            raise must_be("num_terms", f"at most {_MOST_TERMS:,}", num_terms)
        if periodic not in (True, False, "cosine"):
            raise must_be("periodic", "True, False or 'cosine'", periodic)
        check_name("share", share, SHARES)
        check_name("parameterisation", parameterisation, PARAMETERISATIONS)
        self.periodic, self.init, self.share = periodic, init, share
        self.parameterisation, self.signed = parameterisation, signed
        self.batch_shape = torch.Size((num_heads,))
        shape = (1 if share in ("heads", "all") else num_heads, num_terms)
        self._names = (
            *(() if not periodic else ("tau",) if periodic == "cosine" else ("alpha", "tau")),
            "amplitude" if signed else "sigma",
            "length",
        )
        for name in self._names:
            self.register_parameter(self._stored_as(name), nn.Parameter(torch.empty(shape)))
        self.shared_tensors = tuple(self._parameters) if share in ("heads", "all") else ()
        others = {"share": "none", "parameterisation": "log", "signed": False}
        self.settings += tuple(name for name, default in others.items() if getattr(self, name) != default)
        self.reset_parameters()

    @property
    def period(self) -> Tensor:
        """π τ in tokens, (H, M), or (1, M) where heads share."""
        return math.pi * cast("Tensor", self.tau)

    def _stored_as(self, name: str) -> str:
        if name == "amplitude":
            return name
        return f"log_{name}" if self.parameterisation == "log" else f"raw_{name}"

    def stored(self, name: str) -> Tensor:
        """The parameter of a number: its log, its inverse softplus, or an amplitude as it is.

        Args:
            name: "alpha", "tau", "sigma", "length" or "amplitude", as far as the bank has it.
        """
        parameter: Tensor = getattr(self, self._stored_as(name))
        return parameter

    def reset_parameters(self) -> None:
        """Puts every term back to where `init` starts it; "random" draws anew."""
        with torch.no_grad():
            for name, start in initializer_of(self.init, self._names, *self.stored("length").shape).items():
                stored_as_is = name == "amplitude" or self.parameterisation == "log"
                self.stored(name).copy_(start if stored_as_is else _inverse_softplus(start.exp()))

    def log(self, r: Tensor | float) -> Tensor:
        self._check_positive()
        return self._of_terms(self.lags(r), lambda r_L: torch.logsumexp(self._log_terms(r_L), 1))

    def forward(self, r: Tensor | float) -> Tensor:
        return self._of_terms(self.lags(r), lambda r_L: self._terms(r_L).sum(1))

    def _of_terms(self, r: Tensor, total: Callable[[Tensor], Tensor]) -> Tensor:
        """A sum over the terms at lags r; where r is long, no (H, M, L) is kept for the backward pass."""
        r_L = r.flatten()
        if len(r_L) * self.num_terms < _KEPT or not torch.is_grad_enabled() or is_transformed():
            summed = total(r_L)
        else:
            summed = checkpoint(total, r_L, use_reentrant=False)
        return summed.reshape(len(summed), *r.shape).expand(self.num_heads, *r.shape)

    def modes(self, dtype: torch.dtype = torch.float32, tolerance: float = 1e-7) -> Modes | None:
        names = {name: self._natural(name, dtype) for name in self._names}
        rate, height = 1 / names["length"], names["amplitude"] if self.signed else names["sigma"].square()
        if not self.periodic:
            return Modes(height[..., None], rate)
        if self.periodic == "cosine":
            return Modes(height[..., None], rate, 2 / names["tau"])
        if (found := harmonics(names["alpha"], names["tau"], tolerance)) is None:
            return None
        weights, frequency = found
        coefficients = (height[..., None] * weights).flatten(1)[..., None]
        rate = rate[..., None].expand_as(frequency)
        return Modes(coefficients, rate.flatten(1), frequency.flatten(1))

    def _natural(self, name: str, dtype: torch.dtype) -> Tensor:
        """A number of every term in natural units, (H or 1, M)."""
        raw = self.stored(name).to(dtype)
        if name == "amplitude":
            return raw
        return raw.exp() if self.parameterisation == "log" else F.softplus(raw)

    def terms(self, r: Tensor | float) -> Tensor:
        """The separate terms of G.

        Args:
            r: lags (tokens), any shape.

        Returns:
            (H, M, *r.shape), float32 at least; their sum over M is G.
        """
        r = self.lags(r)
        return self._by_head(self._terms(r.flatten()), r)

    def log_terms(self, r: Tensor | float) -> Tensor:
        """The logarithms of `terms`, of the same shape: none underflows where a term would."""
        self._check_positive()
        r = self.lags(r)
        return self._by_head(self._log_terms(r.flatten()), r)

    def _by_head(self, terms: Tensor, r: Tensor) -> Tensor:
        return terms.reshape(*terms.shape[:2], *r.shape).expand(self.num_heads, self.num_terms, *r.shape)

    def _check_positive(self) -> None:
        if self.signed or self.periodic == "cosine":
            raise InputError("a bank that can be negative must be added, as Exp(bank): it has no logarithm")

    def _terms(self, r_L: Tensor) -> Tensor:
        """Every term at flattened lags: (H or 1, M, L)."""
        terms = self._log_terms(r_L).exp()
        if self.periodic == "cosine":
            frequency = 2 * torch.exp(-self._logs(r_L.dtype)["log_tau"])
            terms = terms * torch.cos(frequency * r_L)
        if self.signed:
            terms = terms * self.stored("amplitude").to(r_L.dtype)[..., None]
        return terms

    def _log_terms(self, r_L: Tensor) -> Tensor:
        """Log of every term at flattened lags, without what makes it negative: (H or 1, M, L)."""
        logs = self._logs(r_L.dtype)
        rate = torch.exp(-logs["log_length"])  # (H or 1, M, 1)
        height = torch.zeros_like(rate) if self.signed else 2 * logs["log_sigma"]
        if "log_alpha" not in logs:
            return torch.addcmul(height, rate, r_L, value=-1)
        # −2 α² sin² x = α² (cos 2x − 1): the constant joins log σ², and no square is taken over (H, M, L).
        alpha_squared = torch.exp(2 * logs["log_alpha"])
        frequency = 2 * torch.exp(-logs["log_tau"])
        decay = torch.addcmul(height - alpha_squared, rate, r_L, value=-1)
        return torch.addcmul(decay, alpha_squared, torch.cos(frequency * r_L))

    def _logs(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The logs of the positive numbers, (H or 1, M, 1)."""
        stored = {name: self.stored(name) for name in self._names if name != "amplitude"}
        as_log = (lambda raw: raw) if self.parameterisation == "log" else _log_softplus
        return {f"log_{name}": as_log(raw.to(dtype))[..., None] for name, raw in stored.items()}

    def extra_repr(self) -> str:
        settings = [f"{name}={getattr(self, name)!r}" for name in self.settings]
        names = ["period" if name == "tau" else name for name in self._names]
        return ", ".join(settings + [f"{name}={describe(getattr(self, name))}" for name in names])


def shared_by_layers(part: nn.Module) -> Iterator[str]:
    """Names of the parameters within a module that all layers of a variant have in common.

    >>> from nadaraya.kernels import Exp, KernelBank
    >>> from nadaraya.kernels.bank import shared_by_layers
    >>> list(shared_by_layers(Exp(KernelBank(2, 4, periodic=False, share="layers"))))
    ['kernel.log_sigma', 'kernel.log_length']
    """
    for prefix, module in part.named_modules():
        if isinstance(module, KernelBank) and module.share in ("layers", "all"):
            yield from (name for name, _ in module.named_parameters(prefix))


def _inverse_softplus(value: Tensor) -> Tensor:
    return value + torch.log(-torch.expm1(-value))


def _log_softplus(raw: Tensor) -> Tensor:
    """log log(1 + exp(x)), finite with its gradient where log(1 + exp(x)) = exp(x) underflows."""
    bounded = raw.clamp(min=-15.0)
    return F.softplus(bounded).log() + (raw - bounded)

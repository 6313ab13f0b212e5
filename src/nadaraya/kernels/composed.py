"""The kernel of an expression: for every head its sums, products and exponentials, each with parameters."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import cast

import torch
from torch import Tensor, nn

from nadaraya.kernels.bank import KernelBank
from nadaraya.kernels.base import Exp, Kernel, Product
from nadaraya.kernels.batches import log_of_sum
from nadaraya.kernels.compact import Epanechnikov, Tricube
from nadaraya.kernels.expressions import Exponential, Factor, KernelExpression, Term, parse_expression
from nadaraya.kernels.initializers import MIDDLE_LENGTH
from nadaraya.kernels.modal import Modes
from nadaraya.kernels.parameters import Positive, count, log_of_positive
from nadaraya.kernels.stationary import Gaussian, Matern, Periodic, RationalQuadratic


class Constant(Kernel):
    """κ(r) = σ² at every lag: the amplitude of a product, or the least that a sum is.

    Args:
        sigma: σ, a number, or (H,).

    Raises:
        InputError: sigma is not positive and finite.

    >>> from nadaraya.kernels import Constant, Gaussian
    >>> (Constant(sigma=2.0) + Gaussian(1.0))(0.0)
    tensor(5..., grad_fn=<AddBackward0>)
    """

    sigma = Positive()

    def __init__(self, sigma: float | Tensor) -> None:
        super().__init__(sigma=sigma)

    def log(self, r: Tensor | float) -> Tensor:
        r = self.lags(r)
        return 2 * self.aligned("log_sigma", r) + torch.zeros_like(r)

    def modes(self, dtype: torch.dtype = torch.float32, tolerance: float = 1e-7) -> Modes | None:
        height = self._number("sigma", dtype).square()[:, None]
        return Modes(height[..., None], torch.zeros_like(height))


class _Terms(Kernel):
    """κ_b(r) = Σ_m κ_bm(r): a sum of products, of each as many copies as the expression says.

    The kernels of a product with n copies have a batch of B n values: all copies are computed together.
    """

    def __init__(self, expression: KernelExpression, place: "_Place") -> None:
        super().__init__()
        self.copies = [term.copies for term in expression.terms]
        self.num_terms = expression.num_terms
        self.batch_shape = torch.Size((place.num_heads * place.copies,))
        # Outside of an exponential the amplitude of a lone product is one that cancels in attention.
        scaled = place.in_exp or self.num_terms > 1
        equal = self.num_terms**-0.5 if place.in_exp else None
        self.products = nn.ModuleList(_product(term, place, scaled, equal) for term in expression.terms)

    def log_terms(self, r: Tensor | float) -> Tensor:
        """The logarithms of the separate terms, copies too.

        Args:
            r: lags (tokens), any shape.

        Returns:
            (H, M, *r.shape), float32 at least.
        """
        r = self.lags(r)
        parts = zip(self.products, self.copies, strict=True)
        logs = [cast("Kernel", part).log(r).unflatten(0, (-1, copies)) for part, copies in parts]
        return torch.cat(logs, dim=1)

    def log(self, r: Tensor | float) -> Tensor:
        return log_of_sum(self.log_terms(r), dim=1)

    def forward(self, r: Tensor | float) -> Tensor:
        return self.log_terms(r).exp().sum(dim=1)

    def modes(self, dtype: torch.dtype = torch.float32, tolerance: float = 1e-7) -> Modes | None:
        parts = zip(self.products, self.copies, strict=True)
        found = [(cast("Kernel", part).modes(dtype, tolerance), copies) for part, copies in parts]
        by_head = [modes.by_head(copies) for modes, copies in found if modes is not None]
        return reduce(add, by_head) if len(by_head) == len(found) else None

    def __repr__(self) -> str:
        return f"({' + '.join(map(repr, self.products))})"


class ComposedKernel(_Terms):
    """The kernel of an expression, with parameters of their own for every head.

    A product that is a term of a sum has an amplitude σ² beside the parameters of its kernels, unless one of
    its factors is a sum, whose terms have theirs. Copies start spread as the terms of
    `KernelBank(init="geometric")`: lengths from 1.5 to 200 tokens and τ from 2 to 64 tokens in equal ratios,
    log σ from 2 down to −2 in equal steps, α of a periodic kernel 0.7; a product without copies starts in the
    middle of these ranges. So "8*exponential*periodic" is the bank of Bunks et al. (2025), eq. 3–5. Inside of
    an exponential amplitudes start equal instead, with κ(0) = 1. The α of a rational quadratic starts at 1;
    all heads start equal.

    Args:
        expression: text, see `nadaraya.kernels.expressions.parse_expression`, or what that returns.
        num_heads: H.
        length: the length, in units of r, at which a kernel without copies starts, those of copies and τ in
            proportion to it; default that of lags in text, 17.3 tokens.

    Attributes:
        expression: its one spelling.
        num_terms: M, the terms of its sum, copies counted.

    Raises:
        InputError: the text is no expression, or num_heads is not a positive whole number.

    >>> from nadaraya.kernels import ComposedKernel
    >>> kernel = ComposedKernel("4*exponential*periodic + rq", num_heads=2)
    >>> kernel.num_terms, kernel.parameters_per_head, kernel.lag_logits(num_lags=10).shape
    (5, 19, torch.Size([2, 10]))
    """

    def __init__(
        self, expression: str | KernelExpression, num_heads: int, *, length: float = MIDDLE_LENGTH
    ) -> None:
        parsed = expression if isinstance(expression, KernelExpression) else parse_expression(expression)
        log_of_positive("length", length)  # refuses others
        super().__init__(parsed, _Place(count("num_heads", num_heads), unit=length / MIDDLE_LENGTH))
        self.expression = str(parsed)
        self.num_heads = num_heads

    def __repr__(self) -> str:
        return f"ComposedKernel({self.expression!r}, num_heads={self.num_heads}): {super().__repr__()[1:-1]}"

    @property
    def parameters_per_head(self) -> int:
        """Number of parameters of each head."""
        return sum(parameter.numel() for parameter in self.parameters()) // self.num_heads


@dataclass(frozen=True)
class _Place:
    """Position of a kernel in an expression, from which its parameters start."""

    num_heads: int
    copies: int = 1  # of the product that it is in, and of those around that, multiplied
    parts: int = 1  # kernels of one kind in a product share the spread of its copies: how many they are
    part: int = 0  # and which of them it is
    in_exp: bool = False  # whether it is inside an exponential
    unit: float = 1.0  # what a token is in its distances

    def start(self, name: str) -> Tensor:
        """(H · copies,): a parameter of the bank that has a term for every copy and part."""
        bank = KernelBank(1, self.copies * self.parts)
        spread: Tensor = getattr(bank, name).detach().reshape(self.copies, self.parts)[:, self.part]
        return spread.repeat(self.num_heads) * (self.unit if name in ("length", "tau") else 1.0)

    def alike(self, value: float) -> Tensor:
        """(H · copies,) equal values."""
        return torch.full((self.num_heads * self.copies,), value)


_KERNELS: dict[str, Callable[[_Place], Kernel]] = {
    "constant": lambda place: Constant(place.start("sigma")),
    "epanechnikov": lambda place: Epanechnikov(place.start("length")),
    "exponential": lambda place: Matern(place.start("length"), nu=0.5),
    "gaussian": lambda place: Gaussian(place.start("length")),
    "matern32": lambda place: Matern(place.start("length"), nu=1.5),
    "matern52": lambda place: Matern(place.start("length"), nu=2.5),
    "periodic": lambda place: Periodic(place.start("alpha"), place.start("tau")),
    "rq": lambda place: RationalQuadratic(place.start("length"), place.alike(1.0)),
    "tricube": lambda place: Tricube(place.start("length")),
}


def _product(term: Term, around: _Place, scaled: bool, equal: float | None) -> Kernel:
    """The copies of a product: with an amplitude where the sum needs it and no part has one."""
    place = replace(around, copies=around.copies * term.copies)
    kernels: list[Kernel] = []
    has_amplitude = any(f == "constant" or isinstance(f, KernelExpression) for f in term.factors)
    if scaled and not has_amplitude:
        kernels.append(Constant(place.start("sigma") if equal is None else place.alike(equal)))
    repeated, met = Counter(term.factors), Counter[Factor]()
    for factor in term.factors:
        parts = repeated[factor]
        own = replace(place, parts=place.parts * parts, part=place.part * parts + met[factor])
        kernels.append(_kernel(factor, own))
        met[factor] += 1
    return Product(*kernels) if len(kernels) > 1 else kernels[0]


def _kernel(factor: Factor, place: _Place) -> Kernel:
    if isinstance(factor, str):
        return _KERNELS[factor](place)
    if isinstance(factor, Exponential):
        return Exp(_Terms(factor.inner, replace(place, in_exp=True)))
    return _Terms(factor, place)

"""The cases of the attention benchmarks: shapes, dtypes and contenders.

The tokens of a Gaussian case are one tensor x that serves as queries, keys and values, as in Gaussian kernel
attention; stock attention gets separate queries, keys and values there, since that is what it would replace.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import rivals
import torch
import torch.nn.functional as F
from rivals import Contender
from torch import Tensor

from nadaraya.attention import MixedKernels, MixedLogits
from nadaraya.attention.positions import GridLogits

PASSES = ("forward", "forward_backward")


@dataclass(frozen=True)
class Shape:
    """B, H, Nq, Nk and d of a case."""

    batch: int
    heads: int
    queries: int
    keys: int
    width: int

    @classmethod
    def square(cls, batch: int, heads: int, tokens: int, width: int) -> "Shape":
        """As many queries as keys."""
        return cls(batch, heads, tokens, tokens, width)


@dataclass(frozen=True)
class Case:
    """One line-up on one shape; `contenders` makes the tensors and takes the case and a device."""

    name: str
    group: str
    shape: Shape
    causal: bool
    contenders: Callable[["Case", str], list[Contender]]
    dtype: torch.dtype = torch.bfloat16
    passes: tuple[str, ...] = PASSES

    def flops(self, which: str) -> float:
        """Useful operations of a pass: two products of B·H·Nq·Nk·d forward, five backward; half if causal."""
        shape = self.shape
        pairs = shape.queries * shape.keys / (2 if self.causal and shape.queries > 1 else 1)
        forward = 4 * shape.batch * shape.heads * pairs * shape.width
        return forward * (3.5 if which == "forward_backward" else 1.0)

    def describe(self) -> dict[str, Any]:
        """Shape, dtype and causality for a results file."""
        dtype = str(self.dtype).removeprefix("torch.")
        return {"shape": asdict(self.shape), "dtype": dtype, "causal": self.causal}


def gpa(case: Case, device: str) -> list[Contender]:
    """Dot products with a table by lag that has a gradient, against all."""
    q, k, v = tokens(case, device, 3)
    bias = table(case, device)
    return [
        *rivals.ours(q, k, v, causal=True, table=bias),
        *rivals.stock(q, k, v, causal=True),
        *rivals.biased_by_others(q, k, v, bias),
    ]


def gpa_against_stock(case: Case, device: str) -> list[Contender]:
    """`gpa` without the forms that write N × N or compile."""
    q, k, v = tokens(case, device, 3)
    return [
        *rivals.ours(q, k, v, causal=True, table=table(case, device)),
        *rivals.stock(q, k, v, causal=True),
    ]


def gka(case: Case, device: str) -> list[Contender]:
    """Gaussian kernel attention of one tensor, with the gradient of its bandwidths."""
    (x,), sigma = tokens(case, device, 1), bandwidth(case, device)
    options = {"causal": case.causal}
    return [
        *rivals.ours(x, x, x, bandwidth=sigma, **options),
        *rivals.stock(*tokens(case, device, 3), **options),
        rivals.gaussian_by_hand(x, x, x, sigma, **options),
    ]


def general_gaussian(case: Case, device: str) -> list[Contender]:
    """The Gaussian of separate queries, keys and values."""
    (q, k, v), sigma = tokens(case, device, 3), bandwidth(case, device)
    return [
        *rivals.ours(q, k, v, bandwidth=sigma, causal=True),
        *rivals.stock(q, k, v, causal=True),
        rivals.gaussian_by_hand(q, k, v, sigma, causal=True),
    ]


def gka_table_loo(case: Case, device: str) -> list[Contender]:
    """Leave-one-out Gaussian kernel attention of one tensor with a table by lag."""
    (x,), sigma, bias = tokens(case, device, 1), bandwidth(case, device), table(case, device)
    options = {"causal": True, "table": bias, "exclude_self": True}
    return [
        *rivals.ours(x, x, x, bandwidth=sigma, **options),
        *rivals.stock(*tokens(case, device, 3), causal=True),
        rivals.gaussian_by_hand(x, x, x, sigma, **options),
    ]


def mixed_logits(case: Case, device: str) -> list[Contender]:
    """Sixteen profiles by lag that every query mixes, as Inkling has them."""
    return _with_position(case, device, MixedLogits(*_mixture(case, device, num_terms=16)))


def mixed_kernels(case: Case, device: str) -> list[Contender]:
    """A bank of four kernels by lag whose terms the query weighs."""
    weights, profiles = _mixture(case, device, num_terms=4)
    positive = weights.detach().abs().add(0.1).requires_grad_()
    return _with_position(case, device, MixedKernels(positive, profiles))


def grid(case: Case, device: str) -> list[Contender]:
    """A table by the rows and columns between the patches of a square image."""
    size = math.isqrt(case.shape.keys - 1)
    lags = torch.randn(case.shape.heads, 2 * size - 1, 2 * size - 1, device=device).requires_grad_()
    return _with_position(case, device, GridLogits(lags, case.shape.keys - size**2))


def negligible(case: Case, device: str) -> list[Contender]:
    """A kernel that decays by 1 nat in 100 tokens; pairs that weigh 2⁻²⁴ of a row are left out, or not."""
    q, k, v = (F.normalize(t.detach(), dim=-1).requires_grad_() for t in tokens(case, device, 3))
    lags = torch.arange(case.shape.keys, device=device)
    bias = (lags / -100.0).expand(case.shape.heads, -1).clone().requires_grad_()
    everything = rivals.ours(q, k, v, causal=True, table=bias)
    return [
        *rivals.ours(q, k, v, causal=True, table=bias, prune_tol=2**-24),
        *(replace(each, name=f"{each.name}, all pairs") for each in everything),
        *rivals.stock(q, k, v, causal=True),
    ]


def _with_position(
    case: Case, device: str, mixed: MixedLogits | MixedKernels | GridLogits
) -> list[Contender]:
    q, k, v = tokens(case, device, 3)
    return [
        *rivals.ours(q, k, v, causal=case.causal, mixed=mixed),
        *rivals.stock(q, k, v, causal=case.causal),
    ]


def _mixture(case: Case, device: str, num_terms: int) -> tuple[Tensor, Tensor]:
    """Weights (B, H, N, M) and profiles (M, E) with gradient, E at most 1024."""
    shape = (case.shape.batch, case.shape.heads, case.shape.queries, num_terms)
    made = (
        torch.randn(shape, device=device),
        torch.randn(num_terms, min(case.shape.keys, 1024), device=device),
    )
    return made[0].requires_grad_(), made[1].requires_grad_()


def decode_gpa(case: Case, device: str) -> list[Contender]:
    """One query against cached keys and values, with the row of a table."""
    q, k, v = decoding(case, device)
    with torch.no_grad():
        row = table(case, device).detach()
    return [*rivals.ours(q, k, v, causal=True, table=row), *rivals.stock(q, k, v, causal=False)]


def decode_gka(case: Case, device: str) -> list[Contender]:
    """One query against a cache that is keys and values at once; stock attention reads two."""
    q, k, v = decoding(case, device)
    sigma = bandwidth(case, device)
    return [
        *rivals.ours(q, k, k, bandwidth=sigma, causal=True),
        *rivals.stock(q, k, v, causal=False),
    ]


def tokens(case: Case, device: str, count: int) -> list[Tensor]:
    """Standard normal (B, H, Nk, d) with gradient."""
    shape = (case.shape.batch, case.shape.heads, case.shape.keys, case.shape.width)
    made = [torch.randn(shape, device=device, dtype=case.dtype) for _ in range(count)]
    return [tensor.requires_grad_() for tensor in made]


def decoding(case: Case, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, cached keys and cached values without gradient."""
    k, v = (tensor.detach() for tensor in tokens(case, device, 2))
    return torch.randn_like(k[:, :, : case.shape.queries]), k, v


def table(case: Case, device: str) -> Tensor:
    """(H, Nk) float32 with gradient."""
    return torch.randn(case.shape.heads, case.shape.keys, device=device).requires_grad_()


def bandwidth(case: Case, device: str) -> Tensor:
    """(H,) float32 with gradient: d^(1/4), where a layer starts."""
    return torch.full((case.shape.heads,), case.shape.width**0.25, device=device).requires_grad_()


def all_cases(quick: bool) -> list[Case]:
    """Every case in order of importance; `quick` keeps their names and makes the shapes tiny."""

    def square(batch: int, heads: int, length: int, width: int) -> Shape:
        return Shape.square(1, 2, 32, 8) if quick else Shape.square(batch, heads, length, width)

    cases = []
    for width in (64, 128):
        cases.append(Case(f"gpa-d{width}", "gpa", square(8, 16, 4096, width), True, gpa))
    for width in (64, 128):
        cases.append(Case(f"gka-d{width}", "gka", square(8, 16, 4096, width), True, gka))
    for heads in (3, 6, 12):
        cases.append(Case(f"gka-both-h{heads}", "gka-both", square(256, heads, 197, 64), False, gka))
    for length, label in ((8192, "8k"), (32768, "32k")):
        for width in (64, 128):
            shape = Shape(2, 2, 1, 32, 8) if quick else Shape(64, 16, 1, length, width)
            for name, contenders in (("gka", decode_gka), ("gpa", decode_gpa)):
                full = f"decode-{name}-{label}-d{width}"
                cases.append(Case(full, "decode", shape, True, contenders, passes=("forward",)))
    medium = square(8, 16, 4096, 64)
    cases.append(Case("gaussian-qkv", "general", medium, True, general_gaussian))
    cases.append(Case("gka-table-loo", "general", medium, True, gka_table_loo))
    cases.append(Case("mixed-logits", "positions", medium, True, mixed_logits))
    cases.append(Case("mixed-kernels", "positions", medium, True, mixed_kernels))
    cases.append(Case("grid", "positions", square(256, 6, 197, 64), False, grid))
    cases.append(Case("negligible", "positions", square(1, 16, 16384, 64), True, negligible))
    for name, contenders in (("gpa", gpa_against_stock), ("gka", gka)):
        for width in (16, 32, 64, 128, 256):
            shape = square(4, 8, 2048, width)
            cases.append(Case(f"{name}-width{width}", "widths", shape, True, contenders))
        for dtype in (torch.float16, torch.float32):
            label = str(dtype).removeprefix("torch.")
            shape = square(4, 8, 2048, 64)
            cases.append(Case(f"{name}-{label}", "widths", shape, True, contenders, dtype))
    return cases
